package lbprocesstest

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// goals are how long the test goes on. All sessions end while the store is away.
func goals(ttl time.Duration) (kills int, away time.Duration) {
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		return 60, 30 * time.Second
	}
	return 10, ttl * 3 / 2
}

// store is where the members are listed.
type store struct {
	url  string
	ttl  time.Duration
	away func() (back func()) // takes the store away
}

var stores = map[string]func(*testing.T) store{
	"redis":    func(t *testing.T) store { return paused(testservers.Redis(t), "redis://", "") },
	"etcd":     func(t *testing.T) store { return paused(testservers.Etcd(t), "etcd://", "") },
	"postgres": func(t *testing.T) store { return paused(testservers.Postgres(t), "postgres://postgres@", "/postgres") },
	"sqlite":   func(t *testing.T) store { return locked(t, filepath.Join(t.TempDir(), "pawl.db")) },
}

// paused is a server that hangs. The sessions of all members end meanwhile.
func paused(s *testservers.Server, scheme, database string) store {
	return store{scheme + s.Addr + database, 3 * time.Second, func() func() { s.Pause(); return s.Resume }}
}

// locked is a file in which another program keeps a transaction open. Clients can read the file, and only their heartbeats get no
// answer. The race detector makes SQLite slow, so the TTL is longer.
func locked(t *testing.T, file string) store {
	return store{"sqlite:" + file, 6 * time.Second, func() func() {
		db, err := sql.Open("sqlite3", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)")
		if err != nil {
			t.Fatal(err)
		}
		tx, err := db.BeginTx(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
	}}
}

// TestKilledServers: 10 servers of HTTP and 3 of gRPC are processes in two groups, and one is killed each second under
// load. No repeatable request fails. No request goes to a server later than the TTL and a second after its death. At the end no request is counted as
// in flight. While the store is away balancing goes on with the last members, and views are stale. The same books find
// two balancers wrong: one whose list stays and which repeats nothing, and one whose list is late.
func TestKilledServers(t *testing.T) {
	for kind, open := range stores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			newTrial(t, open(t)).run()
		})
	}
}

// trial is the test of one store.
type trial struct {
	*testing.T
	store
	client    *pawl.Client
	fleet     *fleet
	books     *books
	balancers map[string]*balancer
	caller    *caller
	webs      follower
	rpcs      follower

	stopLoad chan struct{}
	loads    sync.WaitGroup
}

func newTrial(t *testing.T, s store) *trial {
	t.Helper()
	client, end, err := connect(t.Context(), s.url, s.ttl, watcher)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	b := newBooks(s.ttl)
	tr := &trial{T: t, store: s, client: client, books: b, balancers: make(map[string]*balancer), stopLoad: make(chan struct{})}
	tr.fleet = newFleet(t, s.url, s.ttl, b)
	tr.balancers[usual] = newBalancer(t, b, usual, lb.PowerOfTwo, nil, httplb.Options{Tries: webs})
	tr.balancers[strict] = newBalancer(t, b, strict, lb.RoundRobin, &lb.SetOptions{EjectAfter: -1}, httplb.Options{Tries: webs, Budget: -1})
	tr.balancers[naive] = newBalancer(t, b, naive, lb.RoundRobin, &lb.SetOptions{EjectAfter: -1}, httplb.Options{Tries: 1})
	tr.balancers[slow] = newBalancer(t, b, slow, lb.RoundRobin, &lb.SetOptions{EjectAfter: -1}, httplb.Options{Tries: webs, Budget: -1})
	b.listed = func(by string) []string {
		if by == calls {
			return tr.rpcs.ids()
		}
		return tr.webs.ids()
	}
	tr.watch()
	tr.caller = newCaller(t, client, b, &tr.rpcs)
	return tr
}

// watch keeps the nodes of the balancers, and the sessions of members in the books.
func (tr *trial) watch() {
	ctx, stop := context.WithCancel(context.Background())
	lists := make(chan []lb.Node)
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := later(ctx, 2*tr.ttl, func() bool { return tr.books.found(slow) }, lists, tr.balancers[slow].set); err != nil {
			tr.Error(err)
		}
	})
	watching.Go(func() {
		for nodes := range follow(ctx, tr.T, group.New(tr.client, web), &tr.webs) {
			for _, by := range []string{usual, strict} {
				if err := tr.balancers[by].set.Update(nodes...); err != nil {
					tr.Error(err)
				}
			}
			select {
			case lists <- nodes:
			case <-ctx.Done():
			}
		}
	})
	watching.Go(func() { heldBy(ctx, tr.client, tr.books) })
	tr.Cleanup(func() { stop(); watching.Wait() })
}

