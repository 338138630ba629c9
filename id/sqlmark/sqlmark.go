// Package sqlmark keeps the marks and counters of package id in a table of a SQL database:
// PostgreSQL, MySQL, MariaDB or SQLite, through database/sql.
//
// # What is promised
//
//   - A number counts only when its COMMIT was acknowledged by a database that flushes to disk.
//     Another database is refused with the name of the setting, at first use. Servers
//     check again with each write, in the same statement.
//   - Refused are PostgreSQL with fsync off or an unlogged table, and SQLite in memory or without
//     a journal on disk. MySQL and MariaDB are refused with autocommit off, with
//     innodb_flush_log_at_trx_commit other than 1, or with a binary log and sync_binlog other than 1.
//   - These writes flush also where the caller's session has turned the flush off, by
//     synchronous_commit in PostgreSQL or synchronous in SQLite.
//   - A replica, or a server or file that takes no writes, is [pawl.ErrUnavailable], also for
//     reads: its marks may be old. A replica of MySQL or MariaDB is known by read_only = 1 only: set it there.
//   - A mark is raised by one UPDATE at the version that was read, and a counter counts by
//     one UPDATE. No isolation level and no pooler comes between. Deadlocks and serialization
//     failures are repeated.
//   - A table of another shape is refused before anything is written.
//
// # What is not promised
//
// A database that is restored from a backup, or whose replica takes over without the last
// commits, repeats numbers: pawl cannot see that. Use a synchronous replica, and raise the
// marks after a restore. A disk that acknowledges a flush and loses the data is no disk. On MySQL
// the table must not have triggers that call LAST_INSERT_ID.
package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
)

// Options are the settings of [New].
type Options struct {
	// Table is the name of the table: 1 to 63 ASCII letters, digits and underscores. A schema and
	// a dot may be before it. Default "pawl_marks".
	Table string
}

// Registers are the marks and counters in one table. The type implements [id.Registers] and is safe
// for concurrent use.
type Registers struct {
	db      *sql.DB
	dialect dialect.Dialect
	table   dialect.Table
	turn    chan struct{} // held by the call that looks at the table first
	ready   atomic.Bool
}

// New returns the marks and counters in a table of db. Nothing is asked yet. Nil opts are the
// defaults. The db stays the caller's.
func New(db *sql.DB, d dialect.Dialect, opts *Options) (*Registers, error) {
	name := "pawl_marks"
	if opts != nil && opts.Table != "" {
		name = opts.Table
	}
	r := &Registers{db: db, dialect: d, turn: make(chan struct{}, 1), table: dialect.Table{Name: name, Columns: []dialect.Column{
		{Name: "name", Type: dialect.Text, Key: true}, {Name: "n", Type: dialect.Integer}, {Name: "version", Type: dialect.Integer}}}}
	if _, err := r.table.Schema(d); err != nil {
		return nil, fmt.Errorf("%w: Options.Table or dialect: %w", pawl.ErrInvalid, err)
	}
	return r, nil
}

// Schema returns the statement that creates the table if it is missing. Put it into your migrations.
func (r *Registers) Schema() string {
	query, _ := r.table.Schema(r.dialect) //nolint:errcheck // New has asked
	return query
}

// Create creates the table if it is missing, and checks its shape and that the database
// flushes. Several programs may do so at the same time.
func (r *Registers) Create(ctx context.Context) error {
	err := r.flushes(ctx, false)
	if err == nil {
		err = r.table.Create(ctx, r.db, r.dialect)
	}
	if err == nil {
		err = r.flushes(ctx, true)
	}
	if err != nil {
		return r.failed(ctx, "create", err)
	}
	r.ready.Store(true)
	return nil
}

