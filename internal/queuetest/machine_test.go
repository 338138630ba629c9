package queuetest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// fataler is what the machine needs of a test: *testing.T and *rapid.T have it.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// minting is how a store makes tokens.
type minting int

const (
	mintCounter minting = iota // a counter of the store; an empty resource is forgotten
	mintClock                  // the server's clock; the last token is remembered
	mintNone                   // nothing but the last token
	mintings
)

const (
	sessionTTL   = 100 // µs
	sessionSlots = 4
)

// machine drives Apply with commands, beside the model, and holds every step
// against the invariants. A random tester and a fuzzer choose the commands.
type machine struct {
	t     fataler
	spec  engine.Spec
	mint  minting
	state queue.State
	model model

	now      int64
	ends     map[string]int64
	sessions [sessionSlots]string // the session in each slot; it changes when it ended
	opened   int
	entered  int
	highest  fence.Token     // the largest token so far
	told     map[string]bool // barging claims that know that there is room
}

func newMachine(t fataler, spec engine.Spec, mint minting) *machine {
	return &machine{t: t, spec: spec, mint: mint, now: 1, ends: make(map[string]int64), told: make(map[string]bool)}
}

// session returns the live session of a slot.
func (m *machine) session(slot int) string {
	slot %= sessionSlots
	if s := m.sessions[slot]; m.ends[s] > m.now {
		return s
	}
	m.opened++
	s := fmt.Sprintf("s%d", m.opened)
	m.sessions[slot], m.ends[s] = s, m.now+sessionTTL
	return s
}

// enter asks for a claim with a new id. Owner 0 is a claim without re-entry, and owner 3
// the id of a claim that is there, if there is one.
func (m *machine) enter(slot, owner int, weight int64, wait bool) {
	m.entered++
	id := fmt.Sprintf("c%d", m.entered)
	c := queue.Claim{ID: id, Owner: id, Session: m.session(slot), Label: "label of " + id, Weight: weight}
	switch {
	case owner == 3 && len(m.state.Claims) > 0:
		c.Owner = m.state.Claims[int(weight)%len(m.state.Claims)].ID
	case owner > 0:
		c.Owner = fmt.Sprintf("o%d", owner)
	}
	m.apply(queue.Request{Op: queue.Enter, Spec: m.spec, Claim: c, Wait: wait})
}

// enterAgain asks again for a claim whose session lives.
func (m *machine) enterAgain(i int, wait bool) {
	c, ok := m.claim(i)
	if !ok || m.ends[c.Session] <= m.now {
		return
	}
	c.Token, c.Since, c.Granted = 0, 0, 0
	m.apply(queue.Request{Op: queue.Enter, Spec: m.spec, Claim: c, Wait: wait})
}

func (m *machine) leave(i int) {
	c, _ := m.claim(i)
	m.apply(queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: c.ID}})
}

func (m *machine) poll(i int) {
	c, _ := m.claim(i)
	m.apply(queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
}

// mismatch asks for the resource as something else.
func (m *machine) mismatch(slot, how int) {
	spec := m.spec
	switch how % 3 {
	case 0:
		spec.Kind += "?"
	case 1:
		spec.Capacity++
	case 2:
		spec.Barging = !spec.Barging
	}
	if len(m.state.Claims) > 0 { // else it would be the first
		c := queue.Claim{ID: "other", Owner: "other", Session: m.session(slot), Weight: 1}
		m.apply(queue.Request{Op: queue.Enter, Spec: spec, Claim: c, Wait: true})
	}
	// The first claim may just have expired: the next claim must agree again.
	if c := m.find(m.state, "other"); c.ID != "" {
		m.apply(queue.Request{Op: queue.Leave, Claim: c})
	}
}

// resize changes the capacity. Later clients mostly know of it.
func (m *machine) resize(capacity int64, known bool) {
	m.apply(queue.Request{Op: queue.Resize, Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: capacity}})
	if known && m.spec.Kind == engine.KindSemaphore {
		m.spec.Capacity = capacity
	}
}

func (m *machine) renew(slot int) { m.ends[m.session(slot)] = m.now + sessionTTL }

// expire ends a session without a step: nobody notices yet.
func (m *machine) expire(slot int) { m.ends[m.session(slot)] = m.now }

func (m *machine) pass(d int64) { m.now += d }

// claim returns one of the claims, or an unknown claim when there is none.
func (m *machine) claim(i int) (queue.Claim, bool) {
	if n := len(m.state.Claims); n > 0 {
		return m.state.Claims[i%n], true
	}
	return queue.Claim{ID: "nobody"}, false
}

func (m *machine) find(s queue.State, id string) queue.Claim {
	for _, c := range s.Claims {
		if c.ID == id {
			return c
		}
	}
	return queue.Claim{}
}

func (m *machine) clock() queue.Clock {
	mint := map[minting]fence.Token{mintCounter: m.highest + 1, mintClock: fence.Token(m.now)}[m.mint]
	return queue.Clock{Now: m.now, Mint: mint, Ends: func(s string) int64 { return m.ends[s] }}
}

// apply takes one step and checks it.
func (m *machine) apply(r queue.Request) {
	m.t.Helper()
	before := m.state
	given, spare := withSpareRoom(before)
	after, out := queue.Apply(given, r, m.clock())
	st := &stepTaken{machine: m, before: before, after: after, request: r, out: out}
	if !sameState(given, before) || slices.ContainsFunc(spare[len(given.Claims):], func(c queue.Claim) bool { return c != sentinel }) {
		st.fail("changed its argument")
	}
	err := m.model.step(r, func(s string) bool { return m.ends[s] > m.now })
	st.check(err)
	st.checkAskedTwice()
	m.state = after
	m.highest = max(m.highest, after.Last)
	if m.mint == mintCounter && len(after.Claims) == 0 {
		m.state = queue.State{}
	}
}

var sentinel = queue.Claim{ID: "not in the queue"}

// withSpareRoom copies a state, with claims that are not part of it in the spare room of the
// slice. A step that appends in place would overwrite them.
func withSpareRoom(s queue.State) (queue.State, []queue.Claim) {
	room := slices.Clone(s.Claims)
	for range 3 {
		room = append(room, sentinel)
	}
	s.Claims = room[:len(s.Claims)]
	return s, room
}

func sameState(a, b queue.State) bool {
	return a.Spec == b.Spec && a.Last == b.Last && slices.Equal(a.Claims, b.Claims)
}

// class reduces an error to the class that a caller tests for.
func class(err error) error {
	for _, c := range []error{engine.ErrBusy, engine.ErrGone, engine.ErrMismatch} {
		if errors.Is(err, c) {
			return c
		}
	}
	return err
}
