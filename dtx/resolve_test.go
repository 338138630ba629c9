//go:build unix

package dtx_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
)

// lostLog runs a transaction whose branches stay prepared, in a log that then loses the coordinator's row. The bank has no other coordinator.
func (b *bank) lostLog(t *testing.T, account int) dtx.ID {
	t.Helper()
	cmd, said := b.start(t, task{Account: account, Step: "decide 0"})
	if out, err := said.Scan(), cmd.Wait(); out || err == nil {
		t.Fatalf("the worker came to its end: %s", said.Text())
	}
	all, err := b.log.Transactions(t.Context(), b.parts)
	if err != nil || len(all) != 1 || all[0].State != dtx.Running || all[0].Coordinator == "" || len(all[0].Prepared) == 0 {
		t.Fatalf("%v, %v", all, err)
	}
	if _, err := b.dbs[0].ExecContext(t.Context(), "DELETE FROM "+b.table+" WHERE id > 0"); err != nil {
		t.Fatal(err)
	}
	return all[0].ID
}

// resolve: recovery leaves the branches of a log that has lost rows, until an operator decides.
func (b *bank) resolve(t *testing.T) {
	if b.places[0].Log {
		return // one branch is never prepared, and the other one is as here
	}
	for i, commit := range []bool{true, false} {
		before := b.accounts(t)
		id := b.lostLog(t, i)
		c := b.coordinator(t)
		r, err := c.Recover(t.Context())
		if err != nil || len(r.Unknown) != 1 || r.Unknown[0] != id {
			t.Errorf("recovery of a lost log: %v, %v", r, err)
		}
		if s := c.Status(); s.Prepared != 2 || s.Heuristics != i || len(s.Unknown) != 1 || s.Err != nil || s.Passed.IsZero() {
			t.Errorf("%+v", s)
		}
		if err := b.log.Resolve(t.Context(), b.parts, id, commit, ""); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("no reason: %v", err)
		}
		// An operator reaches the first resource only. Recovery does the rest.
		if err := b.log.Resolve(t.Context(), b.parts[:1], id, commit, "the log was lost"); err != nil {
			t.Error(err)
		}
		if err := b.log.Resolve(t.Context(), b.parts, id, !commit, "no"); !errors.Is(err, dtx.ErrDecided) {
			t.Errorf("the other decision: %v", err)
		}
		until(t, "recovery has done the rest", func() bool {
			if _, err := c.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			return b.prepared(t) == 0
		})
		if err := b.log.Resolve(t.Context(), b.parts, id, commit, "once more"); err != nil {
			t.Errorf("the same decision, when all is done: %v", err)
		}
		after := b.accounts(t)
		moved, want := [2]int{before[i][0] - after[i][0], after[i][1] - before[i][1]}, map[bool]int{true: moves}[commit]
		if moved != [2]int{want, want} {
			t.Errorf("commit %v: %v were moved", commit, moved)
		}
		kept, err := b.log.Heuristics(t.Context())
		if h := kept[id]; err != nil || len(kept) != i+1 || h.Commit != commit || h.Reason != "the log was lost" || time.Since(h.Time).Abs() > time.Hour {
			t.Errorf("%v, %v", kept, err)
		}
		if err := b.log.Resolve(t.Context(), b.parts, dtx.ID{}, commit, "no"); !errors.Is(err, dtx.ErrNoTransaction) {
			t.Errorf("the ID of another log: %v", err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// interfere: an operator cannot commit a transaction that a coordinator may roll back. To roll back fences the coordinator, if a
// branch is prepared.
func (b *bank) interfere(t *testing.T) {
	if b.places[0].Dialect == dialect.SQLite {
		return // whose file has one writer: a fence waits for the transaction
	}
	c := b.patient(t)
	before := b.sums(t)
	err := c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error {
		if err := b.move(0, 0, moves)(ctx, tx); err != nil {
			return err
		}
		for _, commit := range []bool{true, false} {
			if err := b.log.Resolve(ctx, b.parts, tx.ID(), commit, "too slow"); !errors.Is(err, dtx.ErrNoTransaction) {
				t.Errorf("nothing is prepared, and Resolve says %v", err)
			}
		}
		b.prepare(t, 1, tx.ID())
		if err := b.log.Resolve(ctx, b.parts, tx.ID(), true, "go on"); !errors.Is(err, dtx.ErrDecided) || !strings.Contains(err.Error(), "alone can commit") {
			t.Error(err)
		}
		until(t, "the operator rolls the prepared branch back", func() bool { // MariaDB needs a moment to give up the branch
			err := b.log.Resolve(ctx, b.parts, tx.ID(), false, "too slow")
			if err != nil && !errors.Is(err, dtx.ErrLeft) {
				t.Fatal(err)
			}
			return err == nil
		})
		return nil
	})
	if !errors.Is(err, dtx.ErrAborted) || !errors.Is(err, dtx.ErrRecovered) {
		t.Error(err)
	}
	if is := b.sums(t); is != before {
		t.Errorf("%v, not %v", is, before)
	}
	if h, err := b.log.Heuristics(t.Context()); err != nil || len(h) > 2 {
		t.Errorf("to fence is no heuristic decision: %v, %v", h, err)
	}
	if err := c.Run(t.Context(), b.move(0, 0, 0)); err != nil {
		t.Error(err)
	}
}

// aborted returns the ID of a transaction that did nothing.
func aborted(t *testing.T, c *dtx.Coordinator) (id dtx.ID) {
	t.Helper()
	enough := errors.New("enough")
	if err := c.Run(t.Context(), func(_ context.Context, tx *dtx.Tx) error { id = tx.ID(); return enough }); !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return id
}

// prepare prepares a branch of a transaction by hand, and ends its connection.
func (b *bank) prepare(t *testing.T, part int, id dtx.ID) {
	t.Helper()
	conn, err := b.dbs[part].Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer discard(conn)
	update := fmt.Sprintf("UPDATE %s_%d SET n = n + 1 WHERE id = 1", b.table, part)
	queries := []string{"BEGIN", update, fmt.Sprintf("PREPARE TRANSACTION '%v-7'", id)}
	if b.places[part].Dialect == dialect.MySQL {
		xid := fmt.Sprintf("'%v','7',%d", id, 0x7061776c)
		queries = []string{"XA START " + xid, update, "XA END " + xid, "XA PREPARE " + xid}
	}
	for _, query := range queries {
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Fatal(query, ": ", err)
		}
	}
}

// over: a transaction is committed, and its record is deleted. An operator is not told that the transaction is or will be rolled back, and
// fences nobody.
func over(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{postgres(t, "postgres"), postgres(t, "second")})
	c := b.coordinator(t)
	var id dtx.ID
	if err := c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error { id = tx.ID(); return b.move(0, 0, moves)(ctx, tx) }); err != nil {
		t.Fatal(err)
	}
	until(t, "the record is deleted", func() bool { return b.records(t) == 0 })
	refused := func(how string) {
		for _, commit := range []bool{false, true} {
			err := b.log.Resolve(t.Context(), b.parts, id, commit, "too slow")
			if !errors.Is(err, dtx.ErrNoTransaction) || !strings.Contains(err.Error(), "Only the rows tell") {
				t.Errorf("the coordinator %s, and Resolve says %v", how, err)
			}
		}
	}
	refused("lives")
	if n := b.count(t, b.table+" WHERE id > 0 AND fenced <> 0"); n != 0 {
		t.Errorf("%d coordinators are fenced", n)
	}
	b.exec(t, 0, "UPDATE "+b.table+" SET fenced = 1 WHERE id > 0")
	refused("is fenced")
}

