// Package enginetest is the conformance suite of pawl's engines: a table of duties, each row with
// its reason, run against a real store. The author of an engine proves it with [Run]. Rows use the
// engine as the root package does. Where the promise is the root's, rows go through the root
// package.
//
// Hooks make faults. A store that cannot have a fault says so in its capabilities. A harness that cannot
// have a hook for the store's data says why in its field Cannot. Without hook and reason the row fails.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Harness is how the suite reaches a store.
type Harness struct {
	// Open returns an engine on the store under test. The engine's connections are its own, and t.Cleanup
	// closes them. Every call reaches the same store.
	Open func(t *testing.T) engine.Engine

	// TTL is that of the sessions in rows that wait for the end of a session: the shortest that the
	// store keeps in practice.
	TTL time.Duration

	// Clients is how many clients with waiters the store has connections for; 0: any number. A row with more clients
	// divides its waiters among so many.
	Clients int

	// KillSession ends a session in the store at once, as its TTL would.
	KillSession func(t *testing.T, session string)

	// Network returns an engine on the store under test, and the means to trouble its connection.
	// Nil for a store inside the process or the machine.
	Network func(t *testing.T) (engine.Engine, Network)

	// Fresh returns the opener of another store, which nobody has used yet. That store may be on
	// the same server. A store without values needs no hook.
	Fresh func(t *testing.T) (open func(t *testing.T) engine.Engine)

	// Forgetful returns the opener of another store, and a function that makes that store forget
	// everything, as a crash would. Nil unless the capabilities say that the store forgets.
	Forgetful func(t *testing.T) (open func(t *testing.T) engine.Engine, forget func())

	// Snapshot returns the opener of another store, and a function that copies all data of the
	// store. The copy is a function that brings the data back. A row may make several copies. A
	// store that keeps nothing, or that keeps data on more than one server, cannot have the hook.
	Snapshot func(t *testing.T) (open func(t *testing.T) engine.Engine, keep func() (restore func()))

	// Full returns the opener of another store, and a function that leaves no space in that store for
	// many more claims. A store that a test cannot fill, or that takes no releases then, cannot have the hook.
	Full func(t *testing.T) (open func(t *testing.T) engine.Engine, fill func())

	// Hang makes all requests of a name hang in the store until release is called. A store that serves the
	// requests of all names in one row cannot have the hook.
	Hang func(t *testing.T, name string) (release func())

	// Cannot has a reason for each of the hooks Fresh, Snapshot, Full and Hang that is missing, by the name of the hook. The test's
	// log shows that reason in place of the row.
	Cannot map[string]string
}

// Network is trouble between a client and the store.
type Network struct {
	Freeze        func() // nothing arrives any more, and no connection ends
	FreezeReplies func() // requests arrive, replies do not
	Cut           func() // connections end, and the server refuses new connections
	Heal          func() // all works again, on new connections
}

// Case is a row of the table.
type Case struct {
	Name string
	Why  string // the harm to users of a lock without the promise
	Run  func(t *testing.T, h *Harness)

	// Needs are features that a store may lack. If the store lacks a feature, the row checks
	// instead that the feature is refused.
	Needs []engine.Feature
}

// serviceCases are the rows of packages that are built on the root. Each service adds its rows in a
// file of its own, so that the other files do not import the service.
var serviceCases []Case

// Cases is the table.
func Cases() []Case {
	var all []Case
	for _, part := range [][]Case{queueCases, resizeCases, ownerCases, reentryCases, operateCases, sessionCases, valueCases, storeCases, faultCases, primitiveCases, slotCases, serviceCases, idleCases, crowdCases} {
		all = append(all, part...)
	}
	return all
}

