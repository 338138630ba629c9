package enginetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

var ownerCases = []Case{
	{"an owner enters again", "re-entry counted locally: a lost lock re-enters fine", ownerAgain, nil},
	{"the claim that re-entered may leave last", "the first release frees what the second still holds", ownerLeavesLast, nil},
	{"downgrade lets readers in", "Redisson: a downgrade wakes nobody", downgrade, needs(engine.FeatureShared, engine.FeatureOrder)},
	{"upgrade waits for nobody", "two readers that upgrade wait for each other for ever", upgrade, needs(engine.FeatureShared, engine.FeatureOrder)},
	{"the largest token is shared", "a guard that saw the larger token refuses a holder that enters again", sharesLargest, needs(engine.FeatureShared, engine.FeatureOrder)},
	{"the largest token is shared in any order", "a guard that saw the larger token refuses a holder that enters again", sharesLargestBarging, needs(engine.FeatureSemaphore)},
}

// sharesLargest gives two readers of one owner different tokens, the smaller one first, and lets a
// third reader of the owner in.
func sharesLargest(t *testing.T, h *Harness) {
	a := h.party(t)
	owner := a.ID() + "/owner"
	reader := func() *engine.Claim { return a.owned("largest", mutex, 1, owner) }
	first := a.hold(reader())
	write := a.owned("largest", mutex, mutex.Capacity, owner)
	large := a.hold(write)
	second := reader()
	if g := a.hold(second); large.Token <= first.Token || g.Token != large.Token {
		t.Fatalf("the reader has token %v, the writer %v, a reader beside it %v", first.Token, large.Token, g.Token)
	}
	a.leave(write)
	third := reader()
	if g := a.hold(third); g.Token != large.Token {
		t.Errorf("re-entry beside grants with the tokens %v and %v has %v", first.Token, large.Token, g.Token)
	}
	a.leave(second)
	a.leave(third)
	if g := a.hold(reader()); g.Token != first.Token {
		t.Errorf("re-entry beside a grant with the token %v has %v", first.Token, g.Token)
	}
}

// sharesLargestBarging does the same where the claim with the larger token is ahead of the other in
// the line. The waiters of a barging resource may try in any order.
func sharesLargestBarging(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	spec := semaphore(3)
	spec.Barging = true
	const name = "largest in any order"
	all := b.claim(name, spec)
	b.hold(all)
	var claims []*engine.Claim
	for _, weight := range []int64{1, 2, 1} {
		c := a.owned(name, spec, weight, a.ID()+"/owner")
		if g, err := a.Enter(a.ctx, c, true); err != nil || g.Held() {
			t.Fatalf("enter to wait: %v, %v", g, err)
		}
		claims = append(claims, c)
	}
	b.leave(all)
	var tokens []fence.Token
	for _, i := range []int{2, 1, 0} {
		tokens = append(tokens, a.asks(claims[i]).Token) // as after a lost reply
	}
	if tokens[1] <= tokens[0] || tokens[2] != tokens[1] {
		t.Fatalf("the tokens are %v", tokens)
	}
	a.leave(claims[1])
	if g := a.hold(a.owned(name, spec, 1, a.ID()+"/owner")); g.Token != tokens[1] {
		t.Errorf("re-entry beside grants with the tokens %v and %v has %v", tokens[1], tokens[0], g.Token)
	}
}

// asks asks for a waiting claim until the claim is granted. A member that lags behind may know the claim, and not the release before. Await
// would then wait for the claims ahead, and nobody asks for those here.
func (p *party) asks(c *engine.Claim) (g engine.Grant) {
	p.t.Helper()
	err := patiently(func() (err error) {
		if g, err = p.Enter(p.ctx, c, true); err == nil && !g.Held() {
			err = engine.ErrUnavailable
		}
		return err
	})
	if err != nil {
		p.t.Fatalf("ask for %q: %v", c.Resource, err)
	}
	return g
}

func ownerAgain(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	owner := a.ID() + "/owner"
	first := a.hold(a.owned("again", mutex, mutex.Capacity, owner))
	c := a.owned("again", mutex, mutex.Capacity, owner)
	if g, err := a.Enter(a.ctx, c, false); err != nil || g != first {
		t.Fatalf("re-entry: %v, %v, want %v", g, err, first)
	}
	b.tryFails(b.owned("again", mutex, mutex.Capacity, b.ID()+"/owner"), false, engine.ErrBusy)
}

