package cas_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/cas"
	"github.com/pawl-go/pawl/enginetest"
)

// TestClock has a store with a clock of its own.
func TestClock(t *testing.T) { conform(t, true) }

// TestObserved has a store without a clock: its clients observe how long a session says nothing.
func TestObserved(t *testing.T) { conform(t, false) }

func conform(t *testing.T, clock bool) {
	store := cas.NewInMemory(clock).Far() // else the crowd would be compared with next to nothing
	hanging, hang := store.Hanging()
	enginetest.Run(t, &enginetest.Harness{
		Open:        opener(hanging, clock),
		TTL:         time.Second,
		KillSession: func(_ *testing.T, session string) { store.Kill(session) },
		Fresh:       func(*testing.T) func(*testing.T) engine.Engine { return opener(cas.NewInMemory(clock), clock) },
		Hang:        func(_ *testing.T, name string) func() { return hang(name) },
		Cannot:      map[string]string{"Snapshot": "the store keeps nothing", "Full": "the store has no bound"},
	})
}
