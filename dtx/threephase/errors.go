package threephase

import (
	"errors"
	"fmt"
)

// ErrReplaced says that another process has taken over the log of this agent, or that an agent has another log than before.
var ErrReplaced = errors.New("replaced")

// ErrForeign says that a message or an answer is not of an agent of this group, as this agent knows the group.
var ErrForeign = errors.New("foreign message")

// Error is an error of a transaction that has begun. Use errors.As to learn the ID.
type Error struct {
	ID  ID
	Err error // matches dtx.ErrAborted, dtx.ErrPending or dtx.ErrInDoubt
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("threephase: transaction %v: %v", e.ID, e.Err) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

func failed(what string, err error) error {
	if err != nil {
		return fmt.Errorf("threephase: %s: %w", what, err)
	}
	return nil
}