// cases are the rows of a store. A row is left out if the harness says why it cannot have the hook.
func (h *Harness) cases(t *testing.T) []Case {
	t.Helper()
	all, known := Cases(), make(map[string]bool)
	for _, row := range []struct {
		hook string
		has  bool
		Case
	}{{"Fresh", h.Fresh != nil, freshCase}, {"Snapshot", h.Snapshot != nil, snapshotCase}, {"Full", h.Full != nil, fullCase}, {"Hang", h.Hang != nil, hangCase}} {
		known[row.hook] = !row.has
		if why := h.Cannot[row.hook]; why != "" {
			t.Logf("no row %q: %s", row.Name, why)
			continue
		}
		all = append(all, row.Case)
	}
	for hook := range h.Cannot {
		if !known[hook] {
			t.Errorf("Harness.Cannot has a reason for %q, which is set, or is none of Fresh, Snapshot, Full and Hang", hook)
		}
	}
	return all
}

const orSayWhy = "set the hook, or say in Harness.Cannot why there is none"

// need fails a row that cannot run because the harness lacks the named field.
func need(t *testing.T, has bool, field, why string) {
	t.Helper()
	if !has {
		t.Fatalf("Harness.%s is not set: %s", field, why)
	}
}

// kill ends a session in the store.
func (h *Harness) kill(t *testing.T, session string) {
	t.Helper()
	need(t, h.KillSession != nil, "KillSession", "this row needs a session that ends in the store")
	h.KillSession(t, session)
}

// Run runs every row, in parallel where the store allows that. A row that needs a feature that the
// store lacks by its capabilities checks that the feature is refused.
func Run(t *testing.T, h *Harness) {
	need(t, h.Open != nil, "Open", "there is no engine to test")
	need(t, h.TTL > 0, "TTL", "it must be more than 0, and at least Caps.MinTTL")
	// The grace of a new store is as long as the TTL of the first client. So the first client must
	// not be that of a row with a very long TTL.
	first := h.party(t)
	c := first.claim("first", mutex)
	first.hold(c)
	first.leave(c)
	caps := first.engine.Caps()
	alone := make(map[string]bool)
	for _, c := range crowdCases {
		alone[c.Name] = true
	}
	for _, c := range h.cases(t) {
		name, run := c.Name, c.Run
		for _, feature := range c.Needs {
			if caps.RefuseFeature(feature) != nil {
				name, run = fmt.Sprintf("%s: refused, no %s", c.Name, feature), refusals[feature]
				break
			}
		}
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			if !alone[c.Name] {
				t.Parallel()
			}
			run(t, h)
			if t.Failed() {
				t.Log("why this row: " + c.Why)
			}
		})
	}
}

// patience bounds a step that should take no time at all.
const patience = time.Minute

// party is a session with a heartbeat of its own, and a way to make claims.
type party struct {
	engine.Session
	t      *testing.T
	engine engine.Engine
	ctx    context.Context
	n      int
	stop   func() // stops the heartbeat, as a crash would
}

func (h *Harness) party(t *testing.T) *party { return h.partyOn(t, h.Open(t), h.TTL, nil) }

// steadyParty makes a party for rows that wait for no end of a session, as [Harness.steady].
func (h *Harness) steadyParty(t *testing.T) *party {
	return h.partyOn(t, h.Open(t), max(h.TTL, steadyTTL), nil)
}

// patiently asks a store again that does not answer in time. On a busy machine a store may not answer, as Redlock does not
// whose other nodes are dead.
func patiently(ask func() error) error {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if err := ask(); !errors.Is(err, engine.ErrUnavailable) || time.Since(began) > steadyTTL {
			return err
		}
	}
}

