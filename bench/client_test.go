package bench

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// BenchmarkClient is what the root package itself costs.
func BenchmarkClient(b *testing.B) {
	c, err := pawl.New(ctx, memengine.New(), &pawl.Options{TTL: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(ctx)
	m := c.Mutex("order/42")
	b.ReportAllocs()
	for b.Loop() {
		lockUnlock(b, m)
	}
}
