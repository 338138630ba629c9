package open_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// rowDatabase is a database with a row mode, and its queries for these tests.
type rowDatabase struct {
	shared, private func(t *testing.T) *testservers.Server
	open            func(t *testing.T, addr string, connections int) engine.Engine
	admin           func(t *testing.T, addr string) *sql.DB
	conn            string // the query of the connection of a claim, by name and whether it is granted
	kill            string // ends a connection
	names           string // counts the names that the store keeps
	backends        string // counts the connections that work for pawl
	blocked         string // counts the connections that wait for a lock
}

var rowDatabases = map[string]rowDatabase{
	"Postgres": {
		shared:  func(t *testing.T) *testservers.Server { return testservers.SharedPostgres(t) },
		private: func(t *testing.T) *testservers.Server { return testservers.Postgres(t) },
		open:    postgresRow,
		admin: func(t *testing.T, addr string) *sql.DB {
			config, err := pgx.ParseConfig(testservers.PostgresURL(addr))
			if err != nil {
				t.Fatal(err)
			}
			return stdlib.OpenDB(*config)
		},
		conn: `SELECT c.pid FROM pawl.row_claims c JOIN pg_stat_activity a ON a.pid = c.pid AND starts_with(a.application_name, c.tag)
			JOIN pawl.row_names n ON a.application_name LIKE c.tag || '%% ' || n.id || ' %%' WHERE n.name = '%s' AND NOT starts_with(a.application_name, c.tag || ' ') = %t`,
		kill:     `SELECT pg_terminate_backend(%d)`,
		names:    `SELECT count(*) FROM pawl.row_names`,
		backends: `SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pawl %'`,
		blocked:  `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'`,
	},
	"MariaDB": {
		shared:  func(t *testing.T) *testservers.Server { return testservers.SharedMariaDB(t) },
		private: func(t *testing.T) *testservers.Server { return testservers.MariaDB(t) },
		open:    mariadbRow,
		admin: func(t *testing.T, addr string) *sql.DB {
			config := testservers.MariaDBConfig(addr)
			config.Params = map[string]string{"tx_isolation": "'READ-UNCOMMITTED'"}
			connector, err := mysql.NewConnector(config)
			if err != nil {
				t.Fatal(err)
			}
			return sql.OpenDB(connector)
		},
		conn:     `SELECT conn FROM pawl_row_claims WHERE resource = '%s' AND held = %t`,
		kill:     `KILL %d`,
		names:    `SELECT count(*) FROM pawl_row_names`,
		backends: `SELECT count(*) FROM pawl_row_claims`,
		blocked:  `SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'`,
	},
}

// onRows runs a test on each of them, beside one another.
func onRows(t *testing.T, test func(t *testing.T, d rowDatabase)) {
	for name, d := range rowDatabases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, d)
		})
	}
}

// waitBlocked waits until a claim waits in the server. InnoDB renews its table of transactions only
// when nobody has read that table for 100 ms.
func (d rowDatabase) waitBlocked(t *testing.T, addr string) {
	t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); d.ask(t, addr, d.blocked) == 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("no claim waits in the server")
		}
	}
}

func (d rowDatabase) ask(t *testing.T, addr, query string) (n int64) {
	t.Helper()
	db := d.admin(t, addr)
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// end ends the connection of the claim that holds name, or waits for it.
func (d rowDatabase) end(t *testing.T, addr, name string, held bool) {
	t.Helper()
	conn := d.ask(t, addr, fmt.Sprintf(d.conn, name, held))
	db := d.admin(t, addr)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), fmt.Sprintf(d.kill, conn)); err != nil {
		t.Fatal(err)
	}
}

