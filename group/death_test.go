package group

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/internal/killtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// beMember makes the test binary a member. The lines are the URL of the store, the TTL and the name of the group.
const beMember = "PAWL_GROUP_MEMBER"

// serve is a member until it is killed.
func serve(order []string) error {
	ttl, err := time.ParseDuration(order[1])
	if err != nil {
		return err
	}
	ctx := context.Background()
	client, _, err := patient(ctx, order[0], ttl)
	if err != nil {
		return err
	}
	is, err := insist(ctx, New(client, order[2]), Member{ID: fmt.Sprint(os.Getpid())})
	if err != nil {
		return err
	}
	<-is.Ended()
	return fmt.Errorf("the member has ended: %w", is.Err())
}

// deaths follows what happens to members that are killed.
type deaths struct {
	mu      sync.Mutex
	from    time.Time   // kills begin
	killed  []time.Time // when each was killed
	expired []time.Time // when the store first listed fewer locks
	gone    []time.Time // when a view first had fewer members
	busy    []time.Time // when the machine or the store was slow to answer: then sweepers are patient for a TTL
}

// note notes that so many of all are left. On a busy machine a member may lose its session, and join again.
func (d *deaths) note(all, left int, when *[]time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*when = (*when)[:min(len(*when), all-left)]
	for len(*when) < all-left {
		*when = append(*when, time.Now())
	}
}

// next allows a kill when the member before is gone. A kill follows at once.
func (d *deaths) next() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, n := time.Now(), len(d.killed)
	if now.After(d.from) && (len(d.gone) == n && len(d.expired) == n || n > 0 && now.Sub(d.killed[n-1]) > slow) {
		d.killed = append(d.killed, now)
	}
	return len(d.killed)
}

// late is how long a member was listed after its session had ended. A TTL in which the machine was busy does not count.
func (d *deaths) late(i int, ttl time.Duration) time.Duration {
	from := d.expired[i]
	for _, busy := range d.busy {
		if end := busy.Add(ttl); busy.Before(d.gone[i]) && end.After(from) {
			from = end
		}
	}
	return d.gone[i].Sub(from)
}

// locksOf lists the locks that members hold.
func locksOf(ctx context.Context, g *Group) (held []string, err error) {
	for r, err := range g.client.List(ctx, g.locks.Mutex(g.name+"/").Name()) {
		if err != nil {
			return nil, err
		}
		if len(r.Holders) > 0 {
			held = append(held, r.Name)
		}
	}
	return held, nil
}

// TestDeaths: on every store processes are killed with SIGKILL. Each is gone a second after the store ended its session.
// The log has the time since its death, because stores differ in when they end a session. Any of the processes may have been the sweeper.
func TestDeaths(t *testing.T) {
	for kind, store := range stores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const members = 3
			url, name, ttl := store(t), unused(), ttlOf(kind)
			workers := killtest.StartOnce(t, members, beMember+"="+url+"\n"+ttl.String()+"\n"+name)
			g := New(connect(t, url, ttl), name)
			seen := follow(t, g)
			seen.until("all join", slow, func(v View) bool { return len(v.Members) == members })
			d := &deaths{from: time.Now().Add(ttl)} // sweepers are patient for one TTL first
			ctx, stop := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			watching.Go(func() {
				for last := time.Now(); ctx.Err() == nil; <-time.After(20 * time.Millisecond) {
					if held, err := locksOf(ctx, g); err == nil {
						d.note(members, len(held), &d.expired)
					}
					if now := time.Now(); now.Sub(last) > ttl/10 {
						d.busy = append(d.busy, now)
					}
					last = time.Now()
				}
			})
			watching.Go(func() {
				for len(d.gone) < members {
					select {
					case v := <-seen.ch:
						d.note(members, len(v.Members), &d.gone)
					case <-ctx.Done():
						return
					}
				}
			})
			kills := workers.KillAtWork(members, d.next)
			for end := time.Now().Add(slow); ; {
				d.mu.Lock()
				done := len(d.gone) == members && len(d.expired) == members
				d.mu.Unlock()
				if done || time.Now().After(end) {
					break
				}
				<-time.After(10 * time.Millisecond)
			}
			stop()
			watching.Wait()
			if kills != members || len(d.gone) != members || len(d.expired) != members {
				t.Fatalf("%d kills, %d expired, %d gone", kills, len(d.expired), len(d.gone))
			}
			for i := range members {
				after, late := d.gone[i].Sub(d.killed[i]), d.gone[i].Sub(d.expired[i])
				t.Logf("gone %v after its death, and %v after its session", after.Round(time.Millisecond), late.Round(time.Millisecond))
				if late := d.late(i, ttl); late > time.Second {
					t.Errorf("member %d is gone %v after the store ended its session", i, late)
				}
			}
		})
	}
}

