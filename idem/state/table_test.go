package state_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/state"
	"github.com/pawl-go/pawl/internal/sqltest"
)

type order string

const (
	created   order = "created"
	paid      order = "paid"
	shipped   order = "shipped"
	cancelled order = "cancelled"
	closed    order = "closed"
)

var orders = state.Must(state.New([]order{created, paid, shipped, cancelled, closed},
	state.Transition[order]{From: created, To: paid}, state.Transition[order]{From: paid, To: shipped},
	state.Transition[order]{From: created, To: cancelled}, state.Transition[order]{From: paid, To: cancelled},
	state.Transition[order]{From: shipped, To: closed}, state.Transition[order]{From: cancelled, To: closed}))

const orderColumns = "id bigint PRIMARY KEY, state STATES NOT NULL, note varchar(20), version bigint NOT NULL DEFAULT 1"

func orderTable(t *testing.T, d sqltest.Database, db *sql.DB) state.Table[order] {
	name := create(t, d, db, orderColumns, "created", "paid", "shipped", "cancelled", "closed", "lost")
	return state.Table[order]{Dialect: d.Dialect, Name: name, Machine: orders, Version: "version"}
}

// TestApply takes rows on all kinds of steps, and tells each apart.
func TestApply(t *testing.T) {
	each(t, databases(t), func(t *testing.T, d sqltest.Database, db *sql.DB) {
		table := orderTable(t, d, db)
		d.Run(t, db, "INSERT INTO "+table.Name+" (id, state) VALUES (7, 'created'), (8, 'lost'), (9, 'created')")
		for i, step := range []struct {
			to      order
			outcome state.Outcome
			is      order
		}{
			{created, state.Repeated, created}, {paid, state.Moved, paid}, {paid, state.Repeated, paid}, {shipped, state.Moved, shipped},
			{paid, state.Passed, shipped}, {created, state.Passed, shipped}, {shipped, state.Repeated, shipped}, {cancelled, 0, shipped},
			{closed, state.Moved, closed}, {paid, 0, closed}, {created, state.Passed, closed},
		} {
			result, err := table.Apply(t.Context(), db, state.Columns{"id": 7}, step.to, state.Columns{"note": fmt.Sprint("step ", i)})
			var illegal *state.IllegalError[order]
			switch {
			case step.outcome == 0:
				if !errors.Is(err, state.ErrIllegal) || !errors.As(err, &illegal) || illegal.From != step.is || illegal.To != step.to {
					t.Errorf("step %d: %v", i, err)
				}
			case err != nil || result.Outcome != step.outcome || result.State != step.is:
				t.Errorf("step %d: %+v, %v", i, result, err)
			}
		}
		var note string
		var version int64
		if err := db.QueryRow("SELECT note, version FROM "+table.Name+" WHERE id = 7").Scan(&note, &version); err != nil || note != "step 8" || version != 4 {
			t.Errorf("after 3 moves: %s, version %d, %v", note, version, err)
		}
		if _, err := table.Apply(t.Context(), db, state.Columns{"id": 6}, paid, nil); !errors.Is(err, state.ErrNotFound) {
			t.Error(err)
		}
		if _, err := table.Apply(t.Context(), db, state.Columns{"id": 8}, paid, nil); !errors.Is(err, state.ErrUndeclared) || !strings.Contains(err.Error(), "lost") {
			t.Error(err)
		}
		inTransaction(t, d, db, table)
	})
}

