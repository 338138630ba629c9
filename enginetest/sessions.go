package enginetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
)

var sessionCases = []Case{
	{"a crashed holder is followed in time", "nothing until a TTL of 20 to 30 s, or for ever", crashedHolder, nil},
	{"a crashed queue is followed in time", "Redisson fair lock: a dead head costs 329 s and the rest spin", crashedQueue, needs(engine.FeatureOrder)},
	{"a dead waiter stops no hand-over", "the living behind it wait for a heartbeat of somebody", deadWaiter, needs(engine.FeatureShared, engine.FeatureOrder)},
	{"a session that ended is gone", "acquire reported OK although the own entry had expired", sessionGone, nil},
	{"an ended session is not revived", "renew after expiry silently acquires again", notRevived, nil},
	{"a waiter is told that its session ended", "etcd#19597: waits for ever on a dead lease", waiterTold, nil},
	{"an evicted holder is told", "holder not told that it lost the lock: Redisson#4698, go-zk, redsync", evictedHolder, nil},
	{"a hint is of a grant that is gone", "a holder hears of the loss of a lock that it still has", hints, nil},
	{"an evicted waiter is told", "the operator's break leaves a waiter that hangs", evictedWaiter, nil},
	{"a waiter that was evicted before it awaits is told", "a break between two calls of the waiter puts it back in line", evictedEarly, nil},
	{"closing hands over at once", "a clean end costs the next holder a TTL", closing, nil},
	{"a farewell that was not said frees nothing", "the locks of a dead client are free before its last requests have ended", noFarewell, needs(engine.FeatureDelay)},
	{"sessions live on heartbeats", "timers drift, renewals stop, leases run out under live holders", heartbeats, nil},
}

// lastBeat is the last renewal of a session: the times of its request and of its answer. From the
// request on the session has a TTL.
type lastBeat struct{ asked, answered time.Time }

// crash ends the heartbeat with a renewal, so that its time is known.
func (p *party) crash(held ...*engine.Claim) (last lastBeat) {
	p.t.Helper()
	p.stop()
	last.asked = time.Now()
	if gone, err := p.Renew(p.ctx, held); err != nil || len(gone) > 0 {
		p.t.Fatalf("renewal: gone %v, %v", gone, err)
	}
	last.answered = time.Now()
	return last
}

// inTime is when a store notices a dead session: after its TTL, except for the rounding of clocks,
// and within TTL + 1 s. The waiter learns of that a few steps later, which take long on a busy machine.
func (h *Harness) inTime(t *testing.T, what string, last lastBeat, got time.Time, step time.Duration) {
	t.Helper()
	late := got.Sub(last.answered)
	if late > h.TTL+time.Second+5*step {
		t.Errorf("%s %v after the crash, TTL %v, where the store took %v at most for a try", what, late, h.TTL, step)
	}
	if lived := got.Sub(last.asked); lived < h.TTL-5*time.Millisecond {
		t.Errorf("%s %v after the last renewal began, TTL %v", what, lived, h.TTL)
	}
	t.Logf("%s %v after the crash, TTL %v", what, late.Round(time.Millisecond), h.TTL)
}

func crashedHolder(t *testing.T, h *Harness) {
	a, b, slowest := h.party(t), h.party(t), h.slowest(t)
	held := a.claim("crash", mutex)
	first := a.hold(held)
	got := b.wait(b.claim("crash", mutex))
	last := a.crash(held)
	still(t, "waiter beside a live session", got)
	next := getGrant(t, "waiter", got)
	h.inTime(t, "granted", last, next.at, slowest())
	if next.Token <= first.Token {
		t.Errorf("token %v after that of the dead, %v", next.Token, first.Token)
	}
}

func crashedQueue(t *testing.T, h *Harness) {
	a, b, c, slowest := h.party(t), h.party(t), h.party(t), h.slowest(t)
	held := a.claim("crash queue", mutex)
	a.hold(held)
	b.wait(b.claim("crash queue", mutex))
	a.wait(a.claim("crash queue", mutex))
	got := c.wait(c.claim("crash queue", mutex))
	a.crash(held)
	last := b.crash()
	next := getGrant(t, "the live one behind them", got)
	h.inTime(t, "granted", last, next.at, slowest())
}

