package snowflake_test

import (
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
)

func newGenerator(tb testing.TB, opts *snowflake.Options) *snowflake.Generator {
	tb.Helper()
	client, err := pawl.New(tb.Context(), newStore(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close(tb.Context()) }) //nolint:errcheck // the store is memory
	registers, err := id.Values(client, nil)
	if err != nil {
		tb.Fatal(err)
	}
	g, err := snowflake.New(tb.Context(), client, registers, "ids", opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { g.Close(tb.Context()) }) //nolint:errcheck // as above
	return g
}

// TestNoAllocations: an ID costs none.
func TestNoAllocations(t *testing.T) {
	g := newGenerator(t, nil)
	var ids [100]int64
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := g.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := g.NextN(t.Context(), ids[:]); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
