package zkengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// many is how many wait.
func many() int {
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		return 5000
	}
	return 500
}

// counted is an engine that counts its requests, but for pings, and which of them are lists.
func counted(t *testing.T, addr string) (e *Engine, requests, lists *atomic.Int64) {
	requests, lists = new(atomic.Int64), new(atomic.Int64)
	e = tap(t, addr, func(op int32, _ string) fate {
		switch op {
		case opPing:
			return arrives
		case opChildren:
			lists.Add(1)
		}
		requests.Add(1)
		return arrives
	})
	return e, requests, lists
}

const opChildren = 12

// crowd has n claims wait, some at once, and awaits them.
func crowd(t *testing.T, s *session, spec engine.Spec, n int) (claims []*engine.Claim, got []<-chan sessiontest.Answer) {
	t.Helper()
	weight := spec.Capacity
	if spec.Kind == engine.KindSemaphore {
		weight = 1
	}
	for range n {
		claims = append(claims, sessiontest.Claim(t, spec, weight, ""))
	}
	if err := each(n, func(i int) error {
		g, err := s.Enter(ctx, claims[i], true)
		if err == nil && g.Held() {
			err = errors.New("it holds")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		answer := make(chan sessiontest.Answer, 1)
		go func() { // as the root package does
			g, err := s.Await(ctx, c)
			for errors.Is(err, engine.ErrUnavailable) {
				time.Sleep(100 * time.Millisecond)
				if g, err = s.Enter(ctx, c, true); err == nil && !g.Held() {
					g, err = s.Await(ctx, c)
				}
			}
			answer <- sessiontest.Answer{Grant: g, Err: err}
		}()
		got = append(got, answer)
	}
	sessiontest.Until(t, "all watch", func() bool { return s.watching() >= n })
	return claims, got
}

// watching is how many watches are set.
func (s *session) watching() (n int) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	for _, w := range s.link.watches {
		if w.set {
			n++
		}
	}
	return n
}

// TestIdleWaitersAskNothing: for three times the TTL only the heartbeat asks. A session of a shorter TTL ends on a busy machine.
func TestIdleWaitersAskNothing(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging, five} {
		t.Run(fmt.Sprint(spec), func(t *testing.T) {
			t.Parallel()
			e, requests, _ := counted(t, testservers.SharedZooKeeper(t).Addr)
			const ttl = 3 * time.Second
			s, held := open(t, e, ttl), sessiontest.Whole(t, spec)
			sessiontest.Hold(t, s, held)
			crowd(t, s, spec, 100)
			settled := quiet(t, requests)
			beats, tick := int64(0), time.NewTicker(ttl/30)
			defer tick.Stop()
			for start := time.Now(); time.Since(start) < 3*ttl; beats++ {
				<-tick.C
				if _, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{held}); err != nil {
					t.Fatal(err)
				}
			}
			if asked := requests.Load() - settled; asked > 3*beats+5 {
				t.Errorf("%d requests in %d heartbeats", asked, beats)
			}
		})
	}
}

// quiet waits until nobody asks any more, and returns how many requests there were.
func quiet(t *testing.T, requests *atomic.Int64) (n int64) {
	t.Helper()
	sessiontest.Until(t, "they have looked", func() bool {
		before := n
		n = requests.Load()
		return before == n
	})
	return n
}

// TestHandOverUnderManyWaiters: a release takes as many requests with many waiters as
// with few.
func TestHandOverUnderManyWaiters(t *testing.T) {
	const rounds = 20
	for _, spec := range []engine.Spec{fair, barging, {Kind: engine.KindSemaphore, Capacity: 2}} {
		cost := make(map[int]float64)
		for _, n := range []int{10 + rounds, many()} {
			e, requests, _ := counted(t, testservers.SharedZooKeeper(t).Addr)
			s := open(t, e, time.Minute)
			held := sessiontest.Whole(t, spec)
			sessiontest.Hold(t, s, held)
			claims, got := crowd(t, s, spec, n)
			order := make(map[string]int)
			r, err := e.Show(sessiontest.Soon(t), held.Resource)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range r.Claims {
				order[c.ID] = i
			}
			next := make([]int, len(claims)+1)
			for i, c := range claims {
				next[order[c.ID]] = i
			}
			before := quiet(t, requests)
			for i := range rounds {
				sessiontest.Leave(t, s, held)
				held = claims[next[i+1]]
				sessiontest.Granted(t, got[next[i+1]])
			}
			cost[n] = float64(requests.Load()-before) / rounds
			if err := s.Close(sessiontest.Soon(t)); err != nil {
				t.Error(err)
			}
		}
		t.Logf("%v: requests of a hand-over by waiters: %v", spec, cost)
		if few, more := cost[10+rounds], cost[many()]; few > 12 || more > 2*few+1 {
			t.Errorf("%v: requests of a hand-over by waiters: %v", spec, cost)
		}
	}
}

