package enginetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/engine"
)

var queueCases = []Case{
	{"one holds", "an AtomicInteger that reaches N says nothing about exclusion", oneHolds, nil},
	{"two claims of one session are two", "etcd Mutex: two locks of one session are one lock", twoClaims, nil},
	{"first come first served", "wake and race: a barger wins, waiters starve", firstCome, needs(engine.FeatureOrder)},
	{"grant comes by itself", "waiters that poll: 50 ms to 20 s", grantComes, nil},
	{"barging", "an unfair lock that does not wake its waiters", bargingOvertakes, nil},
	{"readers share and do not starve writers", "Redisson: read locks starve writers", readersShare, needs(engine.FeatureShared, engine.FeatureOrder)},
	{"permits have weight", "a release wakes the wrong waiter, and waiters that fit sleep on", permitsWeigh, needs(engine.FeatureSemaphore)},
	{"busy leaves nothing", "a failed try leaves a node that becomes owner later (zombie)", busyLeavesNothing, nil},
	{"kinds do not mix", "a mutex and a semaphore on one key corrupt each other", kindsDoNotMix, needs(engine.FeatureSemaphore)},
	{"entering twice counts once", "a slow reply makes the acquire run twice: count 2, later 41", enterTwice, nil},
	{"leaving twice", "a late unlock frees the next holder", leaveTwice, nil},
	{"a withdrawn waiter gets nothing", "a cancelled waiter's node becomes owner later", withdrawn, nil},
	{"a grant on its way is given back", "a waiter that gave up holds for a TTL", giveBack, nil},
	{"a wait that was interrupted goes on", "a grant that nobody awaited just then is lost, or the place is", interrupted, nil},
	{"tokens grow", "tokens restart when the lock is deleted; heartbeats change them", tokensGrow, nil},
	{"names are kept apart", "MySQL folds case and cuts at 64; a brace or slash joins two names", namesApart, nil},
}

