package enginetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// operateCases are the promises to operators.
var operateCases = []Case{
	{"an operator sees holders, and breaks", "nobody knows which holder is in the way, or why a lock was lost", operates, nil},
}

func operates(t *testing.T, h *Harness) {
	a, b, eng := h.steady(t, h.Open(t)), h.steady(t, h.Open(t)), h.Open(t)
	operator, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: time.Minute, Label: "operator", Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close(t.Context()) //nolint:errcheck // it holds nothing
	lease := lock(t, a.Mutex("operated").With(pawl.LockOptions{Label: "in the way"}))
	next := lockLater(t, b.Mutex("operated"))
	watcher := h.party(t)
	watcher.until("one waits", "operated", func(r engine.Resource) bool { return len(r.Claims) == 2 })
	is, err := operator.Show(t.Context(), "operated")
	if err != nil || is.Kind != "lock" || len(is.Holders) != 1 || len(is.Waiters) != 1 {
		t.Fatalf("%+v, %v", is, err)
	}
	if p := is.Holders[0]; p.Label != "in the way" || p.Token != lease.Token() || p.Shared || p.Permits != 0 || p.Kept {
		t.Errorf("the holder is shown as %+v", p)
	}
	listed := 0
	for r, err := range operator.List(t.Context(), "operate") {
		if err != nil {
			t.Fatal(err)
		}
		if r.Name == "operated" && len(r.Holders) == 1 {
			listed++
		}
	}
	if listed != 1 {
		t.Errorf("it is listed %d times", listed)
	}
	evicted, err := operator.Break(t.Context(), "operated", pawl.BreakOptions{Token: lease.Token(), Reason: "a test"})
	if err != nil || len(evicted) != 1 {
		t.Fatalf("evicted %+v, %v", evicted, err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(patience):
		t.Fatal("the holder is not told")
	}
	if err := lease.Err(); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("the holder is told: %v", err)
	}
	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	if eng.Caps().RefuseFeature(engine.FeatureValues) == nil {
		is, err := operator.Show(t.Context(), "operated")
		if err != nil || is.Broken == nil || is.Broken.String() != "broken by operator: a test" || is.Broken.Token != lease.Token() {
			t.Errorf("shown as broken: %+v, %v", is.Broken, err)
		}
		// The text of the error waits for the note only a little.
		watcher.until("the holder is told by whom", "operated", func(engine.Resource) bool {
			return strings.Contains(lease.Err().Error(), "broken by operator: a test")
		})
	}
	if err := got.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
