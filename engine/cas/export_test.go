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

// Hang has all requests of a resource hang until release is called.
func (m *inMemory) Hang(resource string) (release func()) { return m.hang(resource) }
