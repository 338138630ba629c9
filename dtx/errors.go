package dtx

import (
	"errors"
	"fmt"
)

// The results of [Coordinator.Run] besides nil. Test with errors.Is, because each error says more than its sentinel. An
// error of Run matches one of them, or [pawl.ErrInvalid] or [pawl.ErrClosed], after which nothing was begun.
var (
	// ErrAborted says that no branch is or will be committed. The error matches the reason too, such as
	// the error of the caller's function. If [dialect.Again] says so, the caller may repeat the transaction.
	ErrAborted = errors.New("the transaction is aborted")

	// ErrPending says that commit is decided, and that some branches could not be told yet. Recovery commits them.
	ErrPending = errors.New("commit is decided and some branches follow")

	// ErrInDoubt says that nobody knows yet whether the transaction commits: the log gave no answer, or the disk failed the COMMIT. Recovery
	// commits all branches or none. Of a transaction with one branch that writes, recovery decides nothing: its rows tell. Only true is an answer of [Log.Committed] then: the record of a commit is deleted when all
	// branches are committed. So put a unique key of your own into the transaction. The INSERT of a repeat waits for recovery, and
	// fails if the key is there.
	ErrInDoubt = errors.New("the outcome of the transaction is in doubt")
)

// ErrRecovered says, beside [ErrAborted], that recovery took the coordinator for dead. The caller may repeat the transaction.
var ErrRecovered = errors.New("recovery has fenced this coordinator")

// Error is an error of a transaction that has begun. Use errors.As to learn the ID.
type Error struct {
	ID  ID    // of the transaction
	Err error // matches [ErrAborted], [ErrPending] or [ErrInDoubt]
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("dtx: transaction %v: %v", e.ID, e.Err) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

func failed(what string, err error) error {
	if err != nil {
		return fmt.Errorf("dtx: %s: %w", what, err)
	}
	return nil
}