// deadWaiter: the step that frees a lock grants it to all living readers. Readers behind a writer
// whose session has ended get it too.
func deadWaiter(t *testing.T, h *Harness) {
	a, dying := h.party(t), h.party(t)
	const name = "dead waiter"
	held := a.claim(name, mutex)
	a.hold(held)
	enter := func(p *party, weight int64) *engine.Claim {
		c := p.weigh(name, mutex, weight)
		if g, err := p.Enter(p.ctx, c, true); err != nil || g.Held() {
			t.Fatalf("enter to wait: %v, %v", g, err)
		}
		return c
	}
	first := enter(a, 1)
	enter(dying, mutex.Capacity)
	second := enter(a, 1)
	dying.stop()
	h.kill(t, dying.ID())
	a.leave(held)
	r, err := a.engine.Show(a.ctx, name)
	if err != nil || len(r.Claims) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, want := range []*engine.Claim{first, second} {
		if is := r.Claims[i]; is.ID != want.ID || is.Token == 0 {
			t.Errorf("reader %d has %+v", i+1, is)
		}
	}
}

func sessionGone(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	held, other := a.claim("gone", mutex), a.claim("gone other", mutex)
	a.hold(held)
	a.stop()
	h.kill(t, a.ID())
	for _, wait := range []bool{false, true} {
		if g, err := a.Enter(a.ctx, other, wait); !errors.Is(err, engine.ErrGone) {
			t.Errorf("enter of a dead session: %v, %v", g, err)
		}
	}
	g := b.hold(b.claim("gone", mutex))
	if again, err := a.Enter(a.ctx, held, true); err == nil && again.Held() {
		t.Errorf("a dead session holds %v beside %v", again, g)
	}
}

func notRevived(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	c := a.claim("revived", mutex)
	a.hold(c)
	a.stop()
	h.kill(t, a.ID())
	for range 2 {
		if gone, err := a.Renew(a.ctx, []*engine.Claim{c}); !errors.Is(err, engine.ErrGone) {
			t.Errorf("renewal of a dead session: %v, %v", gone, err)
		}
	}
	b.hold(b.claim("revived", mutex))
}

func waiterTold(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	a.hold(a.claim("told", mutex))
	got := b.wait(b.claim("told", mutex))
	b.stop()
	h.kill(t, b.ID())
	if r := get(t, "waiter of a dead session", got); !errors.Is(r.err, engine.ErrGone) {
		t.Errorf("waiter of a dead session: %v, %v", r.Grant, r.err)
	}
}

func evictedHolder(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	held, stays := a.claim("evict", mutex), a.claim("evict stays", mutex)
	first := a.hold(held)
	a.hold(stays)
	next := b.claim("evict", mutex)
	got := b.wait(next)
	operator := h.Open(t) // which opens no session
	if err := operator.Evict(b.ctx, held.Resource, held.ID); err != nil {
		t.Fatal(err)
	}
	if r := getGrant(t, "the next", got); r.Token <= first.Token {
		t.Errorf("token %v after the evicted %v", r.Token, first.Token)
	}
	gone, err := a.Renew(a.ctx, []*engine.Claim{held, stays})
	if err != nil || len(gone) != 1 || gone[0] != held {
		t.Errorf("renewal after the eviction: gone %v, %v", gone, err)
	}
	a.leaveGone(held)
	if err := operator.Evict(b.ctx, held.Resource, held.ID); !errors.Is(err, engine.ErrGone) {
		t.Errorf("evict again: %v, want gone", err)
	}
	b.leave(next)
}

