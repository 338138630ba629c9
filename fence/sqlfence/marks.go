package sqlfence

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence"
)

// Marks is a table that has the newest token of each protected resource. Marks is
// a description and safe for concurrent use.
//
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil { ... }
//	defer tx.Rollback()
//	if err := marks.Check(ctx, tx, "account/7", lease.Token()); err != nil {
//		return err // fence.ErrStale: another holds the lock by now
//	}
//	... // write whatever the lock protects, in tx
//	return tx.Commit()
//
// A row stays for each resource: delete a row only when no older holder can be
// left. On MySQL the table must not have triggers, which may hide the result of
// a check: the check then fails.
type Marks struct {
	// Dialect of the database. Required.
	Dialect Dialect
	// Table is the name of the table, with its schema if it is not in the usual
	// one. Default "pawl_fences".
	Table string
}

func (m Marks) table() string {
	if m.Table == "" {
		return "pawl_fences"
	}
	return m.Table
}

// Schema returns the statement that creates the table if it is missing. Migrations run it.
func (m Marks) Schema() (string, error) {
	// Names are compared by the byte, because a collation may take two names for one.
	resource, end := "text COLLATE \"C\"", ""
	switch m.Dialect {
	case MySQL:
		resource, end = "varbinary(512)", " ENGINE=InnoDB"
	case SQLite:
		resource, end = "TEXT", " STRICT, WITHOUT ROWID"
	}
	integer := "bigint"
	if m.Dialect == SQLite {
		integer = "INTEGER"
	}
	query, _, err := dialect.New(m.Dialect).Add("CREATE TABLE IF NOT EXISTS ").Table(m.table()).
		Add(" (resource ", resource, " NOT NULL PRIMARY KEY, token ", integer, " NOT NULL)", end).Build()
	return query, err
}

// Create creates the table if it is missing.
func (m Marks) Create(ctx context.Context, db DB) error {
	query, err := m.Schema()
	if err == nil {
		_, err = db.ExecContext(ctx, query)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", m.table(), err)
	}
	return nil
}

// Check lets the token pass if no newer token has passed for the resource, and
// remembers it. Else Check returns an error that matches [fence.ErrStale]. Called
// with a transaction, Check holds the mark until that ends, and protects the writes of
// the transaction; so call Check before any expensive step.
// Called with a *sql.DB, Check is a step of its own, which protects no later
// write.
func (m Marks) Check(ctx context.Context, db DB, resource string, token fence.Token) error {
	s, err := m.statement(resource, token)
	if err != nil {
		return err
	}
	rows, mark, err := run(ctx, m.Dialect, s, db)
	passed, stale := rows == 1, rows == 0
	if m.Dialect == MySQL {
		passed, stale = mark == int64(token), mark > int64(token)
	}
	switch {
	case err != nil:
		return fmt.Errorf("check token in %s: %w", m.table(), err)
	case stale:
		return fence.Stale(resource, token)
	case !passed:
		return fmt.Errorf("check token in %s: a trigger or a proxy hides the result (%d rows, id %d)", m.table(), rows, mark)
	}
	return nil
}

// Statement returns the statement of Check. Clients of PostgreSQL or SQLite that are not
// database/sql, such as pgx, run it. The token has passed if one row was affected, and is stale
// if no row was. On MySQL the affected rows do not say that: use Check.
func (m Marks) Statement(resource string, token fence.Token) (query string, args []any, err error) {
	s, err := m.statement(resource, token)
	if err != nil {
		return "", nil, err
	}
	return s.Build()
}

// statement writes the mark. MySQL counts an existing row that stays
// as it is as 0, 1 or 2 affected rows, by the settings of the connection. So statement
// returns the mark through LAST_INSERT_ID, where the last evaluation counts.
func (m Marks) statement(resource string, token fence.Token) (*dialect.Statement, error) {
	if err := fence.Validate(resource, token); err != nil {
		return nil, err
	}
	number := int64(token)
	s := dialect.New(m.Dialect).Add("INSERT INTO ").Table(m.table()).Add(" (resource, token) VALUES (").Value(resource)
	if m.Dialect == MySQL {
		s.Add(", LAST_INSERT_ID(").Value(number).Add(")) ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token, ").Value(number).Add("))")
	} else {
		s.Add(", ").Value(number).Add(") ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE ").
			Table(m.table()).Add(".token <= excluded.token")
	}
	return s, s.Err()
}

// Guard returns the marks as a [fence.Guard] that checks in a step of its own. Code that takes
// a guard, as package httpfence does, uses it. Code that then writes to the same database
// should call Check again, in its transaction: only that protects.
func (m Marks) Guard(db DB) fence.Guard { return guard{m, db} }

type guard struct {
	marks Marks
	db    DB
}

func (g guard) Check(ctx context.Context, resource string, token fence.Token) error {
	return g.marks.Check(ctx, g.db, resource, token)
}
