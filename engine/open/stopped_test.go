package open_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/engine/redisengine/goredis"
	"github.com/pawl-go/pawl/internal/testservers"
)

// stoppable are the servers that have a process to stop, and how clients open them.
var stoppable = map[string]struct {
	start func(testing.TB, ...string) *testservers.Server
	open  func(t *testing.T, addr string) engine.Engine
	ttl   time.Duration
}{
	"redis": {testservers.Redis, byURL(func(addr string) string { return "redis://" + addr }), time.Second},
	"go-redis": {testservers.Redis, func(t *testing.T, addr string) engine.Engine {
		raw := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { raw.Close() })
		eng, err := goredis.New(raw, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { eng.Close() })
		return eng
	}, 3 * time.Second},
	"postgres":     {testservers.Postgres, byURL(postgresURL("")), time.Second},
	"postgres row": {testservers.Postgres, byURL(postgresURL("mode=row")), time.Second},
	"mariadb":      {testservers.MariaDB, byURL(mysqlURL), time.Second},
	"mariadb row":  {testservers.MariaDB, byURL(func(addr string) string { return mysqlURL(addr) + "?mode=row" }), time.Second},
	"etcd":         {testservers.Etcd, byURL(func(addr string) string { return etcdURL(addr) }), 2 * time.Second},
	"nats":         {testservers.NATS, byURL(natsURL), time.Second},
	"zk":           {startZooKeeper, byURL(func(addr string) string { return zkURL(addr) }), zkTTL},
}

func byURL(url func(addr string) string) func(*testing.T, string) engine.Engine {
	return func(t *testing.T, addr string) engine.Engine { return connect(t, url(addr)) }
}

// ofStopped are calls of a client whose server is about to be stopped. other holds the lock that
// one call waits for.
func ofStopped(t *testing.T, c, other *pawl.Client, eng engine.Engine, ttl time.Duration) map[string]func(context.Context) error {
	calls := map[string]func(context.Context) error{
		"lock":         func(ctx context.Context) error { _, err := c.Mutex("new").Lock(ctx); return err },
		"try":          func(ctx context.Context) error { _, err := c.Mutex("new").TryLock(ctx); return err },
		"unlock":       hold(t, c, "held").Unlock,
		"show":         func(ctx context.Context) error { _, err := c.Show(ctx, "held"); return err },
		"break":        func(ctx context.Context) error { _, err := c.Break(ctx, "held", pawl.BreakOptions{}); return err },
		"a new client": func(ctx context.Context) error { _, err := pawl.New(ctx, eng, &pawl.Options{TTL: ttl}); return err },
		"list": func(ctx context.Context) error {
			for _, err := range c.List(ctx, "") {
				return err
			}
			return nil
		},
	}
	if eng.Caps().RefuseFeature(engine.FeatureValues) == nil {
		calls["get"] = func(ctx context.Context) error { _, err := c.Value("v").Get(ctx); return err }
		calls["put"] = func(ctx context.Context) error { _, err := c.Value("v").Put(ctx, nil, 0); return err }
	}
	if eng.Caps().RefuseFeature(engine.FeatureShared) == nil {
		calls["rlock"] = func(ctx context.Context) error { _, err := c.RWMutex("new").RLock(ctx); return err }
	}
	hold(t, other, "waited for")
	waiting, giveUp := context.WithCancel(t.Context())
	t.Cleanup(giveUp)
	waited := make(chan error, 1)
	go func() { _, err := c.Mutex("waited for").Lock(waiting); waited <- err }()
	eventually(t, "it waits", func() bool {
		r, err := eng.Show(t.Context(), "waited for")
		return err == nil && len(r.Claims) == 2
	})
	calls["a wait that began before"] = func(ctx context.Context) error {
		defer context.AfterFunc(ctx, giveUp)()
		return <-waited
	}
	return calls
}

// TestStoppedServer: the process of the server is stopped (SIGSTOP), so that its kernel still takes
// connections and data, and nothing answers. Each call fails within its ctx and 100 ms, by a timer
// that was set beside it. When the server goes on, its names are free again.
func TestStoppedServer(t *testing.T) {
	for name, test := range stoppable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := test.start(t)
			eng := test.open(t, server.Addr)
			if _, err := open.Init(t.Context(), eng); err != nil {
				t.Fatal(err)
			}
			c, other := clientOf(t, eng, test.ttl), clientOf(t, test.open(t, server.Addr), test.ttl)
			calls := ofStopped(t, c, other, eng, test.ttl)
			server.Pause()
			for name, call := range calls {
				if err := bounded(t, name, call); err == nil {
					t.Errorf("%s: no error of a server that is stopped", name)
				}
			}
			bounded(t, "close", c.Close) // without an error if the session has ended by now
			server.Resume()
			again := clientOf(t, test.open(t, server.Addr), test.ttl)
			for _, name := range []string{"held", "new"} {
				if err := hold(t, again, name).Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// bounded fails the test unless a call returns in time.
func bounded(t *testing.T, name string, call func(context.Context) error) error {
	t.Helper()
	const wait, more = 50 * time.Millisecond, 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	start := time.Now()
	beside := make(chan time.Duration, 1)
	time.AfterFunc(wait+more, func() { beside <- time.Since(start) })
	err := call(ctx)
	took, timer := time.Since(start), <-beside
	// A call that lingers ends with a timer of the same length, and then some goroutines run.
	if late := timer - wait - more; took > timer+late+more {
		t.Errorf("%s was back after %v, the timer after %v: %v", name, took, timer, err)
	}
	return err
}
