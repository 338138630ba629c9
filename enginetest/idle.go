package enginetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// idleCases bound the cost of waiters for holders.
var idleCases = []Case{
	{"calls end with their ctx on a store that hangs", "an answer within 50 ms was asked for, and the call hangs with the store", boundedCalls, nil},
	{"a name is taken for its minimum hold", "a job that ran runs once more on the machine whose clock is late", keptTaken, needs(engine.FeatureMinHold, engine.FeatureDelay)},
}

// crowdCases run alone, because a crowd would disturb rows beside it, whose TTL is a second.
var crowdCases = []Case{
	{"a crowd of waiters costs no heartbeat", "the waiters of a name make the holder of another lose it, or each looks for itself, which costs the square of their number", func(t *testing.T, h *Harness) {
		if os.Getenv("PAWL_TEST_SOAK") == "" {
			crowd(t, h, 250, 25, 10)
			return
		}
		own, clients, each := h.fullCrowd(h.Open(t).Caps().MaxClaims)
		crowd(t, h, own+clients*each, 0, 0)
		crowd(t, h, own, clients, each)
	}, nil},
}

// fullCrowd divides the waiters of a soak, 5,000 unless a name has fewer claims, among one client with some and many with a few. One
// claim is the holder's.
func (h *Harness) fullCrowd(maxClaims int) (own, clients, each int) {
	full := 5000
	if maxClaims > 0 {
		full = min(full, maxClaims-1)
	}
	clients = min(499, (full-10)/10)
	if h.Clients > 0 {
		clients = min(clients, h.Clients)
	}
	each = (full - 10) / clients
	return full - clients*each, clients, each
}

// crowdTTL is enough for a machine on which a hand-over takes usualTurn. crowdTTL is longer on a machine
// that has other work.
const crowdTTL, usualTurn = 4 * time.Second, 3 * time.Millisecond

// crowd has many waiters of one client, and some waiters each of other clients, wait for one name
// for three TTLs. Beside them the first client holds an unrelated lock, and so does a client
// without waiters. Then the name goes from hand to hand. That may take ten times as long as among
// ten waiters.
func crowd(t *testing.T, h *Harness, own, clients, each int) {
	if h.Open(t).Caps().Wake == engine.WakeServer { // a waiter holds a connection there, and the server has few
		own, clients, each = 5, min(clients, 3), 5
	}
	total := own + clients*each
	name := fmt.Sprintf("crowd/%d", total)
	amongFew := func() time.Duration { return turns(t, h, h.steady(t, h.Open(t)), name+"/few", 10) }
	few, observer := amongFew(), h.Open(t)
	ttl := min(crowdTTL*max(few/usualTurn, time.Duration(busyness())), 15*time.Second)
	others := h.clients(t, 2, ttl)
	aside, blocker := lock(t, others[0].Mutex(name+"/aside")), lock(t, others[1].Mutex(name))

	crowd := h.clients(t, 1+clients, ttl)
	inside := lock(t, crowd[0].Mutex(name+"/inside"))
	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan time.Time, total)
	var waiters sync.WaitGroup
	for i := range total {
		if i%25 == 0 { // if all asked at once, the store would rightly be slow
			crowded(t, observer, name, i+1)
		}
		c := crowd[0]
		if i >= own {
			c = crowd[1+i%clients]
		}
		waiters.Go(func() { waitIn(ctx, t, c.Mutex(name), granted) })
	}
	crowded(t, observer, name, total+1)
	timer := time.NewTimer(3 * ttl)
	<-timer.C
	for what, l := range map[string]*pawl.Lease{"of the same client": inside, "of another client": aside, "that they wait for": blocker} {
		if err := l.Err(); err != nil {
			t.Errorf("the lock %s: %v", what, err)
		}
	}
	busy := busyness()
	among := medianTurn(t, blocker, granted, min(20, total))
	busy = max(busy, busyness())
	cancel()
	waiters.Wait()
	for _, l := range []*pawl.Lease{inside, aside} {
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	crowded(t, observer, name, 0)
	few = max(few, amongFew()) // the machine may have other work now
	t.Logf("a hand-over among %d: %v; among 10: %v; the machine is busy %d times", total, among, few, busy)
	slack := 10 * time.Millisecond
	switch caps := h.Open(t).Caps(); {
	case caps.Wake == engine.WakePoll: // one poll each 50 ms decides, more than the crowd does
		slack = 100 * time.Millisecond
	case caps.MaxClaims > 0: // each step reads and writes all claims of the name, so a name has few
		slack = 50 * time.Millisecond * time.Duration(busy)
	}
	ordered := h.Open(t).Caps().RefuseFeature(engine.FeatureOrder) == nil // else luck decides which waiter comes first
	if ordered && among > 10*few+slack {
		t.Errorf("a hand-over takes %v among %d, and %v among 10", among, total, few)
	}
}

// busyness returns how many times as long a computation takes as on a machine without other work. Some short pieces of the computation
// are not interrupted by other work, and tell that time.
func busyness() int {
	const pieces = 500
	least, data := time.Hour, make([]byte, 1<<18)
	began := time.Now()
	for range pieces {
		start := time.Now()
		sha256.Sum256(data)
		least = min(least, time.Since(start))
	}
	alone := pieces * max(least, 1)
	return max(1, int((time.Since(began)+alone/2)/alone))
}

