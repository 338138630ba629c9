package group

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// dial returns a client of a store in memory, with the default TTL. The end of the test closes the client.
func dial(t *testing.T, eng engine.Engine) *pawl.Client { return dialWith(t, eng, nil) }

func dialWith(t *testing.T, eng engine.Engine, opts *pawl.Options) *pawl.Client {
	t.Helper()
	client, err := pawl.New(t.Context(), eng, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // the test is over
	return client
}

// TestReplacedLeavesNothing: a member that replaces another leaves no note of that in the store.
func TestReplacedLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		g := New(dial(t, eng), "g")
		var old *Membership
		for range 10 {
			is := join(t, g, Member{ID: "a"})
			if old != nil {
				<-old.Ended()
			}
			old = is
		}
		for name, err := range eng.ListValues(t.Context(), "") {
			if err != nil || !strings.HasPrefix(name, "pawl:group") {
				t.Errorf("%s stays, %v", name, err)
			}
		}
	})
}