// TestReconnectionIsNoStorm: all who wait look again, by a few lists.
func TestReconnectionIsNoStorm(t *testing.T) {
	link := proxy.New(t, testservers.SharedZooKeeper(t).Addr)
	e, requests, lists := counted(t, link.Addr)
	s, held, n := open(t, e, time.Minute), sessiontest.Whole(t, fair), many()
	sessiontest.Hold(t, s, held)
	_, got := crowd(t, s, fair, n)
	before, listed := requests.Load(), lists.Load()
	link.Cut()
	sessiontest.Until(t, "cut off", func() bool { up, _, _ := s.link.state(); return !up })
	link.Heal()
	sessiontest.Until(t, "connected again", func() bool { return s.link.sync(ctx) == nil })
	sessiontest.Until(t, "all watch again", func() bool { return s.watching() >= n })
	if asked, listed := requests.Load()-before, lists.Load()-listed; asked > int64(3*n+50) || listed > 50 {
		t.Errorf("%d requests, %d of them lists, for %d waiters", asked, listed, n)
	}
	sessiontest.Leave(t, s, held)
	sessiontest.Until(t, "handed over", func() bool {
		for _, answer := range got {
			if len(answer) > 0 {
				return true
			}
		}
		return false
	})
}

// TestPermitsArePassedOn: of a semaphore only the next waiter watches the holders. In whatever
// order claims leave, all that fit hold in the end.
func TestPermitsArePassedOn(t *testing.T) {
	e := shared(t)
	spec := engine.Spec{Kind: engine.KindSemaphore, Capacity: 3}
	var sessions []*session
	for range 3 {
		sessions = append(sessions, open(t, e, time.Minute))
	}
	for round := range 10 {
		first := sessiontest.Whole(t, spec)
		sessiontest.Hold(t, sessions[0], first)
		var claims []*engine.Claim
		var got []<-chan sessiontest.Answer
		for i := range 9 {
			c := sessiontest.Claim(t, spec, 1+int64((i*round)%3)/2, "")
			s := sessions[i%3]
			sessiontest.Wait(t, s, c)
			claims, got = append(claims, c), append(got, sessiontest.Awaiting(t, s, c))
		}
		sessiontest.Leave(t, sessions[0], claims[(round+1)%9]) // gives up
		sessiontest.Leave(t, sessions[1], first)
		for i, c := range claims {
			if i == (round+1)%9 {
				if r := <-got[i]; !errors.Is(r.Err, engine.ErrGone) {
					t.Errorf("evicted: %v, %v", r.Grant, r.Err)
				}
				continue
			}
			sessiontest.Granted(t, got[i])
			sessiontest.Leave(t, sessions[(i+round)%3], c)
		}
	}
}

