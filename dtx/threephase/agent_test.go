package threephase_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) {
	mysql.SetLogger(&mysql.NopLogger{}) //nolint:errcheck // every important message comes as an error
	if os.Getenv("PAWL_3PC_WORKER") != "" {
		fmt.Fprintln(os.Stderr, "worker:", serveStation(context.Background()))
		os.Exit(1)
	}
	os.Exit(testservers.Main(m))
}

// TestCommit: the results of Commit without trouble on the network.
func TestCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		for _, name := range g.names {
			begin := time.Now()
			id, err := g.agents[name].Commit(t.Context(), work)
			if took := time.Since(begin); err != nil || took > 200*time.Millisecond || !g.ledgers["bank"].has(id) || !g.ledgers["stock"].has(id) {
				t.Errorf("%s: %v after %v", name, err, took)
			}
		}
		id, err := g.agents["bank"].Commit(t.Context(), map[string][]byte{"bank": []byte("take"), "stock": []byte("no")})
		var is *threephase.Error
		if !errors.Is(err, dtx.ErrAborted) || !errors.As(err, &is) || is.ID != id || !strings.Contains(err.Error(), "agent stock: the balance is too small") || g.ledgers["bank"].has(id) {
			t.Error(err)
		}
		if _, err := g.agents["bank"].Commit(t.Context(), map[string][]byte{"witness": nil}); !errors.Is(err, dtx.ErrAborted) || !strings.Contains(err.Error(), "is a witness") {
			t.Error(err)
		}
		for _, payloads := range []map[string][]byte{{"shop": nil}, {"bank": make([]byte, 1<<20+1)}} {
			if _, err := g.agents["bank"].Commit(t.Context(), payloads); !errors.Is(err, pawl.ErrInvalid) {
				t.Error(err)
			}
		}
		g.until("all is forgotten", g.quiet)
		if g.ledgers["bank"].commits() != 3 || g.splits() != 0 {
			t.Error(g.ledgers["bank"].commits(), g.ledgers["stock"].commits())
		}
	})
}

// TestMissing: while an agent is down, a new transaction aborts after a time-out. The caller's ctx aborts it sooner.
func TestMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		g.kill("witness")
		begin := time.Now()
		_, err := g.agents["bank"].Commit(t.Context(), work)
		if took := time.Since(begin); !errors.Is(err, dtx.ErrAborted) || !strings.Contains(err.Error(), "no vote in time of: witness") || took > 2*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begin = time.Now()
		_, err = g.agents["bank"].Commit(ctx, work)
		if took := time.Since(begin); !errors.Is(err, dtx.ErrAborted) || !errors.Is(err, context.DeadlineExceeded) || took > 500*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
		if s := g.agents["bank"].Status(); s.Peers["witness"] == nil || s.Peers["stock"] != nil || s.Undecided != 0 {
			t.Errorf("%+v", s)
		} else if text := s.Peers["witness"].Error(); strings.Contains(text, "hidden") {
			t.Errorf("a secret of the URL is told: %s", text)
		}
		g.start("witness")
		g.until("all is forgotten", g.quiet)
		if _, err := g.agents["bank"].Commit(t.Context(), work); err != nil {
			t.Error(err)
		}
	})
}

// TestAway: an agent that is away gets one decision at a time, however many the agent has missed. When the agent is back, it hears of all.
func TestAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Second
		g := newGroup(t, threephase.Options{Timeout: timeout}, "bank", "stock", "witness")
		defer g.close()
		g.net.split([]string{"witness"})
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if _, err := g.agents["bank"].Commit(t.Context(), work); !errors.Is(err, dtx.ErrAborted) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		<-time.After(5 * timeout) // of the bubble
		most := 0
		for range 100 {
			<-time.After(timeout / 10)
			g.net.mu.Lock()
			most = max(most, g.net.flying["witness"])
			g.net.mu.Unlock()
		}
		if most == 0 || most > 3 {
			t.Errorf("%d messages at a time are on their way to an agent that is away", most)
		}
		g.net.split(nil)
		healed := time.Now()
		g.until("all is forgotten", g.quiet)
		if took := time.Since(healed); took > 10*timeout {
			t.Errorf("the agent that was away knows all after %v", took)
		}
	})
}

// TestConnections: the default client keeps few connections to a peer that takes messages and does not answer.
func TestConnections(t *testing.T) {
	t.Parallel()
	var open, most atomic.Int64
	hangs := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // then the server sees the end of the connection
		<-r.Context().Done()
	}))
	hangs.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			for n, is := open.Add(1), most.Load(); n > is && !most.CompareAndSwap(is, n); is = most.Load() {
			}
		case http.StateClosed:
			open.Add(-1)
		}
	}
	hangs.Start()
	defer hangs.Close()
	g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
	defer g.close()
	g.kill("witness")
	peers := map[string]string{"bank": hangs.URL, "stock": hangs.URL}
	witness, err := threephase.New(t.Context(), g.logs["witness"], "witness", peers, nil, &threephase.Options{Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 500 {
		all.Go(func() {
			if _, err := witness.Commit(t.Context(), nil); !errors.Is(err, dtx.ErrAborted) && !errors.Is(err, dtx.ErrInDoubt) { // in doubt on a busy machine
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := witness.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := most.Load(); n == 0 || n > 500 { // 128, and the server hears late of closed connections
		t.Errorf("%d connections at a time", n)
	}
}

// TestLogDatabases: a log may be in any database. An agent that is started again goes on with it, and a second process ends the first.
func TestLogDatabases(t *testing.T) {
	t.Parallel()
	table := fmt.Sprintf("log_%d", time.Now().UnixNano())
	postgres, maria := testservers.PostgresPool(t, testservers.SharedPostgres(t).Addr), testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr)
	file, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "log.db"))+"?_pragma=busy_timeout(20000)")
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]place{"bank": {dialect.PostgreSQL, postgres}, "stock": {dialect.MySQL, maria}, "witness": {dialect.SQLite, file}}
	g := newGroupIn(t, threephase.Options{Timeout: 20 * time.Second}, places, table, "bank", "stock", "witness")
	defer g.close()
	for range 3 {
		for _, name := range g.names {
			if id, err := g.agents[name].Commit(t.Context(), work); err != nil || !g.ledgers["bank"].has(id) {
				t.Errorf("%s: %v", name, err)
			}
			g.kill(name)
			g.start(name)
		}
	}
	if n := g.ledgers["stock"].commits(); n != 9 || g.splits() > 0 {
		t.Error(n)
	}
	for _, name := range g.names {
		first := g.agents[name]
		g.start(name)
		if _, err := first.Commit(t.Context(), work); err == nil {
			t.Errorf("%s: the first process commits", name)
		}
		if err := first.Status().Err; !errors.Is(err, threephase.ErrReplaced) {
			t.Errorf("%s: %v", name, err)
		}
		if err := first.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := g.logs[name].Resolve(t.Context(), threephase.ID{}, true, "x"); err != nil {
			t.Error(err)
		}
		if all, err := g.logs[name].Heuristics(t.Context()); err != nil || len(all) != 1 {
			t.Error(all, err)
		}
	}
}
