// Package sqlidem keeps the keys of package idem in a table of a SQL database: PostgreSQL, MySQL and
// MariaDB, SQLite. The transactions are those of database/sql, or those of pgx by package pgxtx.
//
// # Use
//
// Call [Store.Migrate] when the program starts. Then, in each transaction:
//
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil { ... }
//	defer tx.Rollback()
//	payment, replayed, err := idem.Do(ctx, store.In(tx), key, fingerprint, func(ctx context.Context) (Payment, error) {
//		return pay(ctx, tx, order) // writes in tx only
//	})
//	if err != nil {
//		return err // dialect.Again(err): repeat the transaction
//	}
//	return tx.Commit()
//
// Call [Store.Sweep] from time to time: it deletes keys that have expired.
//
// # What is promised
//
//   - One insert decides which transaction has the key. The insert is right at every isolation level.
//   - While a transaction works on a key, another one waits, or is told so with NoWait. The wait ends with
//     [idem.ErrInFlight] when the database gives it up: after lock_timeout on PostgreSQL,
//     innodb_lock_wait_timeout on MySQL, busy_timeout on SQLite. On PostgreSQL the transaction has then failed.
//     NoWait leaves it usable.
//   - On PostgreSQL from REPEATABLE READ on, a repeat fails with a serialization failure (40001) if the
//     first transaction was committed after this one had begun. Repeat the transaction.
//   - On MySQL and MariaDB a rollback while several transactions wait for the key may be a deadlock for
//     all but one of them. Repeat those transactions.
//   - On SQLite any other writer counts as in flight, because the file has one writer.
//
// A server of MySQL or MariaDB that becomes read-only at a switchover keeps its connections. Call SetConnMaxLifetime of your *sql.DB with 30 s or
// so: else each claim fails there.
//
// # Cost
//
// A first call sends 3 statements beside those of the function: the claim, the savepoint and the
// result. [idem.Run] saves the last, and NoSavepoint saves the second. A repeat sends 1, and 2 on MySQL and
// MariaDB. A pgx.Tx sends the savepoint together with the claim. So there a first call costs 2 round trips, Run costs 1, and
// a repeat costs 1. With go-sql-driver, set InterpolateParams: else each statement is prepared first.
//
// On PostgreSQL each savepoint stays until the transaction ends. A pgx.Tx releases the savepoints of calls with a result, and sets
// a savepoint for a repeat too. A
// transaction with hundreds of keys should use NoSavepoint, because PostgreSQL slows down for all clients.
//
// # What is not promised
//
// NoWait is a lock of the database on PostgreSQL, and a wait of no time on MariaDB. MySQL knows
// neither, so there NoWait waits for innodb_lock_wait_timeout of the session. A database that loses commits,
// in a failover or by a setting, loses the key together with the writes.
package sqlidem

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

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
func New(d dialect.Dialect, opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	table, err := keytable.New(d, opts.Table)
	if err := errors.Join(err, opts.Tx.Validate()); err != nil {
		return nil, fmt.Errorf("sqlidem: %w", err)
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
func (s *Store) Migrate(ctx context.Context, db *sql.DB) error {
	return failed(s.table.Migrate(ctx, db))
}

// Check does what Migrate does, but makes nothing: its error matches [dialect.ErrMissing] if
// the table is missing.
func (s *Store) Check(ctx context.Context, db *sql.DB) error { return failed(s.table.Check(ctx, db)) }

// Sweep deletes keys that have expired, at most limit of them, in a transaction of its own. Sweep returns how
// many it deleted: fewer than limit says that none is left. Limit is 1 to 10,000. Sweep skips keys on
// which a transaction works. Sweep needs PostgreSQL 9.5, MariaDB 10.6 or MySQL 8.
func (s *Store) Sweep(ctx context.Context, db *sql.DB, limit int) (int, error) {
	n, err := s.table.Sweep(ctx, db, limit)
	return n, failed(err)
}

// Done reports whether the operation of a key was done: the transaction is committed, and the key has not expired. Done waits for no
// transaction, and needs none: db may be a *sql.DB. The error matches [pawl.ErrInvalid] if the key is bad.
func (s *Store) Done(ctx context.Context, db dialect.DB, key idem.Key) (bool, error) {
	err := key.Validate()
	var n int
	if err == nil {
		err = s.table.Done(key.Name()).Scan(ctx, db, &n)
	}
	return n > 0, failed(err)
}

// In returns the caller's transaction as [idem.Do] and [idem.Run] need it. In sends nothing. The tx is a
// *sql.Tx, a pgx.Tx by package pgxtx, or a *sql.Conn in which the caller began a transaction. A *sql.DB is
// refused by the call, with an error that matches [pawl.ErrInvalid].
func (s *Store) In(tx dialect.DB) idem.Tx { return idem.NewTx(&keys{s.table, tx}, s.opts) }

func failed(err error) error {
	if err != nil {
		return fmt.Errorf("sqlidem: %w", err)
	}
	return nil
}
