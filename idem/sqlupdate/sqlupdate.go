// Package sqlupdate is lock - check - update in one call: a lock of pawl, then one transaction that
// checks and updates.
//
//	updater := sqlupdate.New(db, sqlfence.Marks{Dialect: dialect.PostgreSQL}, nil)
//	done, err := updater.Do(ctx, client.Mutex("order/42"),
//		func(ctx context.Context, tx *sql.Tx) (done bool, err error) {
//			err = tx.QueryRowContext(ctx, "SELECT paid FROM orders WHERE id = 42").Scan(&done)
//			return done, err
//		},
//		func(ctx context.Context, tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, "UPDATE orders SET paid = true WHERE id = 42")
//			return err
//		})
//
// The lock is for order, and for load: callers wait for each other outside of the database, without a
// connection or a transaction. The update does not happen once because of the lock. The fencing token
// is the first statement of the transaction, see [sqlfence.Marks]. So the update is right also when the
// lock was lost in between:
//
//   - A later holder was faster: the token is stale, the transaction writes nothing, and Do fails with
//     [fence.ErrStale].
//   - The transaction has begun: it has the row of the mark, and the next holder waits there for its end.
//     The check of the next holder then sees the update.
//
// For many keys with a bound on locks and marks, take a [pawl.Striped] lock: its For returns the lock
// of the stripe of a key. Each stripe has one mark.
//
//	stock := client.Striped("stock", 100)
//	updater.Do(ctx, stock.For(sku), check, update)
//
// A guarded UPDATE, or a claim of package sqlidem in the same transaction, needs no lock to be right. With this package, its callers also wait in order.
package sqlupdate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/sqlfence"
)

// Check reports whether the update has happened already. A Check looks at the state of the row, or into a
// table of keys that were done. Check runs in the transaction of the update, after the lock and the
// mark are held, and may run several times.
type Check func(ctx context.Context, tx *sql.Tx) (done bool, err error)

// Update writes in the transaction. An Update may run several times, and only one of them is committed, so
// it should have no effects elsewhere.
type Update func(ctx context.Context, tx *sql.Tx) error

// Updater makes updates in one database. An Updater is a description and safe for concurrent use.
type Updater struct {
	db    *sql.DB
	marks sqlfence.Marks
	opts  *sql.TxOptions
}

// New returns an updater for db, whose marks are in a table that has been created there: see
// [sqlfence.Marks.Create]. opts are those of each transaction; nil is the default of the database, and
// any level of isolation will do.
func New(db *sql.DB, marks sqlfence.Marks, opts *sql.TxOptions) *Updater {
	return &Updater{db, marks, opts}
}

// tries is how often a transaction is begun that others were in the way of.
const tries = 10

// Do takes the lock, checks, updates unless check says that it is done, commits, and releases the
// lock. A transaction that fails because of a deadlock or a serialization failure is repeated. All
// writers of a resource have to take the same lock, because the mark has its name.
//
// The context of check and update, and of the transaction, ends when ctx does or the lock is lost; the
// database then rolls back. Errors are those of [pawl.Mutex.Lock]; [fence.ErrStale] if another holder
// came between; and those of check, of update and of the database. After any of them the caller may
// call Do again. If only the release of the lock failed, the update was committed before. If the database did not answer the commit, nobody knows whether the update
// has happened, and the check of the next call says it.
func (u *Updater) Do(ctx context.Context, lock *pawl.Mutex, check Check, update Update) (done bool, err error) {
	err = lock.Do(ctx, func(ctx context.Context) error {
		token, _ := fence.FromContext(ctx, lock.Name())
		return dialect.Repeat(ctx, dialect.Tries(tries), func() (err error) {
			done, err = u.transact(ctx, lock.Name(), token, check, update)
			return err
		})
	})
	if err != nil {
		return false, fmt.Errorf("locked update: %w", err)
	}
	return done, nil
}

func (u *Updater) transact(ctx context.Context, name string, token fence.Token, check Check, update Update) (done bool, err error) {
	tx, err := u.db.BeginTx(ctx, u.opts)
	if err != nil {
		return false, err
	}
	defer func() {
		if ended := tx.Rollback(); ended != nil && !errors.Is(ended, sql.ErrTxDone) {
			err = errors.Join(err, ended)
		}
	}()
	if err = u.marks.Check(ctx, tx, name, token); err != nil {
		return false, err
	}
	if done, err = check(ctx, tx); err != nil {
		return false, err
	}
	if !done {
		if err = update(ctx, tx); err != nil {
			return false, err
		}
	}
	return done, tx.Commit()
}