func (h *Harness) partyOn(t *testing.T, eng engine.Engine, ttl time.Duration, gone func(string)) *party {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	var s engine.Session
	err := patiently(func() (err error) {
		s, err = eng.Open(ctx, engine.SessionOptions{TTL: ttl, Label: "enginetest", Gone: gone})
		return err
	})
	if err != nil {
		t.Fatalf("open session: %v", err)
	}
	p := &party{Session: s, t: t, engine: eng, ctx: ctx}
	beat, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(ttl / 4)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.Renew(beat, nil) //nolint:errcheck // rows that need the result renew themselves
			case <-beat.Done():
				return
			}
		}
	}()
	p.stop = func() { stop(); <-done }
	t.Cleanup(func() {
		p.stop()
		cancel()
		farewell, end := context.WithTimeout(context.Background(), patience)
		defer end()
		s.Close(farewell) //nolint:errcheck // some sessions are dead by then
	})
	return p
}

// valuesOf returns the part of an engine that keeps values, which a row needs.
func valuesOf(t *testing.T, eng engine.Engine) engine.Values {
	t.Helper()
	values, ok := eng.(engine.Values)
	if !ok {
		t.Fatalf("the engine %s does not implement engine.Values, and its capabilities do not say why", eng.Caps().Name)
	}
	return values
}

// resizerOf returns the part of an engine that resizes, which a row needs.
func resizerOf(t *testing.T, eng engine.Engine) engine.Resizer {
	t.Helper()
	resizer, ok := eng.(engine.Resizer)
	if !ok {
		t.Fatalf("the engine %s does not implement engine.Resizer, and its capabilities do not say why", eng.Caps().Name)
	}
	return resizer
}

var (
	mutex   = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}
	barging = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity, Barging: true}
)

func semaphore(n int64) engine.Spec { return engine.Spec{Kind: engine.KindSemaphore, Capacity: n} }

// claim makes a claim of the whole capacity.
func (p *party) claim(name string, spec engine.Spec) *engine.Claim {
	p.n++
	id := fmt.Sprintf("%s.%d", p.ID(), p.n)
	return &engine.Claim{Spec: spec, Resource: name, ID: id, Owner: id, Weight: spec.Capacity, Label: "enginetest"}
}

func (p *party) weigh(name string, spec engine.Spec, weight int64) *engine.Claim {
	c := p.claim(name, spec)
	c.Weight = weight
	return c
}

func (p *party) owned(name string, spec engine.Spec, weight int64, owner string) *engine.Claim {
	c := p.weigh(name, spec, weight)
	c.Owner = owner
	return c
}

// hold enters a claim and waits until it is granted.
func (p *party) hold(c *engine.Claim) engine.Grant {
	p.t.Helper()
	var g engine.Grant
	err := patiently(func() (err error) {
		if g, err = p.Enter(p.ctx, c, true); err == nil && !g.Held() {
			g, err = p.Await(p.ctx, c)
		}
		return err
	})
	if err != nil || !g.Held() {
		p.t.Fatalf("hold %q: %v, %v", c.Resource, g, err)
	}
	return g
}

// wait enters a claim that has to wait and awaits it in the background.
func (p *party) wait(c *engine.Claim) <-chan result {
	p.t.Helper()
	g, err := p.Enter(p.ctx, c, true)
	if err != nil || g.Held() {
		p.t.Fatalf("enter %q to wait: %v, %v", c.Resource, g, err)
	}
	return p.await(p.ctx, c)
}

type result struct {
	engine.Grant
	err error
	at  time.Time
}

func (p *party) await(ctx context.Context, c *engine.Claim) <-chan result {
	got := make(chan result, 1)
	go func() {
		g, err := p.Await(ctx, c)
		got <- result{g, err, time.Now()}
	}()
	return got
}

// meanings are the classes of engine errors; an error has one of them.
var meanings = []error{engine.ErrBusy, engine.ErrGrace, engine.ErrConflict, engine.ErrGone, engine.ErrMismatch, engine.ErrUnsupported, engine.ErrUnavailable}

// means reports whether an error has this meaning, and no other.
func means(err, want error) bool {
	for _, class := range meanings {
		if errors.Is(err, class) != (class == want) {
			return false
		}
	}
	return true
}

