// Package model compares an engine with package queue, which is the semantics of pawl. Run takes
// random steps on the engine and on the pure queue. After each step both must have the same claims
// in the same order, with corresponding tokens and errors. The package imports only the standard
// library and pawl. The author of an engine runs it beside enginetest, which checks sessions,
// faults and values.
package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// Options say how much is compared. A nil *Options has every default.
type Options struct {
	// Seed repeats a series that failed; the name of the series ends with its seed. 0: new seeds.
	Seed uint64

	// Series is how many series of 60 steps each kind of resource has, 1 or more. 0: 40. With a
	// Seed there is one series.
	Series int
}

// sessionTTL is long, because the model renews no session.
const sessionTTL = time.Minute

// world is one resource, in the store and in the model.
type world struct {
	t        *testing.T
	rng      *rand.Rand
	name     string
	spec     engine.Spec
	eng      engine.Engine
	sessions []engine.Session
	dead     map[string]bool
	model    queue.State
	claims   []*engine.Claim // the claims that entered and did not leave
	owner    map[string]engine.Session
	waits    map[string]bool             // claims that have to wait and have got no grant since
	tokens   map[fence.Token]fence.Token // the model's token of each token of the store
	steps    []string
	next     int
}

// Run compares random steps of one resource with package queue, in order and barging. The resource
// is a lock or a semaphore. Each series is a subtest with the seed in its name, and a series that
// fails logs its steps. The engine must keep the order of arrival. Semaphores are left out where
// the store lacks them.
func Run(t *testing.T, eng engine.Engine, opts *Options) {
	t.Helper()
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if o.Series < 0 {
		t.Fatalf("model: Options.Series is %d: allowed are 1 and more, and 0 for 40", o.Series)
	}
	if o.Series == 0 {
		o.Series = 40
	}
	if err := eng.Caps().RefuseFeature(engine.FeatureOrder); err != nil {
		t.Fatalf("model: the queue is in order of arrival: %v", err)
	}
	specs := []engine.Spec{
		{Kind: engine.KindLock, Capacity: engine.LockCapacity},
		{Kind: engine.KindSemaphore, Capacity: 5},
		{Kind: engine.KindLock, Capacity: engine.LockCapacity, Barging: true},
		{Kind: engine.KindSemaphore, Capacity: 5, Barging: true},
	}
	for _, spec := range specs {
		if eng.Caps().Refuse(spec, 1) != nil {
			continue
		}
		seeds := []uint64{o.Seed}
		if o.Seed == 0 {
			seeds = seeds[:0]
			for range o.Series {
				seeds = append(seeds, rand.Uint64())
			}
		}
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", queue.Describe(spec), seed), func(t *testing.T) { newWorld(t, eng, spec, seed).run() })
		}
	}
}

func newWorld(t *testing.T, eng engine.Engine, spec engine.Spec, seed uint64) *world {
	return &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), name: "model/" + t.Name(), spec: spec, eng: eng,
		dead: make(map[string]bool), owner: make(map[string]engine.Session), waits: make(map[string]bool), tokens: make(map[fence.Token]fence.Token),
	}
}

// open opens a session, which the end of the test closes. The session may be gone by then.
func (w *world) open() engine.Session {
	s, err := w.eng.Open(w.t.Context(), engine.SessionOptions{TTL: sessionTTL, Label: w.t.Name()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Close(ctx) //nolint:errcheck // the session may be gone
	})
	return s
}

func (w *world) run() {
	defer func() {
		if w.t.Failed() {
			for _, s := range w.steps {
				w.t.Log(s)
			}
		}
	}()
	for range 4 {
		w.sessions = append(w.sessions, w.open())
	}
	for range 60 {
		w.step()
	}
}

func (w *world) apply(r queue.Request) queue.Outcome {
	state, out := queue.Apply(w.model, r, queue.Clock{Now: 1, Mint: 1, Ends: func(s string) int64 {
		if w.dead[s] {
			return 0
		}
		return 2
	}})
	w.model = state
	return out
}

func (w *world) step() {
	switch n := w.rng.IntN(20); {
	case n < 11 || len(w.claims) == 0:
		w.enter()
	case n < 19:
		w.leave(w.rng.IntN(len(w.claims)))
	default:
		w.kill()
	}
	w.wake()
	w.compare()
}

func (w *world) enter() {
	w.next++
	id := fmt.Sprintf("c%d", w.next)
	c := &engine.Claim{Spec: w.spec, Resource: w.name, ID: id, Owner: id, Weight: 1 + w.rng.Int64N(min(w.spec.Capacity, 5))}
	if w.spec.Kind == engine.KindLock {
		c.Weight = []int64{1, w.spec.Capacity}[w.rng.IntN(2)]
	}
	switch w.rng.IntN(4) {
	case 0, 1:
		c.Owner = string("ABC"[w.rng.IntN(3)])
	case 2: // the owner of a present claim, as when a holder enters again
		if len(w.claims) > 0 {
			c.Owner = w.claims[w.rng.IntN(len(w.claims))].ID
		}
	}
	s, wait := w.sessions[w.rng.IntN(len(w.sessions))], w.rng.IntN(4) > 0
	again := w.rng.IntN(8) == 0 && len(w.claims) > 0
	if again {
		c = w.claims[w.rng.IntN(len(w.claims))]
		s = w.owner[c.ID]
	}
	grant, err := s.Enter(context.Background(), c, wait)
	w.steps = append(w.steps, fmt.Sprintf("enter %s owner %s weight %d session %.4s wait %v again %v: token %v, %v", c.ID, c.Owner, c.Weight, s.ID(), wait, again, grant.Token, err))
	out := w.apply(queue.Request{Op: queue.Enter, Spec: w.spec, Wait: wait, Claim: queue.Claim{ID: c.ID, Owner: c.Owner, Session: s.ID(), Weight: c.Weight}})
	w.steps[len(w.steps)-1] += fmt.Sprintf("; model: token %v, %v", out.Token, out.Err)
	w.sameError("enter "+c.ID, err, out.Err)
	w.same(c.ID, grant.Token, out.Token)
	w.waits[c.ID] = err == nil && !grant.Held()
	if !again && err == nil {
		w.claims = append(w.claims, c)
		w.owner[c.ID] = s
	}
	if again && err != nil {
		w.forget(c.ID)
	}
}

