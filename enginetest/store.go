package enginetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
)

var storeCases = []Case{
	{"an operator sees holders and waiters", "contention is invisible: nobody can tell the holder, since when it holds, and the waiters", operatorSees, nil},
	{"a holder holds since its grant", "an operator breaks a job that began a second ago, because its lock was asked for an hour ago", heldSince, nil},
	{"nothing stays behind", "token keys that never expire: 25 M of 75 M keys; leaked nodes and rows", nothingStays, nil},
	{"capabilities are told", "an engine promises what it cannot keep", capsTold, nil},
	{"the parts are those of the promises", "a call that the store cannot do is found out by a crash", partsTold, nil},
	{"a dead context does nothing", "an ended request still takes locks", deadContext, nil},
}

func operatorSees(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	held, waits, late := a.claim("seen/1", mutex), b.claim("seen/1", mutex), b.claim("seen/1", mutex)
	held.Label, waits.Label = "holder on host a", "waiter, 100 % ready"
	began := time.Now()
	g := a.hold(held)
	b.wait(waits)
	b.wait(late)
	r, err := a.engine.Show(a.ctx, "seen/1")
	if err != nil || r.Name != "seen/1" || r.Spec != mutex || len(r.Claims) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	checkAges(t, r.Claims, time.Since(began))
	for i, want := range []*engine.Claim{held, waits, late} {
		is := r.Claims[i]
		if is.ID != want.ID || is.Owner != want.Owner || is.Label != want.Label || is.Weight != want.Weight {
			t.Errorf("claim %d is %+v, want %+v", i, is, want)
		}
	}
	if r.Claims[0].Token != g.Token || r.Claims[1].Token != 0 || r.Claims[0].Session != a.ID() || r.Claims[1].Session != b.ID() {
		t.Errorf("%+v, want token %v", r.Claims, g.Token)
	}
	a.hold(a.claim("seen/2", mutex))
	a.hold(a.claim("seem", mutex))
	var names []string
	for name, err := range b.engine.List(b.ctx, "seen/") {
		if err != nil {
			t.Fatal(err)
		}
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"seen/1", "seen/2"}) {
		t.Errorf("listed %q", names)
	}
	for _, err := range b.engine.List(b.ctx, "") {
		if err != nil {
			t.Error(err)
		}
		break // the engine must end the list here
	}
	if r, err := b.engine.Show(b.ctx, "seen/none"); err != nil || len(r.Claims) != 0 {
		t.Errorf("a name that nobody uses: %+v, %v", r, err)
	}
}

// checkAges: a store that tells the age of one claim tells that of all claims.
func checkAges(t *testing.T, inOrder []engine.ClaimInfo, most time.Duration) {
	t.Helper()
	for i, c := range inOrder {
		told, first := c.Age >= 0, inOrder[0].Age >= 0
		if told != first || c.Age > most+time.Second || told && i > 0 && c.Age > inOrder[i-1].Age {
			t.Errorf("claim %d came %v ago, the one before it %v; all came within %v", i, c.Age, inOrder[max(i-1, 0)].Age, most)
		}
	}
}

