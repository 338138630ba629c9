package bench

import (
	"testing"

	"github.com/pawl-go/pawl/engine/memengine"
)

// BenchmarkClient is what the root package itself costs.
func BenchmarkClient(b *testing.B) {
	m := client(b, memengine.New()).Mutex("order/42")
	b.ReportAllocs()
	for b.Loop() {
		lockUnlock(b, m)
	}
}