func oneHolds(t *testing.T, h *Harness) {
	const parties, rounds = 4, 15
	var inside, total atomic.Int32
	var wg sync.WaitGroup
	for range parties {
		p := h.steadyParty(t)
		wg.Go(func() {
			for range rounds {
				c := p.claim("one holds", mutex)
				g, err := p.Enter(p.ctx, c, true)
				if err == nil && !g.Held() {
					_, err = p.Await(p.ctx, c)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold")
				}
				total.Add(1)
				inside.Add(-1)
				if err := p.Leave(p.ctx, c.Resource, c.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if total.Load() != parties*rounds {
		t.Errorf("%d rounds of %d", total.Load(), parties*rounds)
	}
}

func twoClaims(t *testing.T, h *Harness) {
	p := h.party(t)
	first, second := p.claim("two claims", mutex), p.claim("two claims", mutex)
	p.hold(first)
	p.tryFails(second, false, engine.ErrBusy)
	got := p.wait(second)
	p.leave(first)
	getGrant(t, "the second claim", got)
	p.leave(second)
}

func firstCome(t *testing.T, h *Harness) {
	a, b := h.steadyParty(t), h.steadyParty(t)
	first := a.claim("first come", mutex)
	a.hold(first)
	var claims []*engine.Claim
	var waits []<-chan result
	for i := range 8 {
		p := []*party{a, b}[i%2]
		claims = append(claims, p.claim("first come", mutex))
		waits = append(waits, p.wait(claims[i]))
	}
	a.leave(first)
	for i, got := range waits {
		r := getGrant(t, fmt.Sprintf("waiter %d", i), got)
		for j, later := range waits[i+1:] {
			still(t, fmt.Sprintf("waiter %d before %d (token %v)", i+1+j, i, r.Token), later)
		}
		[]*party{a, b}[i%2].leave(claims[i])
	}
}

// grantComes has a TTL so long that only a message or watch explains the grant.
func grantComes(t *testing.T, h *Harness) {
	a, b := h.partyOn(t, h.Open(t), 3*patience, nil), h.partyOn(t, h.Open(t), 3*patience, nil)
	c, d := a.claim("comes", mutex), b.claim("comes", mutex)
	a.hold(c)
	got := b.wait(d)
	a.leave(c)
	getGrant(t, "the waiter", got)
}

func bargingOvertakes(t *testing.T, h *Harness) {
	a, b := h.steadyParty(t), h.steadyParty(t)
	held := a.claim("barging", barging)
	a.hold(held)
	waiting := b.claim("barging", barging)
	got := b.wait(waiting)
	a.tryFails(a.claim("barging", barging), false, engine.ErrBusy)
	for range 3 { // a newcomer may get the free lock; the waiter gets it in the end
		a.leave(held)
		next := a.claim("barging", barging)
		if g, err := a.Enter(a.ctx, next, false); err == nil && g.Held() {
			b.stillWaits("waiter while another holds", waiting, got)
			held = next
			continue
		} else if !errors.Is(err, engine.ErrBusy) {
			t.Fatal(err)
		}
		getGrant(t, "the waiter", got)
		return
	}
	a.leave(held)
	getGrant(t, "the waiter", got)
}

func readersShare(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	r1, r2 := a.weigh("rw", mutex, 1), b.weigh("rw", mutex, 1)
	a.hold(r1)
	b.hold(r2)
	w, late := a.claim("rw", mutex), b.weigh("rw", mutex, 1)
	writer, reader := a.wait(w), b.wait(late)
	b.tryFails(b.weigh("rw", mutex, 1), false, engine.ErrBusy)
	a.leave(r1)
	a.stillWaits("writer beside a reader", w, writer)
	b.leave(r2)
	getGrant(t, "writer", writer)
	b.stillWaits("reader beside a writer", late, reader)
	a.leave(w)
	getGrant(t, "late reader", reader)
	b.hold(b.weigh("rw", mutex, 1))
}

func permitsWeigh(t *testing.T, h *Harness) {
	p, spec := h.party(t), semaphore(3)
	two, one := p.weigh("permits", spec, 2), p.weigh("permits", spec, 1)
	p.hold(two)
	p.hold(one)
	big, small := p.weigh("permits", spec, 3), p.weigh("permits", spec, 1)
	all, behind := p.wait(big), p.wait(small)
	p.leave(two)
	p.stillWaits("three of three while one is out", big, all)
	p.stillWaits("one that came after three", small, behind)
	p.leave(one)
	getGrant(t, "all three", all)
	p.stillWaits("one beside three", small, behind)
	p.leave(big)
	getGrant(t, "one", behind)
	p.hold(p.weigh("permits", spec, 2))
}

func busyLeavesNothing(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	c := a.claim("busy", mutex)
	a.hold(c)
	for range 3 {
		b.tryFails(b.claim("busy", mutex), false, engine.ErrBusy)
	}
	a.leave(c)
	next := b.claim("busy", mutex)
	if g, err := b.Enter(b.ctx, next, false); err != nil || !g.Held() {
		t.Fatalf("try of a free lock: %v, %v", g, err)
	}
}

func kindsDoNotMix(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	c := a.claim("kinds", mutex)
	a.hold(c)
	for _, other := range []engine.Spec{semaphore(3), barging} {
		b.tryFails(b.weigh("kinds", other, 1), true, engine.ErrMismatch)
		b.tryFails(b.weigh("kinds", other, 1), false, engine.ErrMismatch)
	}
	a.leave(c)
	s := a.weigh("kinds", semaphore(3), 1)
	a.hold(s) // free again: any claim may enter
	b.tryFails(b.weigh("kinds", semaphore(4), 1), true, engine.ErrMismatch)
	b.hold(b.weigh("kinds", semaphore(3), 2))
}

func enterTwice(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	c := a.claim("twice", mutex)
	first := a.hold(c)
	if again := a.hold(c); again != first {
		t.Fatalf("entered twice: %v, then %v", first, again)
	}
	d := b.claim("twice", mutex)
	for range 2 {
		if g, err := b.Enter(b.ctx, d, true); err != nil || g.Held() {
			t.Fatalf("enter to wait: %v, %v", g, err)
		}
	}
	got := b.await(b.ctx, d)
	a.leave(c)
	getGrant(t, "after one leave", got)
	b.leave(d)
	a.hold(a.claim("twice", mutex))
}

func leaveTwice(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	c := a.claim("leave", mutex)
	a.leaveGone(c)
	a.hold(c)
	a.leave(c)
	a.leaveGone(c)
	d := b.claim("leave", mutex)
	b.hold(d)
	a.leaveGone(c)
	a.tryFails(a.claim("leave", mutex), false, engine.ErrBusy)
	b.leave(d)
}

func withdrawn(t *testing.T, h *Harness) {
	a, b, c := h.party(t), h.party(t), h.party(t)
	held, quits, stays := a.claim("withdrawn", mutex), b.claim("withdrawn", mutex), c.claim("withdrawn", mutex)
	a.hold(held)
	ctx, cancel := context.WithCancel(b.ctx)
	if g, err := b.Enter(ctx, quits, true); err != nil || g.Held() {
		t.Fatal(g, err)
	}
	out := b.await(ctx, quits)
	in := c.wait(stays)
	cancel()
	if r := get(t, "a wait that was cancelled", out); !errors.Is(r.err, context.Canceled) {
		t.Fatalf("a wait that was cancelled: %v, %v", r.Grant, r.err)
	}
	b.leave(quits)
	a.leave(held)
	getGrant(t, "the waiter that stayed", in)
}

func giveBack(t *testing.T, h *Harness) {
	a, b, c := h.party(t), h.party(t), h.party(t)
	held, quits, stays := a.claim("give back", mutex), b.claim("give back", mutex), c.claim("give back", mutex)
	a.hold(held)
	if g, err := b.Enter(b.ctx, quits, true); err != nil || g.Held() {
		t.Fatal(g, err)
	}
	in := c.wait(stays)
	a.leave(held) // the grant of quits is on its way, and nobody awaits it
	b.leave(quits)
	getGrant(t, "the next", in)
}

func interrupted(t *testing.T, h *Harness) {
	for _, spec := range []engine.Spec{mutex, barging} {
		name := "interrupted " + strconv.FormatBool(spec.Barging)
		a, b := h.party(t), h.party(t)
		held, waits := a.claim(name, spec), b.claim(name, spec)
		a.hold(held)
		if g, err := b.Enter(b.ctx, waits, true); err != nil || g.Held() {
			t.Fatal(g, err)
		}
		for range 2 {
			ctx, cancel := context.WithCancel(b.ctx)
			got := b.await(ctx, waits)
			cancel()
			if r := get(t, "a wait that was interrupted", got); !errors.Is(r.err, context.Canceled) {
				t.Fatalf("a wait that was interrupted: %v, %v", r.Grant, r.err)
			}
		}
		a.leave(held) // nobody awaits it
		getGrant(t, "the client that waits again", b.await(b.ctx, waits))
		b.leave(waits)

		held, waits = a.claim(name, spec), b.claim(name, spec)
		a.hold(held)
		if g, err := b.Enter(b.ctx, waits, true); err != nil || g.Held() {
			t.Fatal(g, err)
		}
		a.leave(held)
		b.hold(waits) // the message was lost, so the waiter asks again
		b.leave(waits)
		a.hold(a.claim(name, spec))
	}
}

func tokensGrow(t *testing.T, h *Harness) {
	a, b := h.steadyParty(t), h.steadyParty(t)
	var last engine.Grant
	for i := range 12 {
		p, c := a, a.claim("tokens", mutex)
		if i%2 == 1 {
			p, c = b, b.claim("tokens", mutex)
		}
		g := p.hold(c)
		if g.Token <= last.Token {
			t.Fatalf("token %v after %v", g.Token, last.Token)
		}
		if g.Token >= 1<<53 {
			t.Fatalf("token %v does not fit in 53 bits", g.Token)
		}
		if _, err := p.Renew(p.ctx, []*engine.Claim{c}); err != nil {
			t.Fatal(err)
		}
		if again := p.hold(c); again != g {
			t.Fatalf("the token changed from %v to %v", g, again)
		}
		last = g
		p.leave(c) // the resource is empty then, and the store must still remember its token
	}
}