// check does what Create does but does not create, once, and again while other transactions are in the way.
func (r *Registers) check(ctx context.Context) error {
	if r.ready.Load() {
		return nil
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if r.ready.Load() {
		return nil
	}
	return dialect.Repeat(ctx, dialect.Again, func() error {
		if err := r.table.Check(ctx, r.db, r.dialect); err != nil {
			return err
		}
		if err := r.flushes(ctx, true); err != nil {
			return err
		}
		r.ready.Store(true)
		return nil
	})
}

// Mark implements [id.Registers].
func (r *Registers) Mark(name string) id.Mark {
	return mark{register{r, "mark/" + name, id.CheckName(name)}}
}

// Counter implements [id.Registers].
func (r *Registers) Counter(name string) id.Counter {
	return counter{register{r, "counter/" + name, id.CheckName(name)}}
}

// register is a row of the table.
type register struct {
	*Registers
	key string
	err error // the mistake in its name
}

// do runs f when the table was looked at, and again while other transactions are in the way.
func (r register) do(ctx context.Context, doing string, f func() error) error {
	if r.err != nil {
		return r.err
	}
	err := r.check(ctx)
	if err == nil {
		err = dialect.Repeat(ctx, dialect.Again, f)
	}
	if err != nil {
		return r.failed(ctx, fmt.Sprintf("%s %q", doing, r.key), err)
	}
	return nil
}

// failed gives an error its class. An error of no class comes from the database, and then
// nobody knows whether the statement took effect.
func (r *Registers) failed(ctx context.Context, doing string, err error) error {
	switch {
	case errors.Is(err, dialect.ErrShape):
		err = fmt.Errorf("%w: %w", pawl.ErrMismatch, err)
	case errors.Is(err, dialect.ErrMissing):
		err = fmt.Errorf("%w: %w: Create makes it", pawl.ErrInvalid, err)
	case errors.Is(err, pawl.ErrUnsupported), errors.Is(err, pawl.ErrUnavailable), errors.Is(err, pawl.ErrConflict),
		errors.Is(err, id.ErrExhausted), errors.Is(err, errOthers):
	case ctx.Err() != nil:
		err = errors.Join(context.Cause(ctx), fmt.Errorf("%w: %w", pawl.ErrUnavailable, err))
	default:
		err = fmt.Errorf("%w: %w", pawl.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %s: %w", r.table.Name, doing, err)
}

// errOthers says that a number is none of ours.
var errOthers = errors.New("another program wrote to the table")

type mark struct{ register }

func (m mark) Load(ctx context.Context) (is id.Reading, err error) {
	err = m.do(ctx, "load", func() (err error) { is, err = m.read(ctx); return err })
	return is, err
}

func (m mark) Raise(ctx context.Context, to int64, from id.Reading) (id.Reading, error) {
	if m.err != nil {
		return id.Reading{}, m.err
	}
	if err := id.CheckRaise(to, from); err != nil {
		return id.Reading{}, err
	}
	if err := m.write(ctx, "raise", to, from); err != nil {
		return id.Reading{}, err
	}
	return id.Reading{Value: to, Version: from.Version + 1}, nil
}

// Settle implements [id.Settler].
func (m mark) Settle(ctx context.Context, to int64, from id.Reading) error {
	if m.err != nil {
		return m.err
	}
	if err := id.CheckSettle(to, from); err != nil {
		return err
	}
	return m.write(ctx, "settle", to, from)
}

// write writes the mark if it is still at the version that was read.
func (m mark) write(ctx context.Context, doing string, to int64, from id.Reading) error {
	return m.do(ctx, doing, func() error {
		if from.Version == 0 {
			if err := m.begin(ctx); err != nil {
				return err
			}
		}
		_, done, err := m.update(ctx, "", to, "version", " = ", int64(from.Version))
		if err != nil || done {
			return err
		}
		is, err := m.read(ctx) // or it says why not
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: it is at version %d, not %d", pawl.ErrConflict, is.Version, from.Version)
	})
}

type counter struct{ register }

func (c counter) Add(ctx context.Context, n int64) (last int64, err error) {
	if c.err != nil {
		return 0, c.err
	}
	if err := id.CheckAdd(n); err != nil {
		return 0, err
	}
	err = c.do(ctx, "count", func() (err error) { last, err = c.add(ctx, n); return err })
	if err != nil {
		return 0, err
	}
	return last, nil
}
