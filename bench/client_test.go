package bench

import (
	"testing"

	"github.com/pawl-go/pawl/engine/memengine"
)

// BenchmarkClient measures the cost of the root package itself.
func BenchmarkClient(b *testing.B) {
	m := client(b, memengine.New()).Mutex("order/42")
	b.ReportAllocs()
	for b.Loop() {
		lockUnlock(b, m)
	}
}
