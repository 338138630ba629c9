package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// Columns are names of columns and their values. Values are sent as parameters.
type Columns = dialect.Columns

// ErrNotFound says that there is no row of this key. Nothing was written.
var ErrNotFound = errors.New("no such row")

// ErrRefused says that the database shows a row that may be moved, and moves no row. A trigger may keep the row as it is, or row security
// may let this user read the row only. Nothing was written.
var ErrRefused = errors.New("the database does not move the row")

// mostTries is how often a row is tried that other callers may move meanwhile. A try fails only if another caller is faster, or if the
// database refuses.
const mostTries = 100

// Table is a table of your own with a column for the state. A Table is a description and safe for
// concurrent use.
type Table[S State] struct {
	// Dialect of the database. Required.
	Dialect dialect.Dialect
	// Name of the table, with its schema if it is not in the usual one. Required.
	Name string
	// Machine has the states. Required.
	Machine *Machine[S]
	// State is the column of the state, NOT NULL. The column holds text or an enum for states of text,
	// and an integer else. Default "state".
	State string
	// Version is a column that counts the transitions of the row, a bigint NOT NULL. Each
	// transition counts it up. ApplyAt needs it. Default: there is none.
	Version string
}

// Result is what became of a row.
type Result[S State] struct {
	// Outcome says whether this call moved the row.
	Outcome Outcome
	// State is that of the row: the requested state, or the later one if the request is Passed.
	State S
	// Version is that of the row after ApplyAt. Apply does not ask for it.
	Version int64
}

// Apply moves a row to a state, by any declared transition, and sets further columns with it.
// Key are the columns that name one row, as those of its primary key; set may be empty. Apply
// sends one statement, and a second one when nothing was moved. The q is a transaction, or
// a *sql.DB; Apply neither begins nor ends a transaction.
//
// The errors match [ErrIllegal], [ErrNotFound], [ErrUndeclared], [ErrCycle] or [ErrRefused], or pawl.ErrInvalid
// for a mistake in the table or the columns. With any of these nothing was written.
func (t Table[S]) Apply(ctx context.Context, q dialect.DB, key Columns, to S, set Columns) (Result[S], error) {
	err := t.check(key, to, set)
	if err == nil && t.Machine.Cyclic(to) {
		err = fmt.Errorf("%w: %v", ErrCycle, to)
	}
	if err != nil {
		return Result[S]{}, t.failed(to, err)
	}
	for range mostTries {
		moved, err := t.update(ctx, q, key, to, set, nil)
		if err != nil {
			return Result[S]{}, t.failed(to, err)
		}
		if moved {
			return Result[S]{Outcome: Moved, State: to}, nil
		}
		is, _, err := t.look(ctx, q, key)
		if err != nil {
			return Result[S]{}, t.failed(to, err)
		}
		switch outcome, err := t.Machine.Decide(is, to); {
		case err != nil:
			return Result[S]{}, t.failed(to, err)
		case outcome != Moved:
			return Result[S]{Outcome: outcome, State: is}, nil
		}
		// Another caller moved the row meanwhile, to where the transition is allowed.
	}
	return Result[S]{}, t.failed(to, ErrRefused)
}

// ApplyAt moves a row to a state if the row is at a version, which it counts up, and sets further
// columns with it. ApplyAt is for machines with cycles, and for callers that decided by what they
// read. A row that is in the requested state, at this version or the next, is Repeated: the
// transition at this version has happened. Any other version is an error that matches
// pawl.ErrConflict: read the row again, and decide again. ApplyAt never says Passed. The other
// errors are those of Apply.
func (t Table[S]) ApplyAt(ctx context.Context, q dialect.DB, key Columns, to S, version int64, set Columns) (Result[S], error) {
	err := t.check(key, to, set)
	if err == nil && t.Version == "" {
		err = fmt.Errorf("%w: Table.Version is empty: ApplyAt needs a column", pawl.ErrInvalid)
	}
	for tries := 0; err == nil; tries++ {
		if tries == mostTries {
			err = ErrRefused
			break
		}
		var moved bool
		if moved, err = t.update(ctx, q, key, to, set, &version); err != nil {
			break
		}
		if moved {
			return Result[S]{Outcome: Moved, State: to, Version: version + 1}, nil
		}
		var is S
		var at int64
		if is, at, err = t.look(ctx, q, key); err != nil {
			break
		}
		var outcome Outcome
		if outcome, err = t.Machine.decideAt(is, to, at, version); err == nil && outcome != Moved {
			return Result[S]{Outcome: outcome, State: is, Version: at}, nil
		}
		// Another program set the version back: then try again.
	}
	return Result[S]{}, t.failed(to, err)
}

