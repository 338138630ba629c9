package cas

import "time"

// InMemory is the Store of these tests.
type InMemory = inMemory

// NewInMemory returns a Store inside the process.
func NewInMemory(clock bool) *InMemory { return newInMemory(clock) }

// Kill ends a session as its TTL would.
func (m *inMemory) Kill(session string) { m.kill(session) }

// Far has requests take a millisecond, as those over a network do.
func (m *inMemory) Far() *InMemory {
	m.trip = time.Millisecond
	return m
}
