package halfmsg

import (
	"errors"
	"fmt"
)

// The errors of this package. Test with errors.Is, because each error says more than its sentinel.
var (
	// ErrAborted says that the half message is aborted for good. The transaction has to be rolled back.
	ErrAborted = errors.New("the half message is aborted")

	// ErrSubmitted says that the half message is submitted and cannot be aborted.
	ErrSubmitted = errors.New("the half message is submitted")

	// ErrRepeated says that an earlier transaction with this half message was committed. This transaction has to
	// be rolled back, and nothing is to be repeated.
	ErrRepeated = errors.New("a transaction with this half message was committed before")

	// ErrUnknown says that the coordinator has no such half message: it was never prepared, or was cleaned after the retention.
	ErrUnknown = errors.New("no such half message")

	// ErrTooOld says that the half message is older than the rows of the barrier. An operator has to decide.
	ErrTooOld = errors.New("the half message is too old to be decided by the barrier")
)

// State says how far a half message is.
type State int

// The states of a half message. Submitted and Aborted are for good.
const (
	// Prepared: the coordinator keeps the messages and does not send them.
	Prepared State = iota
	// Submitted: the messages are in the outbox.
	Submitted
	// Aborted: the messages are never sent.
	Aborted
)

// String returns the name of the state in lower case.
func (s State) String() string {
	if s < Prepared || s > Aborted {
		return fmt.Sprintf("state %d", int(s))
	}
	return [...]string{"prepared", "submitted", "aborted"}[s]
}

// to returns nil if a half message in state s may be in state want then, and an error if s is decided otherwise.
func (s State) to(want State) error {
	switch {
	case s == Prepared || s == want:
		return nil
	case s == Submitted:
		return ErrSubmitted
	}
	return ErrAborted
}

// Outcome is what a barrier says about the transaction of a half message.
type Outcome int

// The outcomes.
const (
	// Open: the transaction may be open. Ask again later.
	Open Outcome = iota
	// Committed: the transaction is committed.
	Committed
	// RolledBack: the transaction is rolled back, or can never be committed.
	RolledBack
)

// String returns the name of the outcome in lower case.
func (o Outcome) String() string {
	if o < Open || o > RolledBack {
		return fmt.Sprintf("outcome %d", int(o))
	}
	return [...]string{"open", "committed", "rolled back"}[o]
}

// decides returns the state that an outcome asks for. Nothing is decided while the transaction may be open.
func (o Outcome) decides() (want State, decided bool) {
	switch o {
	case Committed:
		return Submitted, true
	case RolledBack:
		return Aborted, true
	}
	return Prepared, false
}

// row is a row of a barrier, as it is after the insert of a transaction or of the coordinator's question.
type row struct {
	outcome Outcome // Committed if a transaction has inserted it, RolledBack if a question has
	owner   int64   // a random number
}

// pass returns nil if the row is that of the transaction with this owner, which may go on then.
func (r row) pass(owner int64) error {
	switch {
	case r.owner == owner:
		return nil
	case r.outcome == Committed:
		return ErrRepeated
	}
	return ErrAborted
}