func mustLock(t *testing.T, m *pawl.Mutex) *pawl.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := m.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustUnlock(t *testing.T, l *pawl.Lease) {
	t.Helper()
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// claims waits until the resource has as many claims.
func claims(t *testing.T, eng engine.Engine, name string, n int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		r, err := eng.Show(t.Context(), name)
		if err == nil && len(r.Claims) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("want %d claims: %+v, %v", n, r, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// A holder whose connection ends learns so long before its trust window ends.
func TestRowHolderKilled(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		const ttl = 30 * time.Second
		addr := d.shared(t).Addr
		eng := d.open(t, addr, 10)
		l := mustLock(t, clientOf(t, eng, ttl).Mutex("holder killed"))
		got := lockSoon(t, clientOf(t, eng, ttl).Mutex("holder killed"))
		claims(t, eng, "holder killed", 2)
		start := time.Now()
		d.end(t, addr, "holder killed", true)
		select {
		case <-l.Context().Done():
		case <-time.After(ttl / 4): // before the next heartbeat
			t.Fatal("the holder was not told")
		}
		told := time.Since(start)
		next := <-got
		if next.err != nil || next.Token() <= l.Token() {
			t.Fatalf("the next: %v, token %v after %v", next.err, next.Token(), l.Token())
		}
		t.Logf("told after %v, the next had it after %v", told.Round(time.Millisecond), next.at.Sub(start).Round(time.Millisecond))
		if took := next.at.Sub(start); took > ttl/4 {
			t.Errorf("the next had it after %v", took)
		}
		if err := l.Unlock(t.Context()); !errors.Is(err, pawl.ErrLost) {
			t.Errorf("unlock of what was lost: %v", err)
		}
		mustUnlock(t, next.Lease)
	})
}

// If nobody has noticed the end of the connection yet, Unlock says that the lock was lost.
func TestRowUnlockOfWhatWasKilled(t *testing.T) {
	d := rowDatabases["Postgres"]
	addr := d.shared(t).Addr
	eng := d.open(t, addr, 10)
	s, err := eng.Open(t.Context(), engine.SessionOptions{TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	c := &engine.Claim{
		Spec:     engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity},
		Resource: "unlock killed", ID: s.ID() + ".1", Owner: s.ID() + ".1", Weight: engine.LockCapacity,
	}
	if _, err := s.Enter(t.Context(), c, false); err != nil {
		t.Fatal(err)
	}
	d.end(t, addr, "unlock killed", true)
	claims(t, eng, "unlock killed", 0)
	if err := s.Leave(t.Context(), c.Resource, c.ID); !errors.Is(err, engine.ErrGone) {
		t.Errorf("leave: %v, want gone", err)
	}
}

// A waiter whose connection ends goes on waiting, on another connection.
func TestRowWaiterKilled(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		addr := d.shared(t).Addr
		eng := d.open(t, addr, 10)
		l := mustLock(t, clientOf(t, eng, 10*time.Second).Mutex("waiter killed"))
		got := lockSoon(t, clientOf(t, eng, 10*time.Second).Mutex("waiter killed"))
		claims(t, eng, "waiter killed", 2)
		before := d.ask(t, addr, fmt.Sprintf(d.conn, "waiter killed", false))
		d.end(t, addr, "waiter killed", false)
		db := d.admin(t, addr)
		defer db.Close()
		deadline := time.Now().Add(time.Minute)
		for now := before; now == before; time.Sleep(2 * time.Millisecond) {
			err := db.QueryRowContext(t.Context(), fmt.Sprintf(d.conn, "waiter killed", false)).Scan(&now)
			if time.Now().After(deadline) {
				t.Fatalf("it does not wait again: %v", err)
			}
		}
		mustUnlock(t, l)
		next := <-got
		if next.err != nil {
			t.Fatal(next.err)
		}
		mustUnlock(t, next.Lease)
	})
}

// A server that restarts has forgotten all locks. The server grants nothing before the holders know.
func TestRowServerRestarted(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		const ttl = 3 * time.Second
		server := d.private(t)
		eng := d.open(t, server.Addr, 10)
		l := mustLock(t, clientOf(t, eng, ttl).Mutex("restart"))
		ended := make(chan time.Time, 1)
		context.AfterFunc(l.Context(), func() { ended <- time.Now() })
		got := lockThrough(t, clientOf(t, eng, ttl).Mutex("restart"))
		claims(t, eng, "restart", 2)
		for range 2 {
			server.Stop() // in order: tables that are not logged stay
			server.Restart()
			server.Kill()
			server.Restart()
		}
		next := <-got
		if next.err != nil {
			t.Fatalf("the next: %v", next.err)
		}
		if next.Token() <= l.Token() {
			t.Errorf("token %v after %v", next.Token(), l.Token())
		}
		at := <-ended
		t.Logf("told %v before the next had it", next.at.Sub(at).Round(time.Millisecond))
		if !at.Before(next.at) {
			t.Error("told too late")
		}
		mustUnlock(t, next.Lease)
	})
}

// A client that vanished without a word holds for its TTL.
func TestRowFrozen(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		const ttl = 2 * time.Second
		addr := d.shared(t).Addr
		link := proxy.New(t, addr)
		l := mustLock(t, clientOf(t, d.open(t, link.Addr, 10), ttl).Mutex("frozen"))
		t.Cleanup(link.Heal)
		ended := make(chan time.Time, 1)
		context.AfterFunc(l.Context(), func() { ended <- time.Now() })
		eng := d.open(t, addr, 10)
		c := clientOf(t, eng, ttl)
		slowest := slowest(t, c)
		got := lockSoon(t, c.Mutex("frozen"))
		claims(t, eng, "frozen", 2)
		link.Freeze()
		start := time.Now()
		next := <-got
		at := <-ended
		if took := next.at.Sub(start); next.err != nil || took > ttl+time.Second+5*slowest() || !at.Before(next.at) {
			t.Errorf("%v: told after %v, the next had it after %v of a TTL of %v", next.err, at.Sub(start), took, ttl)
		}
		mustUnlock(t, next.Lease)
	})
}

