package stock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// MaxUnits is how many units one call may take or put.
const MaxUnits = 1 << 53

const (
	maxParts = 1024
	maxName  = 200
)

var (
	// ErrSoldOut says that fewer units are left than wanted. Nothing was taken. errors.As finds a
	// [SoldOutError].
	ErrSoldOut = errors.New("sold out")
	// ErrNotFound says that no units of this name were ever put.
	ErrNotFound = errors.New("no such stock")
)

// SoldOutError says how many units were wanted and how many are left. A SoldOutError matches [ErrSoldOut].
type SoldOutError struct {
	Name         string
	Wanted, Left int64
}

// Error implements error.
func (e *SoldOutError) Error() string {
	return fmt.Sprintf("%v: %d units of %q are wanted, %d are left", ErrSoldOut, e.Wanted, e.Name, e.Left)
}

// Is reports whether the target is [ErrSoldOut].
func (e *SoldOutError) Is(target error) bool { return target == ErrSoldOut } //nolint:errorlint // a sentinel

// Options are the settings of [New].
type Options struct {
	// Table is the name of the table: 1 to 63 ASCII letters, digits and underscores. A schema and
	// a dot may be before it. Default "pawl_stock".
	Table string
	// Parts is over how many rows new units of a name are spread: 1 to 1024. Programs with
	// different numbers may share a table. Default 16.
	Parts int
}

// Table is the stock of all names in one table. A Table is a description and safe for concurrent
// use. Create it with [New].
type Table struct {
	dialect dialect.Dialect
	table   dialect.Table
	parts   int

	estimates *estimates
}

// New returns the stock in a table. Nothing is asked. Nil opts are the defaults. The error of New
// matches pawl.ErrInvalid.
func New(d dialect.Dialect, opts *Options) (*Table, error) {
	o := Options{Table: "pawl_stock", Parts: 16}
	if opts != nil {
		if opts.Table != "" {
			o.Table = opts.Table
		}
		if opts.Parts != 0 {
			o.Parts = opts.Parts
		}
	}
	if o.Parts < 1 || o.Parts > maxParts {
		return nil, fmt.Errorf("%w: Options.Parts is %d: 1 to %d are allowed", pawl.ErrInvalid, o.Parts, maxParts)
	}
	t := &Table{dialect: d, parts: o.Parts, estimates: new(estimates), table: dialect.Table{Name: o.Table, Columns: []dialect.Column{
		{Name: "name", Type: dialect.Text, Key: true}, {Name: "part", Type: dialect.Integer, Key: true}, {Name: "n", Type: dialect.Integer}}}}
	if _, err := t.table.Schema(d); err != nil {
		return nil, fmt.Errorf("%w: Options.Table or dialect: %w", pawl.ErrInvalid, err)
	}
	return t, nil
}

// Schema returns the statement that creates the table if it is missing. Put it into your migrations.
func (t *Table) Schema() string {
	query, _ := t.table.Schema(t.dialect) //nolint:errcheck // New has asked
	return query
}

// Create creates the table if it is missing, and checks its shape. Several programs may do so at
// the same time. A table of another shape is an error that matches pawl.ErrMismatch.
func (t *Table) Create(ctx context.Context, db *sql.DB) error {
	err := t.table.Create(ctx, db, t.dialect)
	if errors.Is(err, dialect.ErrShape) {
		err = fmt.Errorf("%w: %w", pawl.ErrMismatch, err)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", t.table.Name, err)
	}
	return nil
}

// Put adds n units, 1 to MaxUnits, in the caller's transaction: evenly to all parts, or to any
// part if they are few. Put makes all parts if they are missing.
func (t *Table) Put(ctx context.Context, tx dialect.DB, name string, n int64) error {
	err := checkIn(tx, name, n)
	if err == nil {
		err = t.put(ctx, tx, name, n)
		t.estimates.forget(name)
	}
	return t.failed("put", name, n, err)
}

