package threephase

import (
	"time"

	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// SetStored calls f after each record that an agent has stored, and after each record that an agent finds when it starts.
func SetStored(f func(id ID, state State, elections int, known time.Duration)) {
	stored = func(id ID, r protocol.Record, began time.Time) {
		f(id, State(r.Phase), int(r.Elected), time.Since(began))
	}
}
