// Package pgxtx is the transaction of pgx as a [dialect.DB]. So every package that works in the caller's
// transaction works in a pgx.Tx: idem with sqlidem, state, stock, outbox, the guards of sqlfence.
//
//	tx, err := pool.Begin(ctx)
//	if err != nil { ... }
//	defer tx.Rollback(ctx)
//	if _, err := tx.Exec(ctx, "INSERT INTO orders ..."); err != nil { ... }
//	if _, err := messages.Enqueue(ctx, pgxtx.Of(tx), message); err != nil { ... }
//	return tx.Commit(ctx)
//
// The package begins and ends no transaction. Calls that take a *sql.DB, such as Migrate, work with
// stdlib.OpenDBFromPool(pool) of pgx.
//
// Errors have the classes that they have with database/sql: [dialect.Again], [dialect.Duplicate],
// [dialect.LockTimeout], [dialect.ReadOnly] and [dialect.Lost] judge both alike. A transaction that has ended is
// sql.ErrTxDone, and no row is sql.ErrNoRows.
package pgxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/dialect"
)

// Tx is a transaction of pgx with the methods of database/sql. As its transaction, a Tx is for one goroutine at
// a time. The rows of a query have to be closed before the next statement.
type Tx struct {
	tx    pgx.Tx
	after string // the command that travels with each statement; empty: none
}

var _ dialect.Batcher = (*Tx)(nil)

// Of returns the transaction. Of sends nothing, and costs next to nothing.
func Of(tx pgx.Tx) *Tx { return &Tx{tx: tx} }

// Batch implements [dialect.Batcher].
func (t *Tx) Batch(after string) dialect.DB { return &Tx{t.tx, after} }

// ExecContext implements [dialect.DB].
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if t.after == "" {
		tag, err := t.tx.Exec(ctx, query, args...)
		return driver.RowsAffected(tag.RowsAffected()), t.failed(err)
	}
	results := t.send(ctx, query, args)
	tag, err := results.Exec()
	return driver.RowsAffected(tag.RowsAffected()), t.failed(t.end(results, err))
}

// QueryContext implements [dialect.DB]. Integers, floating-point numbers, booleans, bytes and times are scanned as the
// package stdlib of pgx does, and values of all other types are text.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	r := &rows{tx: t, end: func() error { return nil }}
	var err error
	if t.after == "" {
		r.Rows, err = t.tx.Query(ctx, query, append([]any{formats}, args...)...)
	} else {
		results := t.send(ctx, query, args)
		r.end = func() error { return t.end(results, nil) }
		r.Rows, err = results.Query()
	}
	if err == nil {
		r.ahead = r.Rows.Next() // else nobody knows the columns yet
		err = r.Err()
	}
	if err != nil {
		if r.Rows != nil {
			r.Rows.Close()
		}
		r.end() //nolint:errcheck // the first error counts
		return nil, t.failed(err)
	}
	return standard(r)
}

// send sends a statement and its command.
func (t *Tx) send(ctx context.Context, query string, args []any) pgx.BatchResults {
	b := new(pgx.Batch)
	b.Queue(query, args...)
	b.Queue(t.after)
	return t.tx.SendBatch(ctx, b)
}

// end reads the rest of the answer.
func (t *Tx) end(results pgx.BatchResults, err error) error {
	if err == nil {
		_, err = results.Exec()
	}
	if closing := results.Close(); err == nil {
		err = closing
	}
	return err
}

// failed gives errors of the client the class that they have with database/sql. Errors of the server have it.
func (t *Tx) failed(err error) error {
	var server *pgconn.PgError
	switch {
	case err == nil || errors.As(err, &server):
		return err
	case errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("%w: %w", sql.ErrTxDone, err)
	case t.tx.Conn().IsClosed():
		return fmt.Errorf("%w: %w", driver.ErrBadConn, err)
	}
	return err
}
