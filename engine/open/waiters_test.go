package open_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestManyWaiters: a waiter needs no connection. 1,000 waiters wait for one name in 8 clients, each
// of which has 5 connections at most. Some get the lock, then all others give up.
func TestManyWaiters(t *testing.T) {
	for _, store := range []struct{ name, driver, dsn, url, count string }{
		func() (s struct{ name, driver, dsn, url, count string }) {
			addr := testservers.Postgres(t).Addr
			s.name, s.driver, s.dsn, s.url = "PostgreSQL", "pgx", testservers.PostgresURL(addr), postgresURL("unlogged=on")(addr)
			s.count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pawl'"
			return s
		}(),
		func() (s struct{ name, driver, dsn, url, count string }) {
			addr := testservers.MariaDB(t).Addr
			s.name, s.driver, s.dsn, s.url = "MariaDB", "mysql", testservers.MariaDBConfig(addr).FormatDSN(), mysqlURL(addr)
			s.count = "SELECT count(*) FROM information_schema.processlist WHERE user = 'root' AND id <> connection_id()"
			return s
		}(),
	} {
		t.Run(store.name, func(t *testing.T) {
			db, err := sql.Open(store.driver, store.dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			db.SetMaxOpenConns(1)
			manyWaiters(t, store.url, func() (n int64) {
				if err := db.QueryRow(store.count).Scan(&n); err != nil {
					t.Error(err)
				}
				return n
			})
		})
	}
}

func manyWaiters(t *testing.T, url string, connections func() int64) {
	const clients, each, enough = 8, 125, 200
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	all := clientsOn(t, url, clients)
	first, err := all[0].Mutex("many").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var most, granted, last atomic.Int64
	var wg sync.WaitGroup
	for i := range clients * each {
		wg.Go(func() {
			l, err := all[i%clients].Mutex("many").Lock(ctx)
			if err == nil {
				if granted.Add(1) == enough {
					cancel()
				}
				if token := int64(l.Token()); last.Swap(token) >= token {
					t.Error("a token did not grow")
				}
				err = l.Unlock(t.Context())
			}
			if err != nil && (!errors.Is(err, pawl.ErrNotAcquired) || granted.Load() < enough) {
				t.Error(err)
			}
		})
	}
	eng := connect(t, url)
	var seen lasting
	sample := func() { most.Store(seen.add(connections())) }
	claimed(t, eng, "many", clients*each+1, sample)
	start := time.Now()
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-tick.C:
			if granted.Load() < enough { // claims that were given up midway end in their own time
				sample()
			}
		case <-done:
			open = false
		}
	}
	t.Logf("%d were granted, then the others gave up: %v; %d connections at most", granted.Load(), time.Since(start).Round(time.Millisecond), most.Load())
	claimed(t, eng, "many", 0, func() {})
	if most.Load() > 5*clients+1 { // one more looks on
		t.Errorf("%d connections for %d clients", most.Load(), clients)
	}
}

// lasting is the largest number that has lasted for 20 looks. A server lists a connection that its client has dropped until
// the server next writes there. On a busy machine that is some time later.
type lasting struct {
	looks []int64
	most  int64
}

func (l *lasting) add(n int64) int64 {
	l.looks = append(l.looks, n)
	if i := len(l.looks) - 20; i >= 0 {
		l.most = max(l.most, slices.Min(l.looks[i:]))
	}
	return l.most
}

// claimed waits until a resource has so many claims.
func claimed(t *testing.T, eng engine.Engine, name string, n int, meanwhile func()) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		meanwhile()
		r, err := eng.Show(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Claims) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d claims, not %d", len(r.Claims), n)
		}
		<-tick.C
	}
}

// clientsOn returns n clients, each with an engine of its own.
func clientsOn(t *testing.T, url string, n int) (all []*pawl.Client) {
	t.Helper()
	for range n {
		all = append(all, clientOf(t, connect(t, url), 5*time.Second))
	}
	return all
}