// decideAt is [Machine.Decide] for a row at a version and a request at a version.
func (m *Machine[S]) decideAt(is, to S, at, version int64) (Outcome, error) {
	outcome, err := m.Decide(is, to)
	switch {
	case errors.Is(err, ErrUndeclared):
		return 0, err
	case is == to && (at == version || at == version+1):
		return Repeated, nil
	case at != version:
		return 0, fmt.Errorf("%w: the row is %v at version %d, not at %d", pawl.ErrConflict, is, at, version)
	case err == nil && outcome == Moved:
		return Moved, nil
	}
	return 0, &IllegalError[S]{From: is, To: to}
}

// check finds mistakes before anything is asked.
func (t Table[S]) check(key Columns, to S, set Columns) error {
	switch {
	case t.Machine == nil:
		return fmt.Errorf("%w: Table.Machine is nil", pawl.ErrInvalid)
	case len(key) == 0:
		return fmt.Errorf("%w: the key is empty: every row would be written", pawl.ErrInvalid)
	}
	for _, columns := range []Columns{key, set} {
		for name := range columns { // most databases take upper case for lower case
			if strings.EqualFold(name, t.state()) || t.Version != "" && strings.EqualFold(name, t.Version) {
				return fmt.Errorf("%w: column %q guards the row, and is neither key nor to be set", pawl.ErrInvalid, name)
			}
		}
	}
	if _, err := t.Machine.Decide(to, to); err != nil {
		return err
	}
	if err := t.statement(key, to, set, nil).Err(); err != nil {
		return fmt.Errorf("%w: %w", pawl.ErrInvalid, err)
	}
	return nil
}

func (t Table[S]) state() string {
	if t.State == "" {
		return "state"
	}
	return t.State
}

func (t Table[S]) statement(key Columns, to S, set Columns, version *int64) *dialect.Statement {
	s := dialect.New(t.Dialect).Add("UPDATE ").Table(t.Name).Add(" SET ").Name(t.state()).Add(" = ").Value(plain(to))
	if t.Version != "" {
		s.Add(", ").Name(t.Version).Add(" = ").Name(t.Version).Add(" + 1")
	}
	if len(set) > 0 {
		s.Add(", ").Columns(set, ", ")
	}
	s.Add(" WHERE ").Columns(key, " AND ").Add(" AND ").Name(t.state())
	between := " IN ("
	for _, from := range t.Machine.from[to] {
		s.Add(between).Value(plain(from))
		between = ", "
	}
	s.Add(")")
	if version != nil {
		s.Add(" AND ").Name(t.Version).Add(" = ").Value(*version)
	}
	return s
}

// update moves the row if its state, and its version if that is given, are as they should be. On
// MySQL affected rows are changed rows or found rows, by the connection's settings. Both are
// the same here, because no transition leads from a state to itself.
func (t Table[S]) update(ctx context.Context, q dialect.DB, key Columns, to S, set Columns, version *int64) (moved bool, err error) {
	if len(t.Machine.from[to]) == 0 {
		return false, nil // the first state, to which nothing leads
	}
	result, err := t.statement(key, to, set, version).Exec(ctx, q)
	if err != nil {
		return false, err
	}
	rows, err := result.RowsAffected()
	if err == nil && rows > 1 {
		err = fmt.Errorf("the key names %d rows, and all of them were moved", rows)
	}
	return rows == 1, err
}

// look returns the state and the version of a row. MySQL reads the present row, as the UPDATE
// did, and not the transaction's first snapshot.
func (t Table[S]) look(ctx context.Context, q dialect.DB, key Columns) (is S, version int64, err error) {
	s := dialect.New(t.Dialect).Add("SELECT ").Name(t.state()).Add(", ")
	if t.Version == "" {
		s.Add("0")
	} else {
		s.Name(t.Version)
	}
	s.Add(" FROM ").Table(t.Name).Add(" WHERE ").Columns(key, " AND ")
	if t.Dialect == dialect.MySQL {
		s.Add(" FOR UPDATE")
	}
	var found sql.Null[string]
	switch err = s.Scan(ctx, q, &found, &version); {
	case errors.Is(err, sql.ErrNoRows):
		return is, 0, ErrNotFound
	case err != nil:
		return is, 0, err
	case !found.Valid:
		return is, 0, fmt.Errorf("%w: NULL", ErrUndeclared)
	}
	for _, s := range t.Machine.states {
		if stored(s) == found.V {
			return s, version, nil
		}
	}
	return is, 0, fmt.Errorf("%w: %.80q", ErrUndeclared, found.V)
}

func (t Table[S]) failed(to S, err error) error {
	return fmt.Errorf("move a row of %s to %v: %w", t.Name, to, err)
}

// plain is the state as a driver takes it: text or an int64, never the String method.
func plain[S State](s S) any {
	v := reflect.ValueOf(s)
	if v.Kind() == reflect.String {
		return v.String()
	}
	return v.Int()
}
