package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence"
)

// ErrConflict says that a row is no longer at the version that was read:
// somebody wrote it meanwhile. Read it again, decide again, write again.
var ErrConflict = errors.New("the row was changed meanwhile")

// Table is a table of your own whose rows are written under guard, each by one
// UPDATE. A Table is a description and safe for concurrent use.
//
// A missing row cannot be guarded: insert it first, or use [Marks].
// Nor can a row that was deleted and inserted again. Updates other than
// "column = value" belong in a transaction after Check of [Marks].
type Table struct {
	// Dialect of the database. Required.
	Dialect Dialect
	// Name of the table, with its schema if it is not in the usual one.
	// Required.
	Name string
	// Token is the column that has the newest token of the row, a bigint NOT NULL DEFAULT 0. A
	// row where it is NULL refuses every token. Default "fence".
	Token string
	// Version is the column that counts the writes of the row, a bigint NOT
	// NULL. Default "version".
	Version string
}

func (t Table) token() string {
	if t.Token == "" {
		return "fence"
	}
	return t.Token
}

func (t Table) version() string {
	if t.Version == "" {
		return "version"
	}
	return t.Version
}

// UpdateIfNotOlder sets columns of a row, and its token, if no newer token has
// written it, in one statement. Key are the columns that name one row, as those
// of its primary key; set may be empty. The error of UpdateIfNotOlder matches [fence.ErrStale] when
// the token is refused, and sql.ErrNoRows when there is no such row.
func (t Table) UpdateIfNotOlder(ctx context.Context, db DB, key Columns, token fence.Token, set Columns) error {
	s, err := t.ifNotOlder(key, token, set)
	if err != nil {
		return err
	}
	rows, _, err := run(ctx, t.Dialect, s, db)
	if err == nil && rows != 1 {
		// MySQL may say 0 when the row already had all values. A token never
		// goes back, so the row was found if it still has this token.
		var seen int64
		seen, err = t.look(ctx, db, key, rows, t.token())
		if same := t.Dialect == MySQL && seen == int64(token); err == nil && !same {
			err = fence.Stale(t.Name, token)
		}
	}
	return t.failed(err)
}

// UpdateIfVersion sets columns of a row if the row still is at this version. UpdateIfVersion counts the
// version up, in one statement, and returns the new version. Key are the columns that name one
// row. The error of UpdateIfVersion matches [ErrConflict] when the version is another, and sql.ErrNoRows when
// there is no such row. This is the optimistic lock: it needs no lock and no token, and the
// first writer wins. An update whose reply was lost has an unknown outcome.
func (t Table) UpdateIfVersion(ctx context.Context, db DB, key Columns, version int64, set Columns) (int64, error) {
	s := t.ifVersion(key, version, set)
	rows, _, err := run(ctx, t.Dialect, s, db)
	if err == nil && rows != 1 {
		var is int64
		if is, err = t.look(ctx, db, key, rows, t.version()); err == nil {
			err = fmt.Errorf("%w: it is at version %d, not %d", ErrConflict, is, version)
		}
	}
	if err != nil {
		return 0, t.failed(err)
	}
	return version + 1, nil
}

// NotOlderStatement returns the statement of UpdateIfNotOlder. Clients of PostgreSQL or SQLite
// that are not database/sql, such as pgx, run it. One affected row was written; no affected row
// means that the token is stale or the row is missing. On MySQL the affected rows do not say
// that: use UpdateIfNotOlder.
func (t Table) NotOlderStatement(key Columns, token fence.Token, set Columns) (query string, args []any, err error) {
	s, err := t.ifNotOlder(key, token, set)
	if err != nil {
		return "", nil, err
	}
	return s.Build()
}

// VersionStatement returns the statement of UpdateIfVersion. Clients that are not database/sql
// run it. One affected row was written; no affected row means that the version is another or
// the row is missing.
func (t Table) VersionStatement(key Columns, version int64, set Columns) (query string, args []any, err error) {
	return t.ifVersion(key, version, set).Build()
}

func (t Table) ifNotOlder(key Columns, token fence.Token, set Columns) (*dialect.Statement, error) {
	if err := token.Validate(); err != nil {
		return nil, err
	}
	number := int64(token)
	s := t.update(key, set, t.token()).Value(number)
	s.Add(" WHERE ").Columns(key, " AND ").Add(" AND ").Name(t.token()).Add(" <= ").Value(number)
	return s, s.Err()
}

func (t Table) ifVersion(key Columns, version int64, set Columns) *dialect.Statement {
	return t.update(key, set, t.version()).Name(t.version()).Add(" + 1 WHERE ").
		Columns(key, " AND ").Add(" AND ").Name(t.version()).Add(" = ").Value(version)
}

// update begins the statement, up to the new value of the guarding column.
func (t Table) update(key, set Columns, guarding string) *dialect.Statement {
	s := dialect.New(t.Dialect)
	twice := false
	for name := range set { // most databases take upper case for lower case
		twice = twice || strings.EqualFold(name, guarding)
	}
	switch {
	case s.Err() != nil:
	case len(key) == 0:
		s.Fail(errors.New("sqlfence: no key: every row would be written"))
	case twice:
		s.Fail(fmt.Errorf("%w: %q guards the row and is not to be set", ErrName, guarding))
	}
	s.Add("UPDATE ").Table(t.Name).Add(" SET ")
	if len(set) > 0 {
		s.Columns(set, ", ").Add(", ")
	}
	return s.Name(guarding).Add(" = ")
}

// look returns the guarding column of a row, when the number of affected rows
// is not 1. MySQL reads the present row, as the UPDATE did, not the
// transaction's first snapshot.
func (t Table) look(ctx context.Context, db DB, key Columns, rows int64, guarding string) (is int64, err error) {
	if rows > 1 {
		return 0, fmt.Errorf("the key named %d rows and all of them were written", rows)
	}
	s := dialect.New(t.Dialect).Add("SELECT ").Name(guarding).Add(" FROM ").Table(t.Name).Add(" WHERE ").Columns(key, " AND ")
	if t.Dialect == MySQL {
		s.Add(" FOR UPDATE")
	}
	err = s.Scan(ctx, db, &is)
	return is, err
}

func (t Table) failed(err error) error {
	if err != nil {
		return fmt.Errorf("update %s: %w", t.Name, err)
	}
	return nil
}