func hints(t *testing.T, h *Harness) {
	var mu sync.Mutex
	var hinted []string
	a := h.partyOn(t, h.Open(t), h.TTL, func(claim string) {
		mu.Lock()
		defer mu.Unlock()
		hinted = append(hinted, claim)
	})
	b := h.party(t)
	taken, stays, left, waits := a.claim("hint taken", mutex), a.claim("hint stays", mutex), a.claim("hint left", mutex), a.claim("hint stays", mutex)
	for _, c := range []*engine.Claim{taken, stays, left} {
		a.hold(c)
	}
	out := a.wait(waits)
	a.leave(left)
	b.evict(waits)
	get(t, "evicted waiter", out)
	b.evict(taken)
	if gone, err := a.Renew(a.ctx, []*engine.Claim{taken, stays}); err != nil || len(gone) != 1 || gone[0] != taken {
		t.Errorf("renewal: gone %v, %v", gone, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if slices.Contains(hinted, stays.ID) {
		t.Errorf("hints of %q, but %s stands", hinted, stays.ID)
	}
}

func evictedWaiter(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	a.hold(a.claim("evict waiter", mutex))
	c := b.claim("evict waiter", mutex)
	got := b.wait(c)
	a.evict(c)
	if r := get(t, "evicted waiter", got); !errors.Is(r.err, engine.ErrGone) {
		t.Errorf("evicted waiter: %v, %v", r.Grant, r.err)
	}
}

// evictedEarly: some stores can tell a waiter only while that waiter awaits. Those stores wait for that.
func evictedEarly(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	a.hold(a.claim("evict early", mutex))
	c := b.claim("evict early", mutex)
	if g, err := b.Enter(b.ctx, c, true); err != nil || g.Held() {
		t.Fatalf("enter to wait: %v, %v", g, err)
	}
	left := make(chan error, 1)
	go func() { left <- a.engine.Evict(a.ctx, c.Resource, c.ID) }()
	select {
	case err := <-left:
		left <- err
	case <-time.After(50 * time.Millisecond):
	}
	if g, err := b.Await(b.ctx, c); !errors.Is(err, engine.ErrGone) {
		t.Errorf("a waiter that was evicted before it awaits: %v, %v", g, err)
	}
	if err := <-left; err != nil {
		t.Errorf("evict: %v", err)
	}
}

func closing(t *testing.T, h *Harness) {
	a, b := h.partyOn(t, h.Open(t), 3*patience, nil), h.partyOn(t, h.Open(t), h.TTL, nil)
	a.hold(a.claim("closing", mutex))
	a.wait(a.claim("closing", mutex))
	got := b.wait(b.claim("closing", mutex))
	a.stop()
	if err := a.Close(a.ctx); err != nil {
		t.Fatal(err)
	}
	getGrant(t, "the waiter", got)
	if _, err := a.Renew(a.ctx, nil); !errors.Is(err, engine.ErrGone) {
		t.Errorf("renewal of a closed session: %v", err)
	}
}

func noFarewell(t *testing.T, h *Harness) {
	a, b, slowest := h.party(t), h.party(t), h.slowest(t)
	held := a.claim("farewell", mutex)
	a.hold(held)
	last := a.crash(held)
	dead, cancel := context.WithCancel(a.ctx)
	cancel()
	if err := a.Close(dead); err == nil {
		t.Error("a farewell in a context that has ended was said")
	}
	b.tryFails(b.claim("farewell", mutex), false, engine.ErrBusy)
	got := b.wait(b.claim("farewell", mutex))
	next := getGrant(t, "waiter", got)
	h.inTime(t, "granted", last, next.at, slowest())
}

func heartbeats(t *testing.T, h *Harness) {
	p := h.party(t)
	c := p.claim("beats", mutex)
	g := p.hold(c)
	ctx, cancel := context.WithTimeout(p.ctx, 3*h.TTL)
	defer cancel()
	tick := time.NewTicker(h.TTL / 3)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		// A busy machine may lose a connection. The next renewal tells whether the session has lived through that.
		if gone, err := p.Renew(p.ctx, []*engine.Claim{c}); err != nil && !errors.Is(err, engine.ErrUnavailable) || len(gone) > 0 {
			t.Fatalf("renewal: gone %v, %v", gone, err)
		}
	}
	if again := p.hold(c); again != g {
		t.Errorf("held %v, now %v", g, again)
	}
}