func ownerLeavesLast(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	owner := a.ID() + "/owner"
	first, second := a.owned("last", mutex, mutex.Capacity, owner), a.owned("last", mutex, mutex.Capacity, owner)
	token := a.hold(first).Token
	w := b.claim("last", mutex)
	got := b.wait(w)
	a.hold(second)
	r, err := b.engine.Show(b.ctx, "last")
	waits := slices.IndexFunc(r.Claims, func(c engine.ClaimInfo) bool { return c.ID == w.ID })
	if err != nil || waits < 1 || waits != len(r.Claims)-1 {
		t.Errorf("the waiter is not shown behind the holders: %+v, %v", r, err)
	}
	a.leave(first)
	b.until("the first is out", "last", func(r engine.Resource) bool { return len(r.Claims) == 2 })
	b.tryFails(b.claim("last", mutex), false, engine.ErrBusy)
	third := a.owned("last", mutex, mutex.Capacity, owner)
	if g := a.hold(third); g.Token != token {
		t.Fatalf("re-entry of an owner that re-entered: %v, want %v", g.Token, token)
	}
	a.leave(second)
	b.stillWaits("waiter while the owner holds", w, got)
	a.leave(third)
	if r := getGrant(t, "waiter", got); r.Token <= token {
		t.Fatalf("token %v after %v", r.Token, token)
	}
}

func downgrade(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	owner := a.ID() + "/owner"
	write, read := a.owned("down", mutex, mutex.Capacity, owner), a.owned("down", mutex, 1, owner)
	first := a.hold(write)
	r, w := b.weigh("down", mutex, 1), b.claim("down", mutex)
	reader, writer := b.wait(r), b.wait(w)
	if g := a.hold(read); g != first {
		t.Fatalf("re-entry to read: %v, want %v", g, first)
	}
	b.stillWaits("reader beside a writer", r, reader)
	a.leave(write)
	getGrant(t, "reader after the downgrade", reader)
	b.stillWaits("writer beside readers", w, writer)
	a.leave(read)
	b.leave(r)
	getGrant(t, "writer", writer)
}

func upgrade(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	owner := a.ID() + "/owner"
	read, other := a.owned("up", mutex, 1, owner), b.weigh("up", mutex, 1)
	first := a.hold(read)
	b.hold(other)
	a.tryFails(a.owned("up", mutex, mutex.Capacity, owner), false, engine.ErrBusy)
	a.tryFails(a.owned("up", mutex, mutex.Capacity, owner), true, engine.ErrBusy)
	b.leave(other)
	waiting := b.claim("up", mutex)
	b.wait(waiting)
	a.tryFails(a.owned("up", mutex, mutex.Capacity, owner), true, engine.ErrBusy) // it would overtake the waiter
	b.leave(waiting)
	write := a.owned("up", mutex, mutex.Capacity, owner)
	if g := a.hold(write); g.Token <= first.Token {
		t.Fatalf("the writer's token is %v, the reader's %v", g.Token, first.Token)
	}
	b.tryFails(b.weigh("up", mutex, 1), false, engine.ErrBusy)
	a.leave(write)
	b.hold(b.weigh("up", mutex, 1))
}

// names are names that a store might confuse.
var names = []string{
	"n", "N", "n/", "n/a", "/n", "n%2Fa", "n{a}", "{n}", "}n{", "%7Bn%7D", "n.", "..", "n a", "n ", "ñ", "名", "n*", "n?", "n[a]", `n\`, `n"'`, "n:c",
	"n_", "\U0001F512", "\uE000", strings.Repeat("x", 511) + "1", strings.Repeat("x", 511) + "2", strings.Repeat("é", 256),
}

func namesApart(t *testing.T, h *Harness) {
	p := h.party(t)
	for _, name := range names {
		p.hold(p.claim(name, mutex))
	}
	for _, name := range names {
		p.tryFails(p.claim(name, mutex), false, engine.ErrBusy)
		p.until("it is shown", name, func(r engine.Resource) bool { return r.Name == name && len(r.Claims) == 1 })
	}
	seen := map[string]int{}
	for name, err := range p.engine.List(p.ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		seen[name]++
	}
	for _, name := range names {
		if seen[name] != 1 {
			t.Errorf("%q is listed %d times", name, seen[name])
		}
	}
	for _, prefix := range []string{"n%", "n*", "n?", "n[", "n_", `n\`, "n/", "{", "N", "ñ", "x"} {
		seen := map[string]int{}
		for name, err := range p.engine.List(p.ctx, prefix) {
			if err != nil {
				t.Fatal(err)
			}
			seen[name]++
		}
		for _, name := range names {
			if (seen[name] == 1) != strings.HasPrefix(name, prefix) {
				t.Errorf("%q is listed %d times among those that begin with %q", name, seen[name], prefix)
			}
		}
	}
}
