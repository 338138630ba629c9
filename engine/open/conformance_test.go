package open_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// connect opens an engine by its URL, as the command does.
func connect(t *testing.T, url string) engine.Engine {
	t.Helper()
	eng, err := open.Again(func() (engine.Engine, error) { return open.Open(t.Context(), url) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	})
	return eng
}

func clientOf(t *testing.T, eng engine.Engine, ttl time.Duration) *pawl.Client {
	t.Helper()
	c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c.Close(ctx) //nolint:errcheck // some stores are away by then
	})
	return c
}

type locked struct {
	*pawl.Lease
	err error
	at  time.Time
}

func lockSoon(t *testing.T, m *pawl.Mutex) <-chan locked {
	got := make(chan locked, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		l, err := m.Lock(ctx)
		got <- locked{l, err, time.Now()}
	}()
	return got
}

// lockThrough is lockSoon over an outage that may be longer than the TTL: Lock says so then, and the
// waiter locks again.
func lockThrough(t *testing.T, m *pawl.Mutex) <-chan locked {
	got := make(chan locked, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for {
			l, err := m.Lock(ctx)
			if err == nil || !errors.Is(err, pawl.ErrUnavailable) || ctx.Err() != nil {
				got <- locked{l, err, time.Now()}
				return
			}
		}
	}()
	return got
}

// slowest locks a name again and again, and returns what the longest try and release have taken until then. A busy machine delays also
// what a test waits for.
func slowest(t *testing.T, c *pawl.Client) func() time.Duration {
	var most atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var probing sync.WaitGroup
	probing.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			l, err := c.Mutex("probe").TryLock(ctx)
			if err == nil {
				err = l.Unlock(ctx)
			}
			if err == nil {
				most.Store(max(most.Load(), int64(time.Since(began))))
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); probing.Wait() })
	return func() time.Duration { return time.Duration(most.Load()) }
}

// proxied is the network hook of a server that speaks at addr.
func proxied(addr string, url func(addr string) string) func(*testing.T) (engine.Engine, enginetest.Network) {
	return func(t *testing.T) (engine.Engine, enginetest.Network) {
		through, net := proxies(t, addr)
		return connect(t, url(through[0])), net
	}
}

func addrsOf(servers []*testservers.Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// proxies puts a proxy before each address.
func proxies(t *testing.T, addrs ...string) (through []string, net enginetest.Network) {
	t.Helper()
	var all []*proxy.Proxy
	for _, addr := range addrs {
		link := proxy.New(t, addr)
		all, through = append(all, link), append(through, link.Addr)
	}
	return through, network(t, all...)
}

// network is a network whose trouble all these proxies make.
func network(t *testing.T, proxies ...*proxy.Proxy) enginetest.Network {
	freeze, freezeReplies, cut, heal := proxy.Together(proxies)
	t.Cleanup(heal) // so that all open connections can say goodbye
	return enginetest.Network{Freeze: freeze, FreezeReplies: freezeReplies, Cut: cut, Heal: heal}
}

func TestMemory(t *testing.T) {
	eng := memengine.New()
	enginetest.Run(t, &enginetest.Harness{
		Open:        func(*testing.T) engine.Engine { return eng },
		TTL:         500 * time.Millisecond,
		KillSession: func(_ *testing.T, session string) { eng.Expire(session) },
		Fresh: func(*testing.T) func(*testing.T) engine.Engine {
			eng := memengine.New()
			return func(*testing.T) engine.Engine { return eng }
		},
		Cannot: map[string]string{"Snapshot": "the store keeps nothing", "Full": "a test cannot bound the memory of its process", "Hang": "nothing hangs in a process"},
	})
}

// sqliteRows counts the rows of tables that should be empty.
func sqliteRows(t *testing.T, path string) map[string]int {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows := make(map[string]int)
	for _, table := range []string{"pawl_sessions", "pawl_claims", "pawl_values"} {
		var n int
		if err := db.QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			rows[table] = n
		}
	}
	return rows
}

func TestSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pawl.db")
	enginetest.Run(t, &enginetest.Harness{
		Open: func(t *testing.T) engine.Engine { return connect(t, "sqlite:"+path) },
		TTL:  2 * time.Second,
		Fresh: func(t *testing.T) func(*testing.T) engine.Engine {
			return unused("sqlite:" + filepath.Join(t.TempDir(), "NEW.db"))(t)
		},
		Cannot: map[string]string{
			"Snapshot": "clients have the file open, so a file that takes its place is another store",
			"Full":     "only the connections of the engine can bound the file: TestFullFileTakesReleases of engine/sqliteengine",
			"Hang":     "the file has one writer at a time, whatever the name",
		},
		KillSession: func(t *testing.T, session string) {
			db, err := sql.Open("sqlite3", "file:"+path+"?_pragma=busy_timeout(10000)")
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("UPDATE pawl_sessions SET ends = 0 WHERE id = ?", session); err != nil {
				t.Fatal(err)
			}
		},
	})
}

func redisURL(addr string) string { return "redis://" + addr }

func TestRedis(t *testing.T) {
	addr := testservers.SharedRedis(t).Addr
	enginetest.Run(t, &enginetest.Harness{
		Open:        func(t *testing.T) engine.Engine { return connect(t, redisURL(addr)) },
		TTL:         time.Second,
		Network:     proxied(addr, redisURL),
		Fresh:       unused(redisURL(addr) + "?prefix=NEW:"),
		KillSession: redisKiller(t, rueidis.ClientOption{InitAddress: []string{addr}}),
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			server := testservers.Redis(t)
			return func(t *testing.T) engine.Engine { return connect(t, redisURL(server.Addr)) },
				func() { server.Kill(); server.Restart() }
		},
		Snapshot: snapshot(testservers.Redis, redisURL, "--appendonly", "yes", "--appendfsync", "always"),
		Full:     fullRedis,
		Cannot:   map[string]string{"Hang": inOneRow},
	})
}

// inOneRow is why no name can hang alone in a store.
const inOneRow = "the server serves the requests of all names in one row"

// otherRedis is why some rows do not run where another test has them for every Redis server.
var otherRedis = map[string]string{
	"Fresh": "the row is in TestRedis", "Snapshot": "the row is in TestRedis", "Full": "the row is in TestRedis", "Hang": inOneRow,
}

// unused is the hook of a new store on a server that others use: NEW in its URL is a name that
// nobody has used.
func unused(url string) func(*testing.T) func(*testing.T) engine.Engine {
	return func(*testing.T) func(*testing.T) engine.Engine {
		url := strings.ReplaceAll(url, "NEW", "new_"+strings.ToLower(rand.Text()))
		return func(t *testing.T) engine.Engine { return connect(t, url) }
	}
}

// snapshot is the hook of a store on a server of its own.
func snapshot(start func(testing.TB, ...string) *testservers.Server, url func(addr string) string, args ...string) func(*testing.T) (func(*testing.T) engine.Engine, func() func()) {
	return func(t *testing.T) (func(*testing.T) engine.Engine, func() func()) {
		server := start(t, args...)
		return func(t *testing.T) engine.Engine { return connect(t, url(server.Addr)) }, server.Snapshot
	}
}

func etcdURL(addr string) string { return "etcd://" + addr }

func TestEtcd(t *testing.T) {
	addr := testservers.SharedEtcd(t).Addr
	enginetest.Run(t, &enginetest.Harness{
		Open:        func(t *testing.T) engine.Engine { return connect(t, etcdURL(addr)) },
		TTL:         2 * time.Second,
		Network:     proxied(addr, etcdURL),
		Fresh:       unused(etcdURL(addr) + "?prefix=NEW/"),
		KillSession: etcdKiller(t, addr),
		Snapshot:    snapshot(testservers.Etcd, etcdURL),
		Full:        fullEtcd,
		Cannot:      map[string]string{"Hang": inOneRow},
	})
}