// waitIn waits for a lock until ctx ends, and reports the grant.
func waitIn(ctx context.Context, t *testing.T, m *pawl.Mutex, granted chan<- time.Time) {
	l, err := m.Lock(ctx)
	for errors.Is(err, pawl.ErrUnavailable) && ctx.Err() == nil { // the store is busy
		l, err = m.Lock(ctx)
	}
	if err == nil {
		granted <- time.Now()
		err = l.Unlock(context.WithoutCancel(ctx))
	}
	if err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}

// crowded waits until so many clients have claims. crowded looks seldom, because each look costs as much
// as the crowd.
func crowded(t *testing.T, eng engine.Engine, name string, n int) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C {
		r, err := eng.Show(t.Context(), name)
		if err == nil && len(r.Claims) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d have claims, %v", len(r.Claims), n, err)
		}
	}
}

// turns returns how long a hand-over takes among n waiters.
func turns(t *testing.T, h *Harness, c *pawl.Client, name string, n int) time.Duration {
	first := lock(t, c.Mutex(name))
	granted := make(chan time.Time, n)
	var waiters sync.WaitGroup
	for range n {
		waiters.Go(func() {
			l, err := c.Mutex(name).Lock(t.Context())
			if err == nil {
				granted <- time.Now()
				err = l.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	h.queued(t, name, n+1)
	median := medianTurn(t, first, granted, n)
	waiters.Wait()
	return median
}

// medianTurn releases a lock and watches its way from hand to hand.
func medianTurn(t *testing.T, first *pawl.Lease, granted <-chan time.Time, n int) time.Duration {
	t.Helper()
	last := time.Now()
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for range n {
		select {
		case at := <-granted:
			took, last = append(took, at.Sub(last)), at
		case <-time.After(patience):
			t.Fatal("a waiter never had it")
		}
	}
	slices.Sort(took)
	return took[len(took)/2]
}

func (h *Harness) clients(t *testing.T, n int, ttl time.Duration) (all []*pawl.Client) {
	t.Helper()
	for range n {
		all = append(all, clientFor(t, h.Open(t), ttl))
	}
	return all
}

// boundedCalls has a store that hangs. Each call returns soon after its ctx ended, by a timer that
// was set beside it. The store gets the Unlock later.
func boundedCalls(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	c, other := h.client(t, eng), h.client(t, h.Open(t))
	held := lock(t, c.Mutex("bounded/held"))
	calls := map[string]func(context.Context) error{
		"lock":   func(ctx context.Context) error { _, err := c.Mutex("bounded/new").Lock(ctx); return err },
		"try":    func(ctx context.Context) error { _, err := c.Mutex("bounded/new").TryLock(ctx); return err },
		"show":   func(ctx context.Context) error { _, err := c.Show(ctx, "bounded/held"); return err },
		"unlock": held.Unlock,
	}
	if eng.Caps().RefuseFeature(engine.FeatureValues) == nil {
		calls["get"] = func(ctx context.Context) error { _, err := c.Value("bounded").Get(ctx); return err }
	}
	net.Freeze()
	const wait = 50 * time.Millisecond
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		start := time.Now()
		beside := make(chan time.Duration, 1)
		time.AfterFunc(wait+100*time.Millisecond, func() { beside <- time.Since(start) })
		err := call(ctx)
		took, timer := time.Since(start), <-beside
		cancel()
		if err == nil {
			t.Errorf("%s: no error of a store that hangs", name)
		}
		if took > timer+2*(timer-wait) { // the machine delayed both alike
			t.Errorf("%s was back after %v, the timer after %v: %v", name, took, timer, err)
		}
	}
	net.Heal()
	if err := lock(t, other.Mutex("bounded/held")).Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := lock(t, other.Mutex("bounded/new")).Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// keptTaken has a job that is done at once, and a job whose client dies. The name stays taken for
// the minimum hold from the grant on. Then a waiter gets the name.
func keptTaken(t *testing.T, h *Harness) {
	once := pawl.LockOptions{MinHold: 2 * h.TTL}
	for what, end := range map[string]func(*testing.T, *pawl.Client, Network, *pawl.Lease){
		"released": func(t *testing.T, _ *pawl.Client, _ Network, l *pawl.Lease) {
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"dead": func(_ *testing.T, _ *pawl.Client, net Network, l *pawl.Lease) {
			net.Freeze()
			<-l.Context().Done()
		},
	} {
		name := "kept/" + what
		eng, net := h.troubled(t)
		a, b := h.client(t, eng), h.client(t, h.Open(t))
		start := time.Now()
		l := lock(t, a.Mutex(name).With(once))
		end(t, a, net, l)
		_, err := b.Mutex(name).TryLock(t.Context())
		for errors.Is(err, pawl.ErrUnavailable) { // the machine is busy
			_, err = b.Mutex(name).TryLock(t.Context())
		}
		if !errors.Is(err, pawl.ErrNotAcquired) && time.Since(start) < once.MinHold {
			t.Errorf("%s: another had it: %v", what, err)
		}
		next := <-lockLater(t, b.Mutex(name))
		if next.err != nil {
			t.Fatal(next.err)
		}
		if took := next.at.Sub(start); took < once.MinHold || next.Token() <= l.Token() {
			t.Errorf("%s: the next had it after %v of %v, token %v after %v", what, took, once.MinHold, next.Token(), l.Token())
		}
		net.Heal()
		if err := next.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func noMinHold(t *testing.T, h *Harness) {
	l, err := h.client(t, h.Open(t)).Mutex("refused").With(pawl.LockOptions{MinHold: time.Minute}).Lock(t.Context())
	if l != nil || !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("a minimum hold: %v, %v", l, err)
	}
}
