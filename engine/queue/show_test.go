package queue_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

// TestShow: an operator sees the holders before the waiters, also when a later claim holds
// because its owner did.
func TestShow(t *testing.T) {
	state := queue.State{Spec: rwLock, Claims: []queue.Claim{
		{ID: "a", Owner: "o", Session: "s", Label: "l", Weight: 1, Token: 7, Since: 1, Granted: 3},
		{ID: "b", Owner: "b", Weight: writes, Since: 2},
		{ID: "a2", Owner: "o", Weight: 1, Token: 7, Since: 3},
		{ID: "c", Owner: "c", Weight: 1, Since: 4},
	}}
	ends := func(session string) int64 { return map[string]int64{"s": 25}[session] }
	r := state.Show("name", 5, ends)
	var order string
	for _, c := range r.Claims {
		order += c.ID + " "
	}
	if r.Name != "name" || r.Spec != rwLock || order != "a a2 b c " {
		t.Errorf("%s %+v: %s", r.Name, r.Spec, order)
	}
	if c := r.Claims[0]; c.Owner != "o" || c.Session != "s" || c.Label != "l" || c.Weight != 1 || c.Token != 7 || c.Age != 4*time.Microsecond || c.Held != 2*time.Microsecond || c.Left != 20*time.Microsecond {
		t.Errorf("%+v", c)
	}
	if c := r.Claims[2]; c.Held != engine.Unknown || c.Left != 0 {
		t.Errorf("one that waits, of a session that has ended: %+v", c)
	}
	if len((queue.State{}).Show("name", 5, ends).Claims) != 0 {
		t.Error("a resource without claims has some")
	}
}