func (w *world) forget(id string) {
	w.claims = slices.DeleteFunc(w.claims, func(c *engine.Claim) bool { return c.ID == id })
}

func (w *world) leave(i int) {
	c := w.claims[i]
	var err error
	if w.rng.IntN(2) == 0 {
		err = w.owner[c.ID].Leave(context.Background(), w.name, c.ID)
	} else {
		err = w.eng.Evict(context.Background(), w.name, c.ID)
	}
	out := w.apply(queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: c.ID}})
	w.steps = append(w.steps, fmt.Sprintf("leave %s: %v; model %v", c.ID, err, out.Err))
	w.sameError("leave "+c.ID, err, out.Err)
	w.forget(c.ID)
}

func (w *world) kill() {
	i := w.rng.IntN(len(w.sessions))
	s := w.sessions[i]
	w.steps = append(w.steps, fmt.Sprintf("end session %.4s", s.ID()))
	if err := s.Close(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.dead[s.ID()] = true
	w.sessions[i] = w.open()
	w.claims = slices.DeleteFunc(w.claims, func(c *engine.Claim) bool { return w.owner[c.ID] == s })
	w.apply(queue.Request{Op: queue.Poll})
}

// wake does the work of waiters: granted waiters find out, and the first waiter of a barging
// resource tries.
func (w *world) wake() {
	for {
		woken := ""
		for _, m := range w.model.Claims {
			if m.Token != 0 {
				continue
			}
			probe, out := queue.Apply(w.model, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: m.ID}}, queue.Clock{Now: 1, Mint: 1, Ends: func(string) int64 { return 2 }})
			if out.Token != 0 {
				w.model, woken = probe, m.ID
			}
			break
		}
		for _, c := range w.claims {
			i := slices.IndexFunc(w.model.Claims, func(m queue.Claim) bool { return m.ID == c.ID })
			if w.model.Claims[i].Token == 0 || !w.waits[c.ID] {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			grant, err := w.owner[c.ID].Await(ctx, c)
			cancel()
			w.steps = append(w.steps, fmt.Sprintf("await %s: token %v, %v; model %v", c.ID, grant.Token, err, w.model.Claims[i].Token))
			if err != nil {
				w.t.Fatalf("await %s: %v", c.ID, err)
			}
			w.waits[c.ID] = false
			w.same(c.ID, grant.Token, w.model.Claims[i].Token)
		}
		if woken == "" {
			return
		}
	}
}

// sameError checks that both failed with the same class, or that neither failed.
func (w *world) sameError(doing string, got, model error) {
	w.t.Helper()
	for _, class := range []error{nil, engine.ErrBusy, engine.ErrGone, engine.ErrMismatch} {
		if errors.Is(got, class) != errors.Is(model, class) {
			w.t.Fatalf("%s: got %v, model %v", doing, got, model)
		}
	}
}

// same checks that the tokens of both correspond, in the same order.
func (w *world) same(id string, got, model fence.Token) {
	if (got == 0) != (model == 0) {
		w.t.Fatalf("%s: token %v, model %v", id, got, model)
	}
	if got == 0 {
		return
	}
	for g, m := range w.tokens {
		if (g < got) != (m < model) || (g > got) != (m > model) {
			w.t.Fatalf("%s: token %v corresponds to %v, but %v to %v", id, got, model, g, m)
		}
	}
	w.tokens[got] = model
}

func (w *world) compare() {
	got, err := w.eng.Show(context.Background(), w.name)
	if err != nil {
		w.t.Fatal(err)
	}
	want := w.model.Show(w.name, 1, func(string) int64 { return 2 })
	if got.Spec != want.Spec || len(got.Claims) != len(want.Claims) {
		w.t.Fatalf("got %+v\nmodel %+v", got, want)
	}
	// A store may list holders in another order, such as that of their nodes.
	for _, claims := range [][]engine.ClaimInfo{got.Claims, want.Claims} {
		waiting := slices.IndexFunc(claims, func(c engine.ClaimInfo) bool { return c.Token == 0 })
		if waiting < 0 {
			waiting = len(claims)
		}
		slices.SortFunc(claims[:waiting], func(a, b engine.ClaimInfo) int { return strings.Compare(a.ID, b.ID) })
	}
	for i, g := range got.Claims {
		m := want.Claims[i]
		if g.ID != m.ID || g.Owner != m.Owner || g.Session != m.Session || g.Weight != m.Weight {
			w.t.Fatalf("claim %d: got %+v\nmodel %+v", i, g, m)
		}
		w.same(g.ID, g.Token, m.Token)
	}
}
