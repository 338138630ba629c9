// Package pgxidem keeps the keys of package idem in a table of PostgreSQL. The
// transactions are those of pgx.
//
// Package pgxidem is package sqlidem with one difference: pgx sends the savepoint together with the claim. So a first
// call costs 2 round trips beside those of the function, [idem.Run] costs 1, and a repeat costs 1. The promises
// are those of package sqlidem. Both packages may share a table.
//
//	tx, err := pool.Begin(ctx)
//	if err != nil { ... }
//	defer tx.Rollback(ctx)
//	payment, replayed, err := idem.Do(ctx, store.In(tx), key, fingerprint, func(ctx context.Context) (Payment, error) {
//		return pay(ctx, tx, order) // writes in tx only
//	})
//	if err != nil {
//		return err // dialect.Again(err): repeat the transaction
//	}
//	return tx.Commit(ctx)
//
// The savepoint of a call without a result, or of a repeat, stays until the transaction ends. A
// transaction with hundreds of keys should use NoSavepoint, because PostgreSQL slows down for all clients.
package pgxidem

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/internal/keytable"
)

// Options are the settings of [New].
type Options struct {
	// Table is the name of the table: 1 to 63 ASCII letters, digits and underscores. A schema and a
	// dot may be before it. Default "pawl_idem".
	Table string
	// Tx are the settings of each call, see [idem.Tx.With].
	Tx idem.TxOptions
}

// Store is a table of keys. A Store is safe for concurrent use.
type Store struct {
	table keytable.Table
	opts  idem.TxOptions
}

// New returns the table of keys of a database. Nothing is asked yet. Nil opts are the defaults.
func New(opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	table, err := keytable.New(dialect.PostgreSQL, opts.Table)
	if err := errors.Join(err, opts.Tx.Validate()); err != nil {
		return nil, fmt.Errorf("pgxidem: %w", err)
	}
	return &Store{table, opts.Tx}, nil
}

// Schema returns the statements that make the table if it is missing. Put them into your migrations.
func (s *Store) Schema() []string {
	all, _ := s.table.Schema() //nolint:errcheck // New has asked
	return all
}

// Migrate makes the table if it is missing. Several programs may do so at the same time. A table
// of another format or shape is refused with an error that matches [pawl.ErrMismatch], and is left as it is.
func (s *Store) Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	return failed(s.table.Migrate(ctx, db))
}

// Check does what Migrate does, but makes nothing: its error matches [dialect.ErrMissing] if
// the table is missing.
func (s *Store) Check(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	return failed(s.table.Check(ctx, db))
}

// Sweep deletes keys that have expired, at most limit of them, in a transaction of its own. Sweep returns how
// many it deleted: fewer than limit says that none is left. Limit is 1 to 10,000. Sweep skips keys on
// which a transaction works.
func (s *Store) Sweep(ctx context.Context, pool *pgxpool.Pool, limit int) (int, error) {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	n, err := s.table.Sweep(ctx, db, limit)
	return n, failed(err)
}

// In returns the caller's transaction as [idem.Do] and [idem.Run] need it. In sends nothing.
func (s *Store) In(tx pgx.Tx) idem.Tx { return idem.NewTx(&keys{s.table, tx}, s.opts) }

func failed(err error) error {
	if err != nil {
		return fmt.Errorf("pgxidem: %w", err)
	}
	return nil
}
