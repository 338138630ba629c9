package halfmsg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// BarrierOptions are the settings of [NewBarrier].
type BarrierOptions struct {
	// Table is the name of the table: up to 63 ASCII letters, digits and underscores. A schema and a dot may be before
	// it. Default "pawl_barrier".
	Table string
	// Wait is how long an answer waits for an open transaction before it is [Open]: 10 ms to 1 min. Default 2 s.
	// Let Wait be shorter than Options.Timeout of the coordinator. Else the coordinator takes an open transaction for a producer that does not answer.
	Wait time.Duration
	// Retention is how long rows stay in the table: 24 h to 10 years. Default 30 days. No transaction may begin
	// later than that after its Prepare.
	Retention time.Duration
}

// Barrier is a table in the database of a producer. A Barrier is safe for concurrent use.
type Barrier struct {
	dialect dialect.Dialect
	table   dialect.Table
	opts    BarrierOptions
}

// NewBarrier returns the barrier of a database. Nothing is asked yet. Nil opts are the defaults.
func NewBarrier(d dialect.Dialect, opts *BarrierOptions) (*Barrier, error) {
	o := BarrierOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Table == "" {
		o.Table = "pawl_barrier"
	}
	const day = 24 * time.Hour
	if err := errors.Join(span("BarrierOptions.Wait", &o.Wait, 2*time.Second, 10*time.Millisecond, time.Minute),
		span("BarrierOptions.Retention", &o.Retention, 30*day, day, 3653*day)); err != nil {
		return nil, failed("barrier", err)
	}
	b := &Barrier{dialect: d, opts: o, table: dialect.Table{Name: o.Table, Columns: []dialect.Column{
		{Name: "id", Type: dialect.Text, Key: true},
		{Name: "outcome", Type: dialect.Integer},
		{Name: "owner", Type: dialect.Integer},
		{Name: "created", Type: dialect.Integer, Index: true}, // in seconds since 1970
	}}}
	if _, err := b.table.Schema(d); err != nil {
		return nil, failed("barrier", fmt.Errorf("%w: BarrierOptions.Table or dialect: %w", pawl.ErrInvalid, err))
	}
	return b, nil
}

// span sets a default, and returns an error that names a field out of its range.
func span(name string, value *time.Duration, usual, least, most time.Duration) error {
	if *value == 0 {
		*value = usual
	}
	if *value < least || *value > most {
		return fmt.Errorf("%w: %s is %v: %v to %v are allowed", pawl.ErrInvalid, name, *value, least, most)
	}
	return nil
}

func failed(what string, err error) error {
	if err != nil {
		return fmt.Errorf("halfmsg: %s: %w", what, err)
	}
	return nil
}

// Schema returns the statements that make the table if it is missing. Put them into your migrations.
func (b *Barrier) Schema() []string {
	s, _ := b.table.Schema(b.dialect) //nolint:errcheck // NewBarrier has asked
	return strings.Split(s, ";\n")
}

// Migrate makes the table if it is missing. A table of another shape is refused with an error that matches [pawl.ErrMismatch]. The
// index may be missing as at [Coordinator.Migrate].
func (b *Barrier) Migrate(ctx context.Context, db *sql.DB) error {
	return failed("migrate the barrier", migrate(ctx, db, b.dialect, b.table, b.Schema()))
}

func migrate(ctx context.Context, db *sql.DB, d dialect.Dialect, table dialect.Table, schema []string) error {
	err := dialect.Migrate(ctx, db, schema, func(ctx context.Context) error { return table.Check(ctx, db, d) })
	if errors.Is(err, dialect.ErrShape) {
		err = fmt.Errorf("%w: %w", pawl.ErrMismatch, err)
	}
	return err
}

// Pass puts the row of a half message into the barrier, in the transaction that belongs to the half message. Pass neither begins nor
// ends the transaction. After an error the caller has to roll back. The error matches [ErrAborted] if the coordinator has asked
// before, and [ErrRepeated] if an earlier transaction with the same ID was committed. Call Pass first in
// the transaction: a question that comes before Pass aborts the half message.
func (b *Barrier) Pass(ctx context.Context, tx dialect.DB, id string) error {
	owner := 1 + rand.Int64N(math.MaxInt64)
	err := b.insert(ctx, tx, id, row{Committed, owner})
	if err == nil {
		var is row
		if is, err = b.read(ctx, tx, id); err == nil {
			err = is.pass(owner)
		}
	}
	return failed("pass the barrier", err)
}