// inTransaction: a rollback takes the step back, and the transaction sees its own step.
func inTransaction(t *testing.T, d sqltest.Database, db *sql.DB, table state.Table[order]) {
	t.Helper()
	for _, commits := range []bool{false, true} {
		tx, err := d.Begin(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []state.Outcome{state.Moved, state.Repeated} {
			if result, err := table.Apply(t.Context(), tx, state.Columns{"id": 9}, paid, nil); err != nil || result.Outcome != want {
				t.Errorf("%+v, %v", result, err)
			}
		}
		end := map[bool]func() error{false: tx.Rollback, true: tx.Commit}[commits]
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if result, err := table.Apply(t.Context(), conn, state.Columns{"id": 9}, paid, nil); err != nil || result.Outcome != state.Repeated {
		t.Errorf("%+v, %v", result, err)
	}
}

// TestApplyAt: on a cycle a late repeat does nothing, though the row may take the step again.
func TestApplyAt(t *testing.T) {
	const active, paused, ended = "active", "paused", "ended"
	m := state.Must(state.New([]string{active, paused, ended}, state.Transition[string]{From: active, To: paused},
		state.Transition[string]{From: paused, To: active}, state.Transition[string]{From: active, To: ended}))
	each(t, databases(t), func(t *testing.T, d sqltest.Database, db *sql.DB) {
		name := create(t, d, db, "id bigint PRIMARY KEY, phase STATES NOT NULL, ver bigint NOT NULL", active, paused, ended)
		d.Run(t, db, "INSERT INTO "+name+" VALUES (1, 'active', 5)")
		table := state.Table[string]{Dialect: d.Dialect, Name: name, Machine: m, State: "phase", Version: "ver"}
		key := state.Columns{"id": 1}
		for i, step := range []struct {
			to      string
			at      int64
			outcome state.Outcome
			is      string
			version int64
			err     error
		}{
			{paused, 5, state.Moved, paused, 6, nil}, {paused, 5, state.Repeated, paused, 6, nil}, {active, 6, state.Moved, active, 7, nil},
			{paused, 5, 0, "", 0, pawl.ErrConflict}, {active, 6, state.Repeated, active, 7, nil}, {active, 7, state.Repeated, active, 7, nil},
			{paused, 8, 0, "", 0, pawl.ErrConflict}, {paused, 7, state.Moved, paused, 8, nil}, {ended, 8, 0, "", 0, state.ErrIllegal},
			{ended, 7, 0, "", 0, pawl.ErrConflict}, {active, 8, state.Moved, active, 9, nil}, {ended, 9, state.Moved, ended, 10, nil},
		} {
			result, err := table.ApplyAt(t.Context(), db, key, step.to, step.at, nil)
			if result != (state.Result[string]{Outcome: step.outcome, State: step.is, Version: step.version}) || !errors.Is(err, step.err) {
				t.Errorf("step %d: %+v, %v", i, result, err)
			}
		}
		if _, err := table.Apply(t.Context(), db, key, active, nil); !errors.Is(err, state.ErrCycle) {
			t.Error(err)
		}
		if result, err := table.Apply(t.Context(), db, key, ended, nil); err != nil || result.Outcome != state.Repeated {
			t.Error(result, err)
		}
		if _, err := table.ApplyAt(t.Context(), db, state.Columns{"id": 2}, active, 1, nil); !errors.Is(err, state.ErrNotFound) {
			t.Error(err)
		}
	})
}

// TestRanks: a message that comes late does not bring a row back.
func TestRanks(t *testing.T) {
	m := state.Must(state.Ranked(0, 99, 100))
	each(t, databases(t), func(t *testing.T, d sqltest.Database, db *sql.DB) {
		name := create(t, d, db, "id bigint PRIMARY KEY, state smallint NOT NULL", "none")
		d.Run(t, db, "INSERT INTO "+name+" VALUES (1, 0), (2, 0), (3, 50)")
		table := state.Table[int]{Dialect: d.Dialect, Name: name, Machine: m}
		for _, step := range []struct {
			id, to  int
			outcome state.Outcome
			is      int
		}{{1, 99, state.Moved, 99}, {1, 99, state.Repeated, 99}, {1, 100, state.Moved, 100}, {2, 100, state.Moved, 100}, {2, 99, state.Passed, 100}, {2, 0, state.Passed, 100}} {
			result, err := table.Apply(t.Context(), db, state.Columns{"id": step.id}, step.to, nil)
			if err != nil || result.Outcome != step.outcome || result.State != step.is {
				t.Errorf("%+v: %+v, %v", step, result, err)
			}
		}
		if _, err := table.Apply(t.Context(), db, state.Columns{"id": 3}, 100, nil); !errors.Is(err, state.ErrUndeclared) {
			t.Error(err)
		}
	})
}

// TestSnapshots: a transaction that has read an old row is told the present state, or that it
// has to be repeated.
func TestSnapshots(t *testing.T) {
	each(t, sqltest.All(t)[:3], func(t *testing.T, d sqltest.Database, db *sql.DB) {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			table := orderTable(t, d, db)
			d.Run(t, db, "INSERT INTO "+table.Name+" (id, state) VALUES (7, 'created')")
			tx, err := d.At(level).Begin(t.Context(), db)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			plain := level != sql.LevelSerializable || d.Dialect != dialect.MySQL // where reading locks
			if is := order(""); plain && dialect.New(d.Dialect).Add("SELECT state FROM "+table.Name+" WHERE id = 7").Scan(t.Context(), tx, &is) != nil {
				t.Fatal("the row is not there")
			}
			if _, err := table.Apply(t.Context(), db, state.Columns{"id": 7}, paid, nil); err != nil {
				t.Fatal(err)
			}
			result, err := table.Apply(t.Context(), tx, state.Columns{"id": 7}, paid, nil)
			if told := err == nil && result.Outcome == state.Repeated; !told && !dialect.Again(err) {
				t.Errorf("%v: %+v, %v", level, result, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
	})
}

// keep has a trigger keep all rows as they are, without an error.
func keep(t *testing.T, d sqltest.Database, db *sql.DB, name string) {
	t.Helper()
	switch d.Dialect {
	case dialect.PostgreSQL:
		d.Run(t, db, "CREATE FUNCTION keep_"+name+"() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
		t.Cleanup(func() { d.Run(t, db, "DROP FUNCTION keep_"+name+" CASCADE") })
		d.Run(t, db, "CREATE TRIGGER keep BEFORE UPDATE ON "+name+" FOR EACH ROW EXECUTE FUNCTION keep_"+name+"()")
	case dialect.MySQL:
		d.Run(t, db, "CREATE TRIGGER keep_"+name+" BEFORE UPDATE ON "+name+" FOR EACH ROW SET NEW.state = OLD.state, NEW.version = OLD.version")
	default:
		d.Run(t, db, "CREATE TRIGGER keep_"+name+" BEFORE UPDATE ON "+name+" BEGIN SELECT RAISE(IGNORE); END")
	}
}

// TestRefused: a trigger keeps each row as it is. Apply and ApplyAt say so, where they tried without an end.
func TestRefused(t *testing.T) {
	each(t, sqltest.All(t), func(t *testing.T, d sqltest.Database, db *sql.DB) {
		table := orderTable(t, d, db)
		d.Run(t, db, "INSERT INTO "+table.Name+" (id, state) VALUES (7, 'created')")
		keep(t, d, db, table.Name)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		key := state.Columns{"id": 7}
		if result, err := table.Apply(ctx, db, key, paid, nil); !errors.Is(err, state.ErrRefused) {
			t.Errorf("%+v, %v", result, err)
		}
		if result, err := table.ApplyAt(ctx, db, key, paid, 1, nil); !errors.Is(err, state.ErrRefused) {
			t.Errorf("at a version: %+v, %v", result, err)
		}
	})
}

// TestMistakesOfTables are told before anything is asked: there is no database here.
func TestMistakesOfTables(t *testing.T) {
	good := state.Table[order]{Dialect: dialect.PostgreSQL, Name: "orders", Machine: orders, Version: "version"}
	key := state.Columns{"id": 7}
	with := func(change func(*state.Table[order])) state.Table[order] {
		table := good
		change(&table)
		return table
	}
	for part, err := range map[string]error{
		"Table.Machine is nil": second(with(func(t *state.Table[order]) { t.Machine = nil }).Apply(t.Context(), nil, key, paid, nil)),
		"Dialect is 0":         second(with(func(t *state.Table[order]) { t.Dialect = 0 }).Apply(t.Context(), nil, key, paid, nil)),
		`"or;ders"`:            second(with(func(t *state.Table[order]) { t.Name = "or;ders" }).Apply(t.Context(), nil, key, paid, nil)),
		`"st'ate"`:             second(with(func(t *state.Table[order]) { t.State = "st'ate" }).Apply(t.Context(), nil, key, paid, nil)),
		`"1version"`:           second(with(func(t *state.Table[order]) { t.Version = "1version" }).ApplyAt(t.Context(), nil, key, paid, 1, nil)),
		"Version is empty":     second(with(func(t *state.Table[order]) { t.Version = "" }).ApplyAt(t.Context(), nil, key, paid, 1, nil)),
		"the key is empty":     second(good.Apply(t.Context(), nil, nil, paid, nil)),
		`column "State"`:       second(good.Apply(t.Context(), nil, key, paid, state.Columns{"State": "x"})),
		`column "version"`:     second(good.Apply(t.Context(), nil, key, paid, state.Columns{"version": 9})),
		`column "state"`:       second(good.Apply(t.Context(), nil, state.Columns{"id": 7, "state": "paid"}, paid, nil)),
		`"note\""`:             second(good.Apply(t.Context(), nil, key, paid, state.Columns{`note"`: 1})),
	} {
		if !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
	if err := second(good.Apply(t.Context(), nil, key, "payed", nil)); !errors.Is(err, state.ErrUndeclared) {
		t.Error(err)
	}
}

func second(_ state.Result[order], err error) error { return err }
