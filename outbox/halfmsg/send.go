package halfmsg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/outbox"
)

// Preparer is a coordinator as a producer sees it: a [Coordinator] in the same process, or a [Client]. The methods are
// those of Coordinator.
type Preparer interface {
	// Prepare keeps messages and returns the ID of the half message.
	Prepare(ctx context.Context, producer string, messages ...outbox.Message) (id string, err error)
	// Submit puts the messages into the outbox, once.
	Submit(ctx context.Context, id string) error
	// Abort makes sure that the messages are never sent.
	Abort(ctx context.Context, id string) error
}

// Send prepares messages, runs fn in a transaction that has passed the barrier, commits, and submits. The messages
// are sent if the transaction is committed, and only then. Nil txOpts are the defaults of the database.
//
// An error of fn rolls back, and Send returns the error. If Send fails to submit, the transaction is committed, the coordinator
// asks back, and Send returns nil. After a commit whose outcome is unknown, Send returns its error and the ID, and the
// coordinator asks back. The caller may then ask the business rows, or [Coordinator.Status] later. The ID is empty if
// nothing was prepared.
func Send(ctx context.Context, to Preparer, producer string, b *Barrier, db *sql.DB, txOpts *sql.TxOptions, messages []outbox.Message, fn func(ctx context.Context, tx *sql.Tx) error) (id string, err error) {
	if to == nil || b == nil || db == nil || fn == nil {
		return "", failed("send", fmt.Errorf("%w: the coordinator, the barrier, db or fn is nil", pawl.ErrInvalid))
	}
	if id, err = to.Prepare(ctx, producer, messages...); err != nil {
		return "", err
	}
	prepared := time.Now()
	if committing, err := b.transact(ctx, db, txOpts, id, prepared, fn); err != nil {
		if !committing { // the transaction is rolled back for certain, and an abort that is lost is asked back
			after, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer stop()
			to.Abort(after, id) //nolint:errcheck // as above
		}
		return id, err
	}
	to.Submit(ctx, id) //nolint:errcheck // the coordinator asks back
	return id, nil
}

// transact reports whether the transaction may be committed.
func (b *Barrier) transact(ctx context.Context, db *sql.DB, txOpts *sql.TxOptions, id string, prepared time.Time, fn func(ctx context.Context, tx *sql.Tx) error) (committing bool, err error) {
	tx, err := db.BeginTx(ctx, txOpts)
	if err != nil {
		return false, failed("begin", err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if err := b.Pass(ctx, tx, id); err != nil {
		return errors.Is(err, ErrRepeated), err
	}
	if err := fn(ctx, tx); err != nil {
		return false, err
	}
	if age := time.Since(prepared); age > b.opts.Retention/2 { // the row of an answer may be cleaned
		return false, failed("send", fmt.Errorf("%w: %v", ErrTooOld, age))
	}
	return true, failed("commit", tx.Commit())
}
