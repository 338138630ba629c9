package cas

import "time"

// InMemory is the Store of these tests.
type InMemory = inMemory

// NewInMemory returns a Store inside the process.
func NewInMemory(clock bool) *InMemory { return newInMemory(clock) }

// Kill ends a session as its TTL would.
func (m *inMemory) Kill(session string) { m.kill(session) }

// Far makes requests take a millisecond, as over a network.
func (m *inMemory) Far() *InMemory {
	m.trip = time.Millisecond
	return m
}

// Hanging returns the store as a Store in which a resource may hang, and a function that has a resource hang until release is called.
func (m *inMemory) Hanging() (Store, func(resource string) (release func())) {
	h := &hangs{inMemory: m}
	return h, func(resource string) func() {
		h.key = resourceKey + resource
		h.loads.Store(true) // every request of a resource begins with a load
		return func() { h.loads.Store(false) }
	}
}