// A wait that the caller gave up leaves nothing in the server.
func TestRowWaitGivenUp(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		server := d.private(t)
		eng := d.open(t, server.Addr, 10)
		c := clientOf(t, eng, 30*time.Second)
		l := mustLock(t, c.Mutex("given up"))
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if _, err := c.Mutex("given up").Lock(ctx); !errors.Is(err, pawl.ErrNotAcquired) {
				t.Fatal(err)
			}
			cancel()
		}
		claims(t, eng, "given up", 1)
		mustUnlock(t, l)
		if n := d.ask(t, server.Addr, d.backends); n != 0 {
			t.Errorf("%d connections still do something", n)
		}
		mustUnlock(t, mustLock(t, c.Mutex("given up")))
	})
}

// Nor does a waiter whose session was closed meanwhile.
func TestRowClosedWhileWaiting(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		server := d.private(t)
		eng := d.open(t, server.Addr, 10)
		sessiontest.Hold(t, sessiontest.Open(t, eng, 30*time.Second), sessiontest.Whole(t, sessiontest.Fair))
		s, c := sessiontest.Open(t, eng, 30*time.Second), sessiontest.Whole(t, sessiontest.Fair)
		sessiontest.Wait(t, s, c)
		got := sessiontest.Awaiting(t, s, c)
		d.waitBlocked(t, server.Addr)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if a := <-got; !errors.Is(a.Err, engine.ErrGone) {
			t.Errorf("await: %v", a.Err)
		}
		if r, err := eng.Show(t.Context(), c.Resource); err != nil || len(r.Claims) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// A wait may be longer than the TTL of the waiter, and of the holder.
func TestRowWaitsLong(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		const ttl = 4 * time.Second
		eng := d.open(t, d.shared(t).Addr, 10)
		l := mustLock(t, clientOf(t, eng, ttl).Mutex("long"))
		got := lockSoon(t, clientOf(t, eng, ttl).Mutex("long"))
		timer := time.NewTimer(ttl * 3 / 2)
		defer timer.Stop()
		select {
		case next := <-got:
			t.Fatalf("%v, while another holds: %v", next.err, l.Err())
		case <-l.Context().Done():
			t.Fatal(l.Err())
		case <-timer.C:
		}
		mustUnlock(t, l)
		next := <-got
		if next.err != nil {
			t.Fatal(next.err)
		}
		mustUnlock(t, next.Lease)
	})
}

// A network that stands still for less than the TTL loses nothing. To give a renewal up would close
// the connection, which is the lock.
func TestRowNetworkStandsStill(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		const ttl = 4 * time.Second
		link := proxy.New(t, d.shared(t).Addr)
		l := mustLock(t, clientOf(t, d.open(t, link.Addr, 10), ttl).Mutex("still"))
		t.Cleanup(link.Heal)
		link.Delay(10 * time.Minute)
		for time.Until(l.ValidUntil()) > ttl*3/10 { // until a renewal hangs, and half of its remaining time is over
			time.Sleep(ttl / 100)
		}
		link.Thaw()
		still := time.NewTimer(ttl)
		select {
		case <-l.Context().Done():
			t.Fatal(l.Err())
		case <-still.C:
		}
		mustUnlock(t, l)
	})
}

// An owner that waits in two places has both when it has one.
func TestRowOwnerWaitsTwice(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		eng := d.open(t, d.shared(t).Addr, 10)
		l := mustLock(t, clientOf(t, eng, 10*time.Second).Mutex("twice"))
		c := clientOf(t, eng, 10*time.Second)
		ctx, cancel := context.WithTimeout(pawl.WithOwner(t.Context(), pawl.NewOwner()), 20*time.Second)
		defer cancel()
		got := make(chan locked, 2)
		for range 2 {
			go func() {
				l, err := c.Mutex("twice").Lock(ctx)
				got <- locked{l, err, time.Now()}
			}()
		}
		claims(t, eng, "twice", 3)
		mustUnlock(t, l)
		a, b := <-got, <-got
		if a.err != nil || b.err != nil || a.Token() != b.Token() {
			t.Fatal(a.err, b.err)
		}
		mustUnlock(t, a.Lease)
		if l, err := clientOf(t, eng, 10*time.Second).Mutex("twice").TryLock(t.Context()); !errors.Is(err, pawl.ErrNotAcquired) {
			t.Errorf("free although one still holds: %v, %v", l, err)
		}
		mustUnlock(t, b.Lease)
	})
}
