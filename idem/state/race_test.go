package state_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/state"
	"github.com/pawl-go/pawl/internal/killtest"
	"github.com/pawl-go/pawl/internal/sqltest"
)

const (
	racedRows  = 40
	goroutines = 4 // of a process
)

// Every goroutine takes every row on all steps. A cancelled order is not closed
// here, so that a closed row has taken all of them.
var (
	steps    = []order{paid, shipped, closed}
	delivery = state.Must(state.New([]order{created, paid, shipped, closed, cancelled},
		state.Transition[order]{From: created, To: paid}, state.Transition[order]{From: paid, To: shipped},
		state.Transition[order]{From: shipped, To: closed}, state.Transition[order]{From: created, To: cancelled}))
)

// move takes a row one step and notes the effect.
type move func(ctx context.Context, db *sql.DB, d sqltest.Database, table state.Table[order], row int, to order) error

// apply moves by this package, and writes the effect in the same transaction.
func apply(ctx context.Context, db *sql.DB, d sqltest.Database, table state.Table[order], row int, to order) error {
	tx, err := d.Begin(ctx, db)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	result, err := table.Apply(ctx, tx, state.Columns{"id": row}, to, nil)
	if err != nil {
		return err
	}
	if result.Outcome == state.Moved {
		if err := effect(ctx, tx, d, table, row, to); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func effect(ctx context.Context, tx dialect.DB, d sqltest.Database, table state.Table[order], row int, to order) error {
	return d.Exec(ctx, tx, "INSERT INTO effects_"+table.Name+" VALUES (?, ?)", row, string(to))
}

// naive reads the state, decides, and writes the new state and the effect in one transaction.
func naive(ctx context.Context, db *sql.DB, d sqltest.Database, table state.Table[order], row int, to order) error {
	var is order
	if err := dialect.New(d.Dialect).Add("SELECT state FROM "+table.Name+" WHERE id = ").Value(row).Scan(ctx, db, &is); err != nil {
		return err
	}
	if outcome, err := delivery.Decide(is, to); err != nil || outcome != state.Moved {
		return nil //nolint:nilerr // another goroutine has set the row back
	}
	tx, err := d.Begin(ctx, db)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := d.Exec(ctx, tx, "UPDATE "+table.Name+" SET state = ? WHERE id = ?", string(to), row); err != nil {
		return err
	}
	if err := effect(ctx, tx, d, table, row, to); err != nil {
		return err
	}
	return tx.Commit()
}

// work is a process: its goroutines take every row on every step, as if each were alone.
func work(ctx context.Context) error {
	var d sqltest.Database
	if err := json.Unmarshal([]byte(os.Getenv("PAWL_STATE_WORKER")), &d); err != nil {
		return err
	}
	db, err := d.Open()
	if err != nil {
		return err
	}
	defer db.Close()
	return walk(ctx, db, d, os.Getenv("PAWL_STATE_TABLE"), apply)
}

func walk(ctx context.Context, db *sql.DB, d sqltest.Database, name string, move move) error {
	table := state.Table[order]{Dialect: d.Dialect, Name: name, Machine: delivery}
	failed := make([]error, goroutines)
	var group sync.WaitGroup
	for i := range goroutines {
		group.Go(func() {
			for row := range racedRows {
				for _, to := range steps {
					err := move(ctx, db, d, table, row, to)
					for dialect.Again(err) {
						err = move(ctx, db, d, table, row, to)
					}
					if err != nil {
						failed[i] = fmt.Errorf("row %d: %w", row, err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	return errors.Join(failed...)
}

// raced creates the rows, lets f race over them, and returns how often an effect was written
// twice. An effect that is missing fails the test.
func raced(t *testing.T, d sqltest.Database, db *sql.DB, f func(name string)) (doubles int) {
	t.Helper()
	name := create(t, d, db, orderColumns, "created", "paid", "shipped", "cancelled", "closed")
	d.Run(t, db, "CREATE TABLE effects_"+name+" (id bigint NOT NULL, state varchar(20) NOT NULL)")
	t.Cleanup(func() { d.Run(t, db, "DROP TABLE effects_"+name) })
	for row := range racedRows {
		d.Run(t, db, "INSERT INTO "+name+" (id, state) VALUES (?, 'created')", row)
	}
	f(name)
	var all, different int
	query := "SELECT (SELECT COUNT(*) FROM effects_" + name + "), (SELECT COUNT(*) FROM (SELECT DISTINCT id, state FROM effects_" + name + ") AS d)"
	if err := db.QueryRow(query).Scan(&all, &different); err != nil {
		t.Fatal(err)
	}
	if different != racedRows*len(steps) {
		t.Errorf("%d effects of %d", different, racedRows*len(steps))
	}
	return all - different
}

// TestEachTransitionOnce: 3 processes with 4 goroutines each take the same rows through all
// steps. Some of the processes are killed and start from the beginning. Each effect is
// written once. The same goroutines write effects twice when they read and then write.
func TestEachTransitionOnce(t *testing.T) {
	each(t, sqltest.All(t), func(t *testing.T, d sqltest.Database, db *sql.DB) {
		doubles := raced(t, d, db, func(name string) {
			workers := killtest.Start(t, 3, "PAWL_STATE_WORKER="+d.JSON(), "PAWL_STATE_TABLE="+name)
			if kills := workers.KillAtWork(3, func() int { return int(d.Number(t, db, "SELECT COUNT(*) FROM effects_"+name)) }); kills == 0 {
				t.Error("no process was killed")
			} else {
				t.Log(kills, "processes were killed")
			}
		})
		if doubles > 0 {
			t.Errorf("%d effects were written again", doubles)
		}
		for try := 1; ; try++ { // that two read at the same time is likely, not certain
			found := raced(t, d, db, func(name string) {
				if err := walk(t.Context(), db, d, name, naive); err != nil {
					t.Error(err)
				}
			})
			if found > 0 {
				t.Logf("the naive way wrote %d effects again", found)
				break
			}
			if try == 10 {
				t.Fatal("the naive way is not found wrong")
			}
		}
	})
}