// until waits for a condition.
func (tr *trial) until(what string, is func() bool) {
	tr.Helper()
	for end := time.Now().Add(10 * time.Minute); !is(); { // a guard, which judges nothing
		if time.Now().After(end) || tr.Failed() {
			tr.Fatalf("%s: not within ten minutes", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// whole reports whether the views have exactly the servers that run, and are of now.
func (tr *trial) whole() bool {
	w, old := tr.webs.has(tr.fleet.ids(web))
	r, older := tr.rpcs.has(tr.fleet.ids(rpc))
	return w && r && !old && !older
}

// begin starts the load. The naive balancer keeps the servers of now.
func (tr *trial) begin() {
	tr.until("all servers are seen", tr.whole)
	var now []lb.Node
	for _, is := range tr.balancers[usual].set.Nodes() {
		now = append(now, is.Node)
	}
	for _, by := range []string{naive, slow} {
		if err := tr.balancers[by].set.Update(now...); err != nil {
			tr.Fatal(err)
		}
	}
	for by, b := range tr.balancers {
		load(&tr.loads, tr.stopLoad, tr.books, by, b.get)
	}
	load(&tr.loads, tr.stopLoad, tr.books, usual, tr.balancers[usual].get)
	load(&tr.loads, tr.stopLoad, tr.books, calls, tr.caller.get)
}

func (tr *trial) end() {
	close(tr.stopLoad)
	tr.loads.Wait()
}

func (tr *trial) run() {
	kills, away := goals(tr.ttl)
	began := time.Now()
	tr.begin()
	ended := sync.OnceFunc(tr.end)
	defer ended()
	ready := time.Now()
	tr.fleet.killEverySecond(kills, tr.fewDead)
	tr.until("the dead servers are gone", func() bool { return tr.books.allExpired() && tr.whole() })
	tr.more(30) // of which none goes to a dead server
	tr.until("the late lists are found", func() bool { return tr.books.found(naive) && tr.books.found(slow) })
	gone := time.Now()
	clients, times := tr.books.silences()
	tr.Logf("the store did not answer %d clients, noted %d times", clients, times)
	tr.outage(away)
	ended()
	tr.Logf("ready in %v, %d kills in %v, an outage in %v", ready.Sub(began).Round(time.Millisecond), tr.fleet.kills, gone.Sub(ready).Round(time.Millisecond), time.Since(gone).Round(time.Millisecond))
	tr.judge(kills)
}

// fewDead waits until no more dead servers are listed than die in a TTL and three seconds. On a machine that is too busy for the sweepers nearly
// all listed servers would be dead, and then no budget of repeats is enough.
func (tr *trial) fewDead() {
	tr.until("few dead servers are listed", func() bool {
		return tr.books.dead(tr.webs.ids())+tr.books.dead(tr.rpcs.ids()) <= int(tr.ttl/time.Second)+3
	})
}

// more waits for so many further requests of each balancer.
func (tr *trial) more(n int) {
	for _, by := range []string{usual, strict, calls} {
		at := tr.books.served(by)
		tr.until("requests go on", func() bool { return tr.books.served(by) >= at+n })
	}
}

// outage takes the store away. Requests go on meanwhile.
func (tr *trial) outage(away time.Duration) {
	before := [2]map[string]bool{tr.fleet.ids(web), tr.fleet.ids(rpc)}
	back := tr.store.away()
	ended := sync.OnceFunc(back)
	defer ended()
	since := time.After(away)
	tr.until("the views are stale", func() bool {
		_, w := tr.webs.has(nil)
		_, r := tr.rpcs.has(nil)
		return w && r
	})
	<-since
	tr.more(30)
	w, old := tr.webs.has(before[0])
	r, older := tr.rpcs.has(before[1])
	if !w || !r || !old || !older {
		tr.Errorf("while the store is away the views are %+v and %+v", tr.webs.view, tr.rpcs.view)
	}
	ended()
	tr.until("the store is back", tr.whole)
	tr.more(30)
}

// judge looks at the books.
func (tr *trial) judge(kills int) {
	for _, by := range []string{usual, strict, calls} {
		v, failed := tr.books.judge(by), tr.books.failed[by]-tr.books.excused[by]
		tr.Logf("%s: %d of %d requests failed and %d with an excuse, the last to a dead server %v after its death, %d of %d deaths excused: %q",
			by, failed, tr.books.done[by], tr.books.excused[by], v.most.Round(time.Millisecond), len(v.excused), tr.fleet.kills, v.excused)
		if failed > 0 || len(v.late) > 0 {
			tr.Errorf("%s: %d requests failed, %v: %q", by, failed, tr.books.why, v.late)
		}
	}
	for _, by := range []string{naive, slow} {
		v, failed := tr.books.judge(by), tr.books.failed[by]
		tr.Logf("%s: %d of %d requests failed, and %d servers got requests after their end", by, failed, tr.books.done[by], len(v.late))
		if failed == 0 && by == naive || len(v.late) == 0 {
			tr.Errorf("%s: the test finds nothing wrong", by)
		}
	}
	for by, b := range tr.balancers {
		if n := b.inFlight(); n != 0 {
			tr.Errorf("%s: %d requests are in flight", by, n)
		}
	}
	if tr.fleet.kills != kills {
		tr.Errorf("%d servers were killed", tr.fleet.kills)
	}
	tr.idle()
}

// idle calls one after another. A server with a call that was counted for ever would get none.
func (tr *trial) idle() {
	tr.books.mu.Lock()
	clear(tr.books.last)
	tr.books.mu.Unlock()
	for range 10 * rpcs {
		if err := tr.caller.get(tr.Context()); err != nil {
			tr.Error(err)
		}
	}
	for id := range tr.fleet.ids(rpc) {
		if tr.books.last[calls+" to "+id].IsZero() {
			tr.Errorf("%s gets no call, as if another were in flight", id)
		}
	}
}
