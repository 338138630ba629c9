package queuetest

import (
	"slices"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

// model says the rules a second time, from the text of package engine, as plainly as possible
// and with no code shared with Apply. The model knows the holders and the waiters, not the
// tokens: the invariants of the machine look at those.
type model struct {
	spec   engine.Spec
	claims []*modelClaim // in order of arrival
}

type modelClaim struct {
	id, owner, session string
	weight             int64
	held               bool
}

// step does the command and returns the class of the error.
func (m *model) step(r queue.Request, alive func(session string) bool) error {
	m.claims = slices.DeleteFunc(m.claims, func(c *modelClaim) bool { return !alive(c.session) })
	// The claims of the dead are handed on when a claim has left, and in the new size, and
	// before a claim enters or asks.
	if r.Op == queue.Enter || r.Op == queue.Poll {
		m.handOver()
	}
	err := m.ask(r)
	m.handOver()
	if len(m.claims) == 0 {
		m.spec = engine.Spec{}
	}
	return err
}

func (m *model) ask(r queue.Request) error {
	if r.Op == queue.Resize {
		return m.resize(r.Spec.Capacity)
	}
	c := m.find(r.Claim.ID)
	switch {
	case r.Op == queue.Enter && c == nil:
		return m.enter(r)
	case c == nil:
		return engine.ErrGone
	case r.Op == queue.Leave:
		m.remove(c)
		return nil
	}
	// A poll, or a claim that asks again because its reply was lost. Only a
	// barging claim has something to win by asking.
	if m.spec.Barging && m.fits(c) {
		c.held = true
	}
	if r.Op == queue.Enter && !r.Wait && !c.held {
		m.remove(c)
		return engine.ErrBusy
	}
	return nil
}

func (m *model) enter(r queue.Request) error {
	if len(m.claims) == 0 {
		m.spec = r.Spec
	}
	if m.spec != r.Spec {
		return engine.ErrMismatch
	}
	c := &modelClaim{id: r.Claim.ID, owner: r.Claim.Owner, session: r.Claim.Session, weight: r.Claim.Weight}
	holds := m.heaviest(c.owner)
	overtakes := m.spec.Barging || holds >= c.weight
	c.held = m.fits(c) && (overtakes || m.firstWaiting() == nil)
	if !c.held && (holds > 0 || !r.Wait) {
		return engine.ErrBusy
	}
	m.claims = append(m.claims, c)
	return nil
}

// resize evicts nobody.
func (m *model) resize(capacity int64) error {
	if len(m.claims) == 0 {
		return engine.ErrGone
	}
	if m.spec.Kind != engine.KindSemaphore {
		return engine.ErrMismatch
	}
	m.spec.Capacity = capacity
	return nil
}

// handOver grants in order of arrival. Barging claims help themselves.
func (m *model) handOver() {
	for c := m.firstWaiting(); c != nil && !m.spec.Barging && m.fits(c); c = m.firstWaiting() {
		c.held = true
	}
}

func (m *model) find(id string) *modelClaim {
	for _, c := range m.claims {
		if c.id == id {
			return c
		}
	}
	return nil
}

func (m *model) remove(c *modelClaim) {
	m.claims = slices.DeleteFunc(m.claims, func(o *modelClaim) bool { return o == c })
}

func (m *model) firstWaiting() *modelClaim {
	for _, c := range m.claims {
		if !c.held {
			return c
		}
	}
	return nil
}

// heaviest is the weight at which an owner holds.
func (m *model) heaviest(owner string) (weight int64) {
	for _, c := range m.claims {
		if c.held && c.owner == owner {
			weight = max(weight, c.weight)
		}
	}
	return weight
}

// fits reports whether a claim may hold beside the holders. A claim that is larger than the
// resource has become may hold alone.
func (m *model) fits(c *modelClaim) bool {
	if m.heaviest(c.owner) >= c.weight {
		return true
	}
	others := make(map[string]bool)
	load := min(c.weight, m.spec.Capacity)
	for _, o := range m.claims {
		if o.held && o.owner != c.owner && !others[o.owner] {
			others[o.owner] = true
			load += m.heaviest(o.owner)
		}
	}
	return load <= m.spec.Capacity
}