// TestSessionOfManyPaths: the end of a session lists all paths in one step. However long the
// names, a session is refused more claims while servers can still read that step.
func TestSessionOfManyPaths(t *testing.T) {
	const readable = 1<<20 - 1 // jute.maxbuffer
	var addrs []string
	if os.Getenv("PAWL_TEST_SOAK") == "" {
		addrs = append(addrs, testservers.ZooKeeper(t).Addr)
	} else {
		for _, node := range testservers.ZooKeeperEnsemble(t) { // which sends the list to each other
			addrs = append(addrs, node.Addr)
		}
	}
	e := newEngine(t, addrs...)
	s := open(t, e, time.Minute)
	var refused error
	var entered atomic.Int64
	var once sync.Once
	err := each(readable/40, func(i int) error {
		c := sessiontest.Whole(t, fair)
		c.Resource = strings.Repeat("é", 250) + fmt.Sprint(i)
		g, err := s.Enter(ctx, c, false)
		if err == nil && g.Held() {
			entered.Add(1)
			return nil
		}
		once.Do(func() { refused = err })
		return refused
	})
	if !errors.Is(err, engine.ErrUnsupported) || entered.Load() < 5000 {
		t.Fatalf("%d claims, then %v", entered.Load(), err)
	}
	conn, total := raw(t, addrs[0]), 0
	folders, _, err := conn.Children("/pawl/c")
	if err != nil {
		t.Fatal(err)
	}
	if err := each(len(folders), func(i int) error {
		names, _, err := conn.Children("/pawl/c/" + folders[i])
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range names {
			total += length + len("/pawl/c/"+folders[i]+"/"+name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if total > readable*4/5 || total > s.bytes || total < s.bytes*9/10 {
		t.Errorf("paths of %d bytes, reckoned %d", total, s.bytes)
	}
	t.Logf("%d claims with paths of %d bytes", entered.Load(), total)
	if err := s.Close(sessiontest.Soon(t)); err != nil {
		t.Error(err)
	}
	if n := len(addrs); n > 1 {
		e = newEngine(t, addrs[n-1])
	}
	sessiontest.Hold(t, open(t, e, time.Minute), sessiontest.Whole(t, fair))
}

// TestNamesOfAnyLength: long names are told as they are.
func TestNamesOfAnyLength(t *testing.T) {
	e := New([]string{testservers.SharedZooKeeper(t).Addr}, &Options{Tick: tick, Root: "names"})
	defer e.Close()
	s := open(t, e, time.Minute)
	want := make(map[string]bool)
	for _, n := range []int{1, longName - 1, longName, 200, 512} {
		c := sessiontest.Whole(t, fair)
		c.Resource = strings.Repeat("x", n)
		sessiontest.Hold(t, s, c)
		want[c.Resource] = true
	}
	for name, err := range e.List(sessiontest.Soon(t), "x") {
		if err != nil || !want[name] {
			t.Errorf("%q, %v", name, err)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not told: %v", want)
	}
	if err := s.Close(sessiontest.Soon(t)); err != nil {
		t.Error(err)
	}
}

// TestRootOfOthers: the root may be somebody's node, with data, which we may not write. The node stays
// as it is, and sessions live.
func TestRootOfOthers(t *testing.T) {
	server := testservers.ZooKeeper(t)
	conn := raw(t, server.Addr)
	for path, rights := range map[string]int32{"/app": zk.PermAll, "/read": zk.PermRead | zk.PermCreate | zk.PermDelete} {
		if _, err := conn.Create(path, []byte("theirs"), 0, zk.WorldACL(rights)); err != nil {
			t.Fatal(err)
		}
		e := New([]string{server.Addr}, &Options{Tick: tick, Root: path})
		t.Cleanup(func() { e.Close() })
		s, held := open(t, e, time.Minute), sessiontest.Whole(t, fair)
		sessiontest.Hold(t, s, held)
		if gone, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{held}); err != nil || len(gone) > 0 {
			t.Errorf("%s: renewed: %v, %v", path, gone, err)
		}
		if data, stat, err := conn.Get(path); err != nil || string(data) != "theirs" || stat.Version != 0 {
			t.Errorf("%s: %q, version %d, %v", path, data, stat.Version, err)
		}
	}
}

// TestReadingMakesNothing: a client that only looks at a store that nobody uses leaves it as it
// is.
func TestReadingMakesNothing(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := newEngine(t, server.Addr)
	for name, err := range e.List(sessiontest.Soon(t), "") {
		t.Errorf("%q, %v", name, err)
	}
	if r, err := e.Show(sessiontest.Soon(t), "x"); err != nil || len(r.Claims) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if v, err := e.Get(sessiontest.Soon(t), "x"); err != nil || v.Version != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if there, _, err := raw(t, server.Addr).Exists("/pawl"); err != nil || there {
		t.Errorf("the root was made: %v, %v", there, err)
	}
	if v, err := e.Put(sessiontest.Soon(t), "x", []byte("x"), 0); err != nil || v == 0 {
		t.Errorf("put: %d, %v", v, err)
	}
}

// TestOtherFormat: a store of another format is refused, also a store from before there were
// marks of the format. A value that is deleted leaves the mark.
func TestOtherFormat(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := newEngine(t, server.Addr)
	open(t, e, time.Minute)
	v, err := e.Put(sessiontest.Soon(t), "key", []byte("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(sessiontest.Soon(t), "key", nil, v); err != nil {
		t.Fatal(err)
	}
	open(t, newEngine(t, server.Addr), time.Minute)
	conn := raw(t, server.Addr)
	for mark, named := range map[string]string{"": "format 1", "77": "format 77"} {
		if _, err := conn.Set("/pawl/v", []byte(mark), -1); err != nil {
			t.Fatal(err)
		}
		_, err := newEngine(t, server.Addr).Open(sessiontest.Soon(t), engine.SessionOptions{TTL: time.Minute})
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), named) || !strings.Contains(err.Error(), "format "+engine.Format()) {
			t.Errorf("mark %q: %v", mark, err)
		}
		if _, err := newEngine(t, server.Addr).Get(sessiontest.Soon(t), "key"); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("mark %q: get: %v", mark, err)
		}
	}
}

// TestOtherFormatComesLater: a client that met an unused store refuses that store once clients of another format use it.
func TestOtherFormatComesLater(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := newEngine(t, server.Addr)
	if err := e.Evict(sessiontest.Soon(t), "job", "claim"); !errors.Is(err, engine.ErrGone) {
		t.Fatal(err)
	}
	conn := raw(t, server.Addr)
	for _, node := range []struct{ path, data string }{{"/pawl", ""}, {"/pawl/c", ""}, {"/pawl/beat", ""}, {"/pawl/v", "77"}} {
		if _, err := conn.Create(node.path, []byte(node.data), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	_, showing := e.Show(sessiontest.Soon(t), "job")
	_, getting := e.Get(sessiontest.Soon(t), "key")
	_, putting := e.Put(sessiontest.Soon(t), "key", []byte("x"), 0)
	evicting := e.Evict(sessiontest.Soon(t), "job", "claim")
	for verb, err := range map[string]error{"show": showing, "get": getting, "put": putting, "evict": evicting} {
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "format 77") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// TestHeartbeatBesideManyRequests: requests of the same session that are not answered
// yet are so few that its heartbeat is not late.
func TestHeartbeatBesideManyRequests(t *testing.T) {
	var under, most atomic.Int64
	s := open(t, shared(t), time.Minute)
	asking, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	for range 2000 {
		all.Go(func() {
			for asking.Err() == nil {
				ask(asking, s.link, func() (none struct{}, err error) { //nolint:errcheck // only that it is asked counts
					n := under.Add(1)
					defer under.Add(-1)
					for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
					}
					_, _, err = s.link.conn.Exists("/pawl")
					return none, err
				})
			}
		})
	}
	for range 5 {
		if _, err := s.Renew(sessiontest.Soon(t), nil); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	all.Wait()
	if most.Load() > inFlight || most.Load() < 2 {
		t.Errorf("%d requests were under way at once", most.Load())
	}
}

// TestWhenItWasGranted: what the clock of the servers tells of a claim.
func TestWhenItWasGranted(t *testing.T) {
	e := shared(t)
	s := open(t, e, time.Minute)
	spec := engine.Spec{Kind: engine.KindSemaphore, Capacity: 2}
	whole, waits, last := sessiontest.Whole(t, spec), sessiontest.Claim(t, spec, 1, ""), sessiontest.Whole(t, spec)
	sessiontest.Hold(t, s, whole)
	sessiontest.Wait(t, s, waits)
	sessiontest.Wait(t, s, last)
	show := func() []engine.ClaimInfo {
		r, err := e.Show(sessiontest.Soon(t), whole.Resource)
		if err != nil {
			t.Fatal(err)
		}
		return r.Claims
	}
	sessiontest.Until(t, "it is older", func() bool { return show()[1].Age > 300*time.Millisecond })
	sessiontest.Leave(t, s, whole)
	sessiontest.Await(t, s, waits)
	if c := show()[0]; c.ID != waits.ID || c.Age <= 300*time.Millisecond || c.Held < 0 || c.Held >= c.Age || c.Left != engine.Unknown {
		t.Errorf("%+v", c)
	}
	if c := show()[1]; c.ID != last.ID || c.Age < 0 || c.Held != engine.Unknown {
		t.Errorf("%+v", c)
	}
}