// TestLostData: a Redis server restarts empty, or with an older copy. For one TTL the watcher keeps the members that it knew, and members
// join again.
func TestLostData(t *testing.T) {
	t.Run("all", func(t *testing.T) { losesData(t, false) })
	t.Run("the last changes", func(t *testing.T) { losesData(t, true) })
}

func losesData(t *testing.T, copied bool) {
	t.Parallel()
	server := testservers.Redis(t, "--save", "", "--appendonly", "no")
	url, ttl := "redis://"+server.Addr, 3*time.Second // a busy machine joins again within that
	mine, other := New(connect(t, url, ttl), "g"), New(connect(t, url, ttl), "g")
	if copied {
		first := join(t, mine, Member{ID: "a"})
		save(t, server.Addr)
		if err := first.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	join(t, mine, Member{ID: "a"})
	join(t, mine, Member{ID: "b"})
	seen := follow(t, other)
	seen.until("two join", slow, fresh("ab"))
	server.Kill()
	seen.until("the store is away", slow, func(v View) bool { return v.Stale })
	server.Restart()
	view := seen.until("the store is back", slow, func(v View) bool {
		if ids(v.Members) != "ab" {
			t.Errorf("%v are seen", v)
		}
		return !v.Stale
	})
	if len(view.Members) == 0 || view.Members[0].Token == 0 {
		t.Errorf("%v", view)
	}
	if all, err := other.Members(t.Context()); err != nil || ids(all) != "ab" {
		t.Errorf("%v, %v", all, err)
	}
}

// TestLossSeenTwice: the store has lost the group, and does not answer as a watcher reads the first page of the new group. So the watcher learns of the loss
// from a look that fails, and keeps the members all the same. Then the store is away for longer than a TTL, or can only be read. Members cannot join
// again meanwhile, so the watcher keeps them for a TTL from then.
func TestLossSeenTwice(t *testing.T) {
	for name, verbs := range map[string][]string{"away": {faulty.Get, faulty.Renew}, "only read": {faulty.Renew}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { lossSeenTwice(t, verbs) })
		})
	}
}

