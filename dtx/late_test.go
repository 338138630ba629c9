//go:build unix

package dtx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sqltest"
)

// gate lets a server of PostgreSQL stand still in PREPARE or COMMIT of a transaction that updates a table of a bank.
type gate struct {
	db   *sql.DB
	conn *sql.Conn
	key  int64
}

// shutGate makes a deferred trigger that waits for the gate.
func shutGate(t *testing.T, p place, table string) *gate {
	t.Helper()
	db, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	g := &gate{db, conn, 7000 + banks.Add(1)}
	for _, query := range []string{
		fmt.Sprintf("CREATE FUNCTION %s_gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(%d); RETURN NULL; END'", table, g.key),
		fmt.Sprintf("CREATE CONSTRAINT TRIGGER gate AFTER UPDATE ON %s DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION %[1]s_gate()", table),
		fmt.Sprintf("SELECT pg_advisory_lock(%d)", g.key),
	} {
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// waits reports whether a transaction stands still.
func (g *gate) waits(t *testing.T) bool {
	t.Helper()
	var n int
	if err := g.db.QueryRowContext(t.Context(), fmt.Sprintf("SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %d AND NOT granted", g.key)).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n > 0
}

func (g *gate) open(t *testing.T) {
	t.Helper()
	if _, err := g.conn.ExecContext(t.Context(), fmt.Sprintf("SELECT pg_advisory_unlock(%d)", g.key)); err != nil {
		t.Fatal(err)
	}
}

// behind returns a place that is reached through a proxy.
func behind(t *testing.T, p place) (place, *proxy.Proxy) {
	t.Helper()
	network := proxy.New(t, prepares)
	p.Source = strings.Replace(p.Source, prepares, network.Addr, 1)
	return p, network
}

// latePrepare: a server prepares a branch after the coordinator lost the connection, rolled back, and closed. Recovery still
// knows the coordinator, and rolls the branch back. Without the row an operator would have to decide.
func latePrepare(t *testing.T) {
	t.Parallel()
	direct := postgres(t, "second")
	proxied, network := behind(t, direct)
	b := newBank(t, [2]place{postgres(t, "postgres"), proxied})
	g := shutGate(t, direct, b.table+"_1")
	before := b.sums(t)
	c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Second, Settle: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- c.Run(t.Context(), b.move(0, 0, moves)) }()
	until(t, "the server prepares", func() bool { return g.waits(t) })
	network.Cut() // the driver's request to cancel is lost, too
	if err := <-result; !errors.Is(err, dtx.ErrAborted) {
		t.Errorf("a branch that gave no answer: %v", err)
	}
	network.Heal()
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if n := b.prepared(t); !g.waits(t) || n != 0 {
		t.Fatalf("the server no longer prepares, and %d branches are prepared", n)
	}
	g.open(t)
	until(t, "the late branch is prepared", func() bool { return b.prepared(t) == 1 })
	c = b.coordinator(t)
	until(t, "recovery rolls the late branch back", func() bool {
		r, err := c.Recover(t.Context())
		if err != nil || len(r.Unknown) > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		return b.prepared(t) == 0
	})
	if is := b.sums(t); is != before {
		t.Errorf("%v, not %v", is, before)
	}
	b.tidy(t)
}

// lateCommit: the log's own branch commits after the coordinator lost the connection. So the coordinator must not take the
// loss for an abort: pgx returns driver.ErrBadConn also for statements that it has sent. Nor may the coordinator roll the
// branch of the second database back, which is prepared.
func lateCommit(t *testing.T, second place) {
	t.Parallel()
	direct := postgres(t, "postgres")
	proxied, network := behind(t, direct)
	proxied.Log = true
	b := newBank(t, [2]place{proxied, second})
	books := b.seenFrom(t, [2]place{direct, second})
	g := shutGate(t, direct, b.table+"_0")
	before := books.sums(t)
	c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Second, Settle: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 2)
	go func() { result <- c.Run(t.Context(), b.move(0, 0, moves)) }()
	until(t, "the server commits", func() bool { return g.waits(t) })
	network.Cut()
	if err := <-result; !errors.Is(err, dtx.ErrInDoubt) {
		t.Errorf("a decision that gave no answer: %v", err)
	}
	// The coordinator reaches the log again, but cannot fence its row while the decision has the row.
	network.Heal()
	for range 2 {
		c.Recover(t.Context()) //nolint:errcheck // the row may be locked
	}
	if n := books.prepared(t); !g.waits(t) || n != 1 {
		t.Errorf("the server no longer commits, and %d branches are prepared", n)
	}
	g.open(t)
	until(t, "recovery commits the other branch", func() bool { _, err := c.Recover(t.Context()); return err == nil && books.prepared(t) == 0 })
	if is := books.sums(t); is != [2]int{before[0] - moves, before[1] + moves} {
		t.Errorf("%v, and before %v", is, before)
	}
	// The same with a single branch. Nobody but the database knows the outcome.
	if _, err := g.conn.ExecContext(t.Context(), fmt.Sprintf("SELECT pg_advisory_lock(%d)", g.key)); err != nil {
		t.Fatal(err)
	}
	go func() {
		result <- c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error {
			_, err := tx.On(b.parts[0]).ExecContext(ctx, "UPDATE "+b.table+"_0 SET n = n - 1 WHERE id = 1")
			return err
		}, b.parts[0])
	}()
	until(t, "the server commits a single branch", func() bool { return g.waits(t) })
	network.Cut()
	if err := <-result; !errors.Is(err, dtx.ErrInDoubt) {
		t.Errorf("a single branch that gave no answer: %v", err)
	}
	g.open(t) // before the network heals, or the driver's request to cancel may arrive and end the branch
	until(t, "the single branch is committed", func() bool { return books.sums(t)[0] == before[0]-moves-1 })
	network.Heal()
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
	books.tidy(t)
}

// lostDecision: a decision is written, and its answer is lost. Before the coordinator learns that, recovery commits the branches and deletes the
// record. In the simple protocol pgx says driver.ErrBadConn then, after which a pool sends a statement again. The second decision would change
// nothing, because the row is fenced. So the caller would hear of an abort.
func lostDecision(t *testing.T) {
	t.Parallel()
	direct := [2]place{postgres(t, "postgres"), postgres(t, "second")}
	books := newBank(t, direct)
	before := books.sums(t)
	proxied, network := behind(t, direct[0])
	proxied.Source += "&default_query_exec_mode=simple_protocol"
	db, err := proxied.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	log, err := dtx.NewLog(proxied.Dialect, db, &dtx.LogOptions{Table: books.logTable()})
	if err != nil {
		t.Fatal(err)
	}
	c, err := dtx.New(t.Context(), log, books.parts, &dtx.Options{Lease: time.Minute, Settle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	err = sqltest.LostAnswer(t, books.dbs[0], "UPDATE "+books.table+" SET fenced = fenced WHERE id > 0", `INSERT INTO "`+books.table+`_decided%`, // the decision locks that row
		network.FreezeReplies, network.Thaw, func() {
			until(t, "commit is decided", func() bool { return books.records(t) == 1 })
			books.coordinator(t)
			until(t, "recovery commits", func() bool { return books.records(t) == 0 && books.prepared(t) == 0 })
		}, func() error { return c.Run(t.Context(), books.move(0, 0, moves)) })
	if !errors.Is(err, dtx.ErrInDoubt) {
		t.Errorf("the transaction is committed, and the caller hears: %v", err)
	}
	if is := books.sums(t); is != [2]int{before[0] - moves, before[1] + moves} {
		t.Errorf("%v, and before %v", is, before)
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