func nothingStays(t *testing.T, h *Harness) {
	var wg sync.WaitGroup
	var last *party
	weights := []int64{1, mutex.Capacity}
	if h.Open(t).Caps().RefuseFeature(engine.FeatureShared) != nil {
		weights = weights[1:]
	}
	for i := range 3 {
		p := h.steadyParty(t)
		last = p
		r := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Go(func() {
			for range 40 {
				name := "stays/" + strconv.Itoa(r.IntN(8))
				c := p.weigh(name, mutex, weights[r.IntN(len(weights))])
				g, err := p.Enter(p.ctx, c, true)
				if err != nil {
					t.Error(err)
					return
				}
				if !g.Held() && r.IntN(3) > 0 {
					_, err = p.Await(p.ctx, c)
				}
				if err == nil {
					err = p.Leave(p.ctx, c.Resource, c.ID)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for name, err := range last.engine.List(last.ctx, "stays/") {
		if name != "" || err != nil {
			t.Errorf("%q is still there, %v", name, err)
		}
	}
}

func capsTold(t *testing.T, h *Harness) {
	c := h.Open(t).Caps()
	if c.Name == "" || c.Token == "" || c.Wake == "" || c.Expiry == "" || c.Failover == "" || c.Processes == "" || c.MinTTL <= 0 {
		t.Errorf("%+v", c)
	}
	if c.Forgets != (h.Forgetful != nil) {
		t.Errorf("forgets: %v, and there is a hook for it: %v", c.Forgets, h.Forgetful != nil)
	}
	if (c.Processes == engine.ReachNetwork) != (h.Network != nil) {
		t.Errorf("reach: %v, and there is a hook for its network: %v", c.Processes, h.Network != nil)
	}
}

// partsTold: an engine has the parts that its capabilities promise, and no others. This holds for a
// wrapped engine too.
func partsTold(t *testing.T, h *Harness) {
	eng := h.Open(t)
	slow, _ := hanging(eng)
	for name, eng := range map[string]engine.Engine{"the engine": eng, "a wrapper": engine.Like(eng, &spy{Engine: eng}), "one with parts of its own": slow} {
		caps := eng.Caps()
		_, values := eng.(engine.Values)
		_, resizes := eng.(engine.Resizer)
		if promised := caps.RefuseFeature(engine.FeatureValues) == nil; values != promised {
			t.Errorf("%s: values are promised: %v, and there: %v", name, promised, values)
		}
		if promised := caps.RefuseFeature(engine.FeatureResize) == nil && caps.RefuseFeature(engine.FeatureSemaphore) == nil; resizes != promised {
			t.Errorf("%s: resizing is promised: %v, and there: %v", name, promised, resizes)
		}
	}
}

func deadContext(t *testing.T, h *Harness) {
	p := h.party(t)
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	c, held := p.claim("dead context", mutex), p.claim("dead context held", mutex)
	p.hold(held)
	if g, err := p.Enter(ctx, c, true); err == nil {
		t.Errorf("enter: %v", g)
	}
	verbs := map[string]func() error{
		"open":  func() error { _, err := p.engine.Open(ctx, engine.SessionOptions{TTL: h.TTL}); return err },
		"leave": func() error { return p.Leave(ctx, held.Resource, held.ID) },
		"renew": func() error { _, err := p.Renew(ctx, []*engine.Claim{held}); return err },
		"evict": func() error { return p.engine.Evict(ctx, held.Resource, held.ID) },
		"show":  func() error { _, err := p.engine.Show(ctx, held.Resource); return err },
		"list": func() (err error) {
			for _, err = range p.engine.List(ctx, "") {
				break
			}
			return err
		},
	}
	if values, has := p.engine.(engine.Values); has {
		verbs["get"] = func() error { _, err := values.Get(ctx, "dead context"); return err }
		verbs["put"] = func() error { _, err := values.Put(ctx, "dead context", []byte("x"), 0); return err }
		verbs["watch"] = func() error { _, err := values.Watch(ctx, "dead context", 0); return err }
	}
	for verb, do := range verbs {
		if do() == nil {
			t.Errorf("%s: done", verb)
		}
	}
	p.Leave(p.ctx, c.Resource, c.ID) //nolint:errcheck // the store may have it
	p.hold(p.claim("dead context", mutex))
	p.leave(held)
	if p.engine.Caps().RefuseFeature(engine.FeatureValues) == nil && p.value("dead context").Version != 0 {
		t.Error("the value was put")
	}
}

// heldSince: the wait before a grant belongs to the age of a claim, and not to the time for which the
// claim holds.
func heldSince(t *testing.T, h *Harness) {
	const waited = 200 * time.Millisecond
	a, b := h.steadyParty(t), h.steadyParty(t)
	first, next := a.claim("since", mutex), b.claim("since", mutex)
	a.hold(first)
	got := b.wait(next)
	b.until("the waiter has waited", "since", func(r engine.Resource) bool {
		return len(r.Claims) == 2 && (r.Claims[1].Age < 0 || r.Claims[1].Age >= waited)
	})
	left := time.Now()
	a.leave(first)
	getGrant(t, "after the release", got)
	r, err := b.engine.Show(b.ctx, "since")
	if err != nil || len(r.Claims) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	c, most := r.Claims[0], time.Since(left)+10*time.Millisecond // the clocks of stores are rounded
	asked := c.Held                                              // how long ago the holder asked, at least. Without an order a waiter may ask anew.
	if b.engine.Caps().RefuseFeature(engine.FeatureOrder) == nil {
		asked += waited
	}
	if c.Held > most || c.Age >= 0 && c.Held >= 0 && c.Age < asked {
		t.Errorf("the holder came %v ago and holds for %v, and its lock was left %v ago", c.Age, c.Held, most)
	}
}