// insert waits while another transaction has the row.
func (b *Barrier) insert(ctx context.Context, db dialect.DB, id string, r row) error {
	if len(id) < 1 || len(id) > 255 {
		return fmt.Errorf("%w: id has %d bytes: 1 to 255 are allowed", pawl.ErrInvalid, len(id))
	}
	s := dialect.New(b.dialect).Add("INSERT INTO ").Table(b.table.Name).Add(" (id, outcome, owner, created) VALUES (").Value(id).Add(", ").
		Value(int(r.outcome)).Add(", ").Value(r.owner).Add(", ", dialect.Seconds(b.dialect), ")")
	if b.dialect == dialect.MySQL {
		s.Add(" ON DUPLICATE KEY UPDATE id = id")
	} else {
		s.Add(" ON CONFLICT DO NOTHING")
	}
	_, err := s.Exec(ctx, db)
	return err
}

func (b *Barrier) read(ctx context.Context, db dialect.DB, id string) (r row, err error) {
	s := dialect.New(b.dialect).Add("SELECT outcome, owner FROM ").Table(b.table.Name).Add(" WHERE id = ").Value(id)
	if b.dialect == dialect.MySQL {
		s.Add(" FOR UPDATE") // because the snapshot of the transaction may be older than the row
	}
	err = s.Scan(ctx, db, &r.outcome, &r.owner)
	return r, err
}

// Answer says what became of the transaction of a half message. The coordinator asks, see [Coordinator.Run]. An answer other
// than [Open] is for good: a transaction that was not committed can never be. Age is the time since Prepare.
//
// The error matches [ErrTooOld] if the row of the transaction may be cleaned already. After every error and after
// Open, the coordinator asks again.
func (b *Barrier) Answer(ctx context.Context, db *sql.DB, id string, age time.Duration) (Outcome, error) {
	if age >= b.opts.Retention-b.opts.Retention/10 {
		return Open, failed("answer", fmt.Errorf("%w: %v, and rows stay for %v", ErrTooOld, age, b.opts.Retention))
	}
	waiting, stop := context.WithTimeout(ctx, b.opts.Wait)
	defer stop()
	// A server may go on with an insert whose client has given up. If that insert wins, the next answer says so.
	err := b.insert(waiting, db, id, row{RolledBack, 1 + rand.Int64N(math.MaxInt64)})
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return Open, failed("answer", err)
	case waiting.Err() != nil || dialect.Again(err) || dialect.LockTimeout(err) || dialect.OutOfTime(err):
		return Open, nil
	default:
		return Open, failed("answer", err)
	}
	is, err := b.read(ctx, db, id)
	if err != nil {
		return Open, failed("answer", err)
	}
	return is.outcome, nil
}

// mostRemoved is how many rows a DELETE removes at most.
const mostRemoved = 1000

// Clean deletes the rows that are older than the retention, up to 1,000 by a statement, and returns how many. Call Clean now and then. After an
// error the rows that Clean counts are deleted.
func (b *Barrier) Clean(ctx context.Context, db *sql.DB) (n int, err error) {
	var last aged // a trigger may keep rows
	for {
		old, err := b.old(ctx, db, last)
		if err != nil || len(old) == 0 {
			return n, failed("clean the barrier", err)
		}
		last = old[len(old)-1]
		keys := make([]string, len(old))
		for i, r := range old {
			keys[i] = r.id
		}
		result, err := dialect.DeleteByKey(dialect.New(b.dialect), b.table.Name, "id", keys).Exec(ctx, db)
		var deleted int64
		if err == nil {
			deleted, err = result.RowsAffected()
		}
		if n += int(deleted); err != nil || len(old) < mostRemoved {
			return n, failed("clean the barrier", err)
		}
	}
}

// aged is a row by its age, and among rows of the same second by its ID.
type aged struct {
	created int64
	id      string
}

// old reads rows that are older than the retention, in the order of their ages, behind a row.
func (b *Barrier) old(ctx context.Context, db *sql.DB, after aged) (all []aged, err error) {
	s := dialect.New(b.dialect).Add("SELECT created, id FROM ").Table(b.table.Name).Add(" WHERE created < ", dialect.Seconds(b.dialect), " - ").
		Value(int64(b.opts.Retention / time.Second)).Add(" AND created >= ").Value(after.created).Add(" AND (created > ").Value(after.created).
		Add(" OR id > ").Value(after.id).Add(") ORDER BY created, id LIMIT ").Value(mostRemoved)
	query, args, err := s.Build()
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r aged
		if err := rows.Scan(&r.created, &r.id); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}
