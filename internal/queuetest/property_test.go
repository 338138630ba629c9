package queuetest

import (
	"flag"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/engine"
)

func TestMain(m *testing.M) {
	// The defaults of the tester are made for slow code. Flags given on the command line still
	// win, because they are parsed later.
	flag.Set("rapid.checks", "1000")     //nolint:errcheck // the flag is there
	flag.Set("rapid.steps", "60")        //nolint:errcheck
	flag.Set("rapid.nofailfile", "true") //nolint:errcheck // the seed is enough
	os.Exit(m.Run())
}

// TestApply lets a random tester look for a sequence of commands after which
// Apply breaks an invariant or disagrees with the model.
func TestApply(t *testing.T) {
	for name, barging := range map[string]bool{"first come, first served": false, "barging": true} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { exercise(t, barging) })
		})
	}
}

func exercise(t *rapid.T, barging bool) {
	spec := rapid.SampledFrom(specs).Draw(t, "spec")
	spec.Barging = barging
	m := newMachine(t, spec, minting(rapid.IntRange(0, int(mintings)-1).Draw(t, "mint")))
	slot, any := rapid.IntRange(0, sessionSlots-1), rapid.IntRange(0, 63)
	owner, wait := rapid.IntRange(0, 3), rapid.Bool()
	t.Repeat(map[string]func(*rapid.T){
		"enter": func(t *rapid.T) {
			weight := rapid.SampledFrom(weights(m.spec)).Draw(t, "weight")
			m.enter(slot.Draw(t, "slot"), owner.Draw(t, "owner"), weight, wait.Draw(t, "wait"))
		},
		"enter and wait": func(t *rapid.T) { // so that queues grow
			weight := rapid.SampledFrom(weights(m.spec)).Draw(t, "weight")
			m.enter(slot.Draw(t, "slot"), owner.Draw(t, "owner"), weight, true)
		},
		"enter again": func(t *rapid.T) { m.enterAgain(any.Draw(t, "claim"), wait.Draw(t, "wait")) },
		"leave":       func(t *rapid.T) { m.leave(any.Draw(t, "claim")) },
		"poll":        func(t *rapid.T) { m.poll(any.Draw(t, "claim")) },
		"resize": func(t *rapid.T) {
			m.resize(rapid.Int64Range(1, 6).Draw(t, "capacity"), rapid.IntRange(0, 3).Draw(t, "known") > 0)
		},
		"mismatch": func(t *rapid.T) { m.mismatch(slot.Draw(t, "slot"), any.Draw(t, "how")) },
		"renew":    func(t *rapid.T) { m.renew(slot.Draw(t, "slot")) },
		"expire":   func(t *rapid.T) { m.expire(slot.Draw(t, "slot")) },
		"pass":     func(t *rapid.T) { m.pass(rapid.Int64Range(1, sessionTTL/3).Draw(t, "time")) },
	})
}

var specs = []engine.Spec{
	{Kind: engine.KindLock, Capacity: engine.LockCapacity},
	{Kind: engine.KindSemaphore, Capacity: 1},
	{Kind: engine.KindSemaphore, Capacity: 2},
	{Kind: engine.KindSemaphore, Capacity: 5},
}

// weights are the weights of the claims of a resource: readers and writers, or any number of
// permits.
func weights(spec engine.Spec) []int64 {
	if spec.Kind == engine.KindLock {
		return []int64{1, spec.Capacity}
	}
	all := make([]int64, spec.Capacity)
	for i := range all {
		all[i] = int64(i) + 1
	}
	return all
}
