package segment_test

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	openengine "github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/segment"
	"github.com/pawl-go/pawl/id/sqlmark"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }

// process is a counter of a process of its own, so to say: with its own client.
type process func(t *testing.T) id.Counter

func database(driver, source string, d dialect.Dialect) process {
	return func(t *testing.T) id.Counter {
		db, err := sql.Open(driver, source)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
		r, err := sqlmark.New(db, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Create(t.Context()); err != nil {
			t.Fatal(err)
		}
		return r.Counter("segment")
	}
}

// Several processes on one counter, whose server is killed again and again, with batches so
// small that they are always at the store.
func TestStoresOverKills(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (process, *testservers.Server){
		"PostgreSQL": func(t *testing.T) (process, *testservers.Server) {
			s := testservers.Postgres(t)
			return database("pgx", testservers.PostgresURL(s.Addr), dialect.PostgreSQL), s
		},
		"MariaDB": func(t *testing.T) (process, *testservers.Server) {
			s := testservers.MariaDB(t)
			config := testservers.MariaDBConfig(s.Addr)
			return func(t *testing.T) id.Counter {
				if err := mysql.SetLogger(&mysql.NopLogger{}); err != nil {
					t.Fatal(err)
				}
				return database("mysql", config.FormatDSN(), dialect.MySQL)(t)
			}, s
		},
		"etcd": func(t *testing.T) (process, *testservers.Server) {
			s := testservers.Etcd(t)
			return func(t *testing.T) id.Counter {
				eng, err := openengine.Open(t.Context(), "etcd://"+s.Addr)
				if err != nil {
					t.Fatal(err)
				}
				client, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: 2 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { client.Close(context.Background()); eng.Close() }) //nolint:errcheck // its store may be dead
				r, err := id.Values(client, nil)
				if err != nil {
					t.Fatal(err)
				}
				return r.Counter("segment")
			}, s
		},
	} {
		t.Run(name, func(t *testing.T) {
			open, server := start(t)
			check := overKills(t, open, server)
			if n, err := check.Check(); err != nil || n < 10000 {
				t.Errorf("%d numbers: %v", n, err)
			} else {
				t.Logf("%d numbers", n)
			}
		})
	}
}

// overKills has 4 processes with 4 goroutines each at work while the server is killed 5 times.
func overKills(t *testing.T, open process, server *testservers.Server) *idtest.Checker[int64] {
	check := &idtest.Checker[int64]{}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	for range 4 {
		g := generator(t, open(t), &segment.Options{MinStep: 20, MaxStep: 200, Cover: 20 * time.Millisecond, RequestTimeout: 500 * time.Millisecond})
		for range 4 {
			log := check.Log()
			group.Go(func() {
				for dst := make([]int64, 7); ctx.Err() == nil; {
					n, err := g.NextN(ctx, dst)
					log.Add(dst[:n]...)
					if err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	for range 5 {
		<-time.After(150 * time.Millisecond) // that they work in
		server.Kill()
		server.Restart()
	}
	<-time.After(500 * time.Millisecond) // as above
	stop()
	group.Wait()
	return check
}

// Several goroutines get more than one million numbers, in batches so small that they are always
// being loaded. The numbers rise for each goroutine, and none is there twice.
func TestMillionsInMemory(t *testing.T) {
	s := newStore(t)
	s.delay = 0
	g := generator(t, s, &segment.Options{MinStep: 50, MaxStep: 5000, Cover: 10 * time.Millisecond})
	var check idtest.Checker[int64]
	var group sync.WaitGroup
	for i := range 4 {
		log := check.Log()
		group.Go(func() {
			dst := make([]int64, 1+i*i)
			for range 300_000 {
				n, err := g.NextN(t.Context(), dst[:1+len(dst)/2])
				if err != nil {
					t.Error(err)
					return
				}
				log.Add(dst[:n]...)
			}
		})
	}
	group.Wait()
	if n, err := check.Check(); err != nil || n < 1_000_000 {
		t.Errorf("%d numbers: %v", n, err)
	}
}

func TestNextAllocatesNothing(t *testing.T) {
	s := newStore(t)
	g := generator(t, s, &segment.Options{MinStep: 1_000_000})
	dst := make([]int64, 10)
	if _, err := g.NextN(t.Context(), dst); err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(10000, func() {
		if _, err := g.Next(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := g.NextN(t.Context(), dst); err != nil {
			t.Error(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