func lossSeenTwice(t *testing.T, away []string) {
	eng := memengine.New()
	store := faulty.New(eng)
	g := New(dial(t, eng), "g")
	write := func(members ...entry) {
		if err := g.changePage(t.Context(), pageOf("a"), func(p *pageValue) error { p.Members = members; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	client := dial(t, store)
	w := &watch{list: newList(New(client, "g"))}
	look := func(what, want string, stale bool) {
		t.Helper()
		if v, err := w.look(t.Context()); err != nil || ids(v.Members) != want || v.Stale != stale {
			t.Errorf("%s: %v, %v", what, v, err)
		}
	}
	if _, err := client.Mutex("m").Lock(t.Context()); err != nil { // so that there is a heartbeat
		t.Fatal(err)
	}
	write(entry{Member: Member{ID: "a", Weight: 1}, Lock: "a"})
	look("before", "a", false)
	write()
	if err := g.changeHead(t.Context(), func(h *headValue) bool { h.Life = "another"; return true }); err != nil {
		t.Fatal(err)
	}
	store.Set(faulty.First(1, nil, faulty.Fails), faulty.Get) // the head is read, and the page is not
	look("the store does not answer", "a", true)
	store.Heal()
	look("the store answers", "a", true)
	store.Set(faulty.Fails, away...)
	ttl := client.TTL()
	for range 10 {
		<-time.After(ttl / 3)
		look("the store is away", "a", true)
	}
	store.Heal()
	<-time.After(ttl / 2)
	look("the store is back", "a", true)
	if _, err := client.Mutex("other").Lock(t.Context()); err != nil { // in a new session
		t.Fatal(err)
	}
	<-time.After(ttl)
	look("a TTL later", "", false)
}

// TestOutage: the network of all is away for longer than the TTL, so that all sessions end. No view lacks a member
// before a member that has really died is gone.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"postgres", "etcd", "redis"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ttl, name := ttlOf(kind), unused()
			addr, url := map[string]string{}, map[string]string{}
			switch kind {
			case "postgres":
				addr[kind] = testservers.SharedPostgres(t).Addr
				url[kind] = "postgres://postgres@%s/postgres"
			case "etcd":
				addr[kind], url[kind] = testservers.SharedEtcd(t).Addr, "etcd://%s"
			case "redis":
				addr[kind], url[kind] = testservers.SharedRedis(t).Addr, "redis://%s"
			}
			link, doomed := proxy.New(t, addr[kind]), proxy.New(t, addr[kind])
			at := func(p *proxy.Proxy) *Group { return New(connect(t, fmt.Sprintf(url[kind], p.Addr), ttl), name) }
			join(t, at(link), Member{ID: "a"})
			join(t, at(link), Member{ID: "b"})
			join(t, at(doomed), Member{ID: "c"})
			seen := follow(t, at(link))
			seen.until("all join", slow, fresh("abc"))
			link.Freeze()
			doomed.Freeze()
			seen.until("the store is away", slow, func(v View) bool { return v.Stale })
			direct := New(connect(t, fmt.Sprintf(url[kind], addr[kind]), ttl), name)
			for held := []string{""}; len(held) > 0; { // until the sessions have ended
				var err error
				if held, err = locksOf(t.Context(), direct); err != nil {
					t.Fatal(err)
				}
				<-time.After(10 * time.Millisecond)
			}
			link.Heal()
			seen.until("the dead member is gone", slow, func(v View) bool {
				all := ids(v.Members)
				if all != "abc" && all != "ab" {
					t.Errorf("%v are seen", v)
				}
				return all == "ab" && !v.Stale
			})
			doomed.Heal() // so that its client can close
		})
	}
}

// TestOnlyRead: another program holds the write lock of a SQLite file, so that the file can only be read. The watcher goes on
// with its members, and says that they are stale.
func TestOnlyRead(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pawl.db")
	join(t, New(connect(t, "sqlite:"+file, time.Second), "g"), Member{ID: "a"})
	seen := follow(t, New(connect(t, "sqlite:"+file, time.Second), "g"))
	seen.until("a joins", slow, func(v View) bool { return ids(v.Members) == "a" && !v.Stale })
	db, err := sql.Open("sqlite3", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // the test is over
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	view := seen.until("the store is away", slow, func(v View) bool { return v.Stale })
	if ids(view.Members) != "a" {
		t.Errorf("%v are seen", view)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	seen.until("the store is back", slow, func(v View) bool { return ids(v.Members) == "a" && !v.Stale })
}

// TestCatchesUp: the network of a watcher is away while a member leaves, another joins, and a third changes. The watcher keeps what it knew, and then sees
// all of that.
func TestCatchesUp(t *testing.T) {
	t.Parallel()
	for kind, of := range map[string]struct{ addr, url string }{
		"postgres": {testservers.SharedPostgres(t).Addr, "postgres://postgres@%s/postgres"},
		"etcd":     {testservers.SharedEtcd(t).Addr, "etcd://%s"},
		"redis":    {testservers.SharedRedis(t).Addr, "redis://%s"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			link, name := proxy.New(t, of.addr), unused()
			direct := New(connect(t, fmt.Sprintf(of.url, of.addr), 10*time.Second), name)
			a, b := join(t, direct, Member{ID: "a"}), join(t, direct, Member{ID: "b"})
			seen := follow(t, New(connect(t, fmt.Sprintf(of.url, link.Addr), 3*time.Second), name))
			seen.until("both join", slow, fresh("ab"))
			link.Freeze()
			seen.until("the store is away", slow, func(v View) bool { return v.Stale })
			if err := a.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			join(t, direct, Member{ID: "c"})
			if err := b.Update(t.Context(), Member{Weight: 7}); err != nil {
				t.Fatal(err)
			}
			link.Heal()
			seen.until("all changes are seen", slow, func(v View) bool {
				if is := ids(v.Members); v.Stale && is != "ab" && is != "bc" { // the list may be read before the heartbeat is answered
					t.Errorf("while the store is away %v are seen", v)
				}
				return !v.Stale && ids(v.Members) == "bc" && v.Members[0].Weight == 7
			})
		})
	}
}

// TestNobodyInGrace: an empty list is not believed while the store grants no locks, because members cannot join yet.
func TestNobodyInGrace(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t) // which may have forgotten its locks
	if all, err := New(connect(t, "redis://"+server.Addr, time.Minute), "g").Members(t.Context()); !errors.Is(err, pawl.ErrGrace) {
		t.Errorf("%v, %v", all, err)
	}
}