// closed: the coordinator finishes a branch and closes between the operator's list and the look at the log. The operator is not told
// that the transaction is rolled back, and no decision is kept.
func closed(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{postgres(t, "postgres"), postgres(t, "second")})
	c := b.patient(t)
	id := aborted(t, c)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.prepare(t, 0, id)
	var first int // the only connection for the first part of the list
	b.dbs[0].SetMaxOpenConns(1)
	if err := b.dbs[0].QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&first); err != nil {
		t.Fatal(err)
	}
	b.dbs[1].SetMaxOpenConns(1)
	held, err := b.dbs[1].Conn(t.Context()) // so the list waits for its second part
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan error, 1)
	go func() { said <- b.log.Resolve(t.Context(), b.parts, id, false, "too slow") }()
	until(t, "the list has its first part", func() (is bool) {
		err := held.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_stat_activity
			WHERE pid = $1 AND state = 'idle' AND query LIKE '%FROM pg_prepared_xacts%')`, first).Scan(&is)
		return err == nil && is
	})
	b.exec(t, 0, fmt.Sprintf("COMMIT PREPARED '%v-7'", id))
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	if err := <-said; !errors.Is(err, dtx.ErrNoTransaction) {
		t.Errorf("the transaction is committed, and Resolve says %v", err)
	}
	if kept, err := b.log.Heuristics(t.Context()); err != nil || len(kept) != 0 {
		t.Errorf("%v, %v", kept, err)
	}
}

// counts: recovery counts a branch once. Both resources list the branch, because they are the same database.
func counts(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{postgres(t, "postgres"), postgres(t, "postgres")})
	c := b.patient(t)
	id := aborted(t, c)
	b.prepare(t, 1, id)
	if _, err := c.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := c.Status(); s.RolledBack != 1 || b.prepared(t) != 0 {
		t.Errorf("one branch is rolled back, and recovery counts %+v", s)
	}
}