// tryFails enters a claim that must be refused, and that must leave nothing.
func (p *party) tryFails(c *engine.Claim, wait bool, want error) {
	p.t.Helper()
	if g, err := p.Enter(p.ctx, c, wait); !means(err, want) {
		p.t.Fatalf("enter %q: %v, %v, want %v", c.Resource, g, err, want)
	}
	r, err := p.engine.Show(p.ctx, c.Resource)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, is := range r.Claims {
		if is.ID == c.ID {
			p.t.Fatalf("a refused claim is in the queue: %+v", r)
		}
	}
}

func (p *party) leave(c *engine.Claim) {
	p.t.Helper()
	if err := p.Leave(p.ctx, c.Resource, c.ID); err != nil {
		p.t.Fatalf("leave %q: %v", c.Resource, err)
	}
}

// evict takes the claim of any session away.
func (p *party) evict(c *engine.Claim) {
	p.t.Helper()
	if err := p.engine.Evict(p.ctx, c.Resource, c.ID); err != nil {
		p.t.Fatalf("evict %q: %v", c.Resource, err)
	}
}

func (p *party) leaveGone(c *engine.Claim) {
	p.t.Helper()
	if err := p.Leave(p.ctx, c.Resource, c.ID); !errors.Is(err, engine.ErrGone) {
		p.t.Fatalf("leave %q: %v, want gone", c.Resource, err)
	}
}

// get returns the result of a waiter, which must come.
func get(t *testing.T, what string, got <-chan result) result {
	t.Helper()
	select {
	case r := <-got:
		return r
	case <-time.After(patience):
		t.Fatalf("%s: nothing came", what)
		return result{}
	}
}

func getGrant(t *testing.T, what string, got <-chan result) result {
	t.Helper()
	r := get(t, what, got)
	if r.err != nil || !r.Held() {
		t.Fatalf("%s: %v, %v", what, r.Grant, r.err)
	}
	return r
}

// still fails if a waiter got a result although it must wait.
func still(t *testing.T, what string, got <-chan result) {
	t.Helper()
	select {
	case r := <-got:
		t.Fatalf("%s: %v, %v", what, r.Grant, r.err)
	default:
	}
}

// stillWaits fails if a claim that must wait has a result, here or in the store. The step that released the last claim has also decided
// on this claim, and a wrong grant may be on its way here.
func (p *party) stillWaits(what string, c *engine.Claim, got <-chan result) {
	p.t.Helper()
	still(p.t, what, got)
	r, err := p.engine.Show(p.ctx, c.Resource)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, is := range r.Claims {
		if is.ID == c.ID && is.Token == 0 {
			return
		}
	}
	p.t.Fatalf("%s, in the store: %+v", what, r)
}

// until polls the store for a condition that must come.
func (p *party) until(what string, name string, ok func(engine.Resource) bool) {
	p.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		r, err := p.engine.Show(p.ctx, name)
		if err == nil && ok(r) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			p.t.Fatalf("%s: never; last %+v, %v", what, r, err)
		}
	}
}

// slowest takes a lock again and again, and returns how long the longest try and its release have taken until then. A machine that is busy
// delays the heir of a dead holder as well: the heir needs a few requests after the death.
func (h *Harness) slowest(t *testing.T) func() time.Duration {
	t.Helper()
	p := h.party(t)
	var most atomic.Int64
	ctx, stop := context.WithCancel(p.ctx)
	var probing sync.WaitGroup
	probing.Go(func() {
		for ctx.Err() == nil {
			c := p.claim("probe", mutex)
			began := time.Now()
			if _, err := p.Enter(ctx, c, false); err == nil {
				p.Leave(ctx, c.Resource, c.ID) //nolint:errcheck // the end of the session does that as well
			}
			most.Store(max(most.Load(), int64(time.Since(began))))
			time.Sleep(20 * time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); probing.Wait() })
	return func() time.Duration { return time.Duration(most.Load()) }
}