// TestThousand: a thousand members of ten clients are all seen, and the death of one client takes a hundred off the list.
func TestThousand(t *testing.T) {
	t.Parallel()
	const clients, each = 10, 100
	name, url, ttl := unused(), "redis://"+testservers.SharedRedis(t).Addr, 8*time.Second
	link := proxy.New(t, testservers.SharedRedis(t).Addr)
	seen := follow(t, New(connect(t, url, ttl), name))
	var joining sync.WaitGroup
	began := time.Now()
	for c := range clients {
		from := url
		if c == 0 {
			from = "redis://" + link.Addr
		}
		g := New(connect(t, from, ttl), name)
		joining.Go(func() {
			for i := range each {
				if _, err := insist(t.Context(), g, Member{Addr: fmt.Sprintf("10.0.%d.%d:8080", c, i), Meta: map[string]string{"zone": "north-1", "version": "1.2.3"}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	joining.Wait()
	seen.until("all join", slow, func(v View) bool { return len(v.Members) == clients*each })
	t.Logf("%d members joined in %v", clients*each, time.Since(began))
	cut := time.Now()
	link.Freeze()
	seen.until("the members of a client are gone", slow, func(v View) bool { return len(v.Members) == (clients-1)*each })
	t.Logf("%d members are gone in %v", each, time.Since(cut))
}

// TestAllSweepersDie: all sweepers die within a TTL, the first of them alone. Another client takes the turn of the first at once. So the first
// is off the list before the store has ended the sessions of the others.
func TestAllSweepersDie(t *testing.T) {
	t.Parallel()
	ttl, name, addr := 12*time.Second, unused(), testservers.SharedRedis(t).Addr
	at := func(addr string) *Group { return New(connect(t, "redis://"+addr, ttl), name) }
	last := at(addr)
	show := func(lock string) pawl.Resource {
		r, err := last.client.Show(t.Context(), lock)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	sweep := func() (n int) {
		for i := range sweepers {
			n += len(show(last.sweeps.Mutex(fmt.Sprintf("%s/%d", name, i)).Name()).Holders)
		}
		return n
	}
	var links []*proxy.Proxy
	var locks []string // of the first
	for i := range sweepers {
		links = append(links, proxy.New(t, addr))
		join(t, at(links[i].Addr), Member{ID: string(rune('a' + i))})
		await(t, "one more sweeps", func() bool { return sweep() == i+1 })
		if i == 0 {
			var err error
			if locks, err = locksOf(t.Context(), last); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func() time.Duration { return show(locks[0]).Holders[0].Left }
	seen := follow(t, last)
	seen.until("all join", slow, fresh("abc"))
	await(t, "another client waits", func() bool { return len(show(last.sweeps.Mutex(name+"/0").Name()).Waiters) > 0 })
	await(t, "the first is to renew its session", func() bool { return left() < ttl-2*time.Second })
	await(t, "the first has just renewed its session", func() bool { return left() > ttl-time.Second })
	links[0].Freeze()
	await(t, "the first has little time left", func() bool { return left() < 4*time.Second })
	for _, link := range links[1:] {
		link.Freeze()
	}
	seen.until("the first is gone", time.Minute, has("bc"))
	if held, err := locksOf(t.Context(), last); err != nil || len(held) != sweepers-1 {
		t.Errorf("the first is gone after the sessions of others: %v, %v", held, err)
	}
	for _, link := range links { // so that the clients can close
		link.Heal()
	}
}

// await waits for a condition.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