func (t *Table) put(ctx context.Context, tx dialect.DB, name string, n int64) error {
	if n < int64(2*t.parts) {
		if done, err := t.add(ctx, tx, name, n, 0); err != nil || done {
			return err
		}
	}
	return t.write(ctx, tx, name, even(n, t.parts), true)
}

// add adds n units, or takes them if n is negative, to any part that has least units or more. MySQL
// has no UPDATE that returns what the part has then.
func (t *Table) add(ctx context.Context, tx dialect.DB, name string, n, least int64) (done bool, err error) {
	s := dialect.New(t.dialect).Add("UPDATE ").Table(t.table.Name).Add(" SET n = n + ").Value(n).
		Add(" WHERE name = ").Value(name).Add(" AND part = ").Value(rand.Int64N(int64(t.parts))).Add(" AND n >= ").Value(least)
	if t.dialect != dialect.MySQL {
		var is int64
		err := s.Add(" RETURNING n").Scan(ctx, tx, &is)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		t.estimates.set(name, is)
		return err == nil, err
	}
	result, err := s.Exec(ctx, tx)
	if err != nil {
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

// Total returns how many units are left, as q sees the table. Total locks nothing, so
// units that are being taken count until the commit. The q may also be a *sql.DB.
func (t *Table) Total(ctx context.Context, q dialect.DB, name string) (int64, error) {
	var total, parts int64
	err := check(name, 1)
	if err == nil {
		err = dialect.New(t.dialect).Add("SELECT CAST(COALESCE(SUM(n), 0) AS ", map[dialect.Dialect]string{dialect.MySQL: "SIGNED"}[t.dialect]).
			Add(map[dialect.Dialect]string{dialect.PostgreSQL: "bigint", dialect.SQLite: "INTEGER"}[t.dialect], "), COUNT(*) FROM ").
			Table(t.table.Name).Add(" WHERE name = ").Value(name).Scan(ctx, q, &total, &parts)
	}
	if err == nil && parts == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("%s: total of %.80q: %w", t.table.Name, name, err)
	}
	return total, nil
}

// checkIn also refuses a pool, which is no transaction: the locks of a sweep would end before its writes.
func checkIn(tx dialect.DB, name string, n int64) error {
	if err := check(name, n); err != nil {
		return err
	}
	if err := dialect.CheckTx(tx); err != nil {
		return fmt.Errorf("%w: %w", pawl.ErrInvalid, err)
	}
	return nil
}

func check(name string, n int64) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: the name %.80q has %d bytes: 1 to %d bytes of UTF-8 without NUL are allowed", pawl.ErrInvalid, name, len(name), maxName)
	}
	if n < 1 || n > MaxUnits {
		return fmt.Errorf("%w: %d units: 1 to %d are allowed", pawl.ErrInvalid, n, int64(MaxUnits))
	}
	return nil
}

func (t *Table) failed(doing, name string, n int64, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %s %d of %.80q: %w", t.table.Name, doing, n, name, err)
	}
	return nil
}

// write inserts parts or, where they are there, adds to them or sets them, in the order of their
// numbers.
func (t *Table) write(ctx context.Context, tx dialect.DB, name string, parts []amount, add bool) error {
	s := dialect.New(t.dialect).Add("INSERT INTO ").Table(t.table.Name).Add(" (name, part, n) VALUES ")
	for i, p := range parts {
		s.Add([]string{"(", ", ("}[min(i, 1)]).Value(name).Add(", ").Value(p.part).Add(", ").Value(p.n).Add(")")
	}
	is, comes := "n", "VALUES(n)"
	if t.dialect == dialect.MySQL {
		s.Add(" ON DUPLICATE KEY UPDATE n = ")
	} else {
		s.Add(" ON CONFLICT (name, part) DO UPDATE SET n = ")
		comes = "excluded.n"
	}
	if add {
		if t.dialect != dialect.MySQL {
			s.Table(t.table.Name).Add(".")
		}
		s.Add(is, " + ")
	}
	_, err := s.Add(comes).Exec(ctx, tx)
	return err
}
