package bench

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

func pawlOnRedlock(b *testing.B, addrs []string, opts *redlockengine.Options) *pawl.Client {
	b.Helper()
	var nodes []engine.Engine
	for _, addr := range addrs {
		nodes = append(nodes, redisengine.New(redisClient(b, addr), nil))
	}
	eng, err := redlockengine.New(nodes, opts)
	if err != nil {
		b.Fatal(err)
	}
	return client(b, eng)
}

// BenchmarkRedlock has as its floor the same lock on one of the nodes, over a network with a round
// trip of 4 ms. On one machine all nodes share its cores with the client. There only their number
// would be measured.
func BenchmarkRedlock(b *testing.B) {
	for _, network := range []time.Duration{2 * time.Millisecond, 0} {
		for _, v := range []struct {
			name string
			opts redlockengine.Options
			goal float64
		}{
			{"without token", redlockengine.Options{NoTokens: true}, 1.5},
			{"with token", redlockengine.Options{}, 2.5},
		} {
			name := v.name + ", same machine"
			if network > 0 {
				name = v.name + ", network"
			}
			b.Run(name, func(b *testing.B) {
				var addrs []string
				for range 5 {
					addr := testservers.Redis(b).Addr
					if network > 0 {
						link := proxy.New(b, addr)
						link.Delay(network)
						addr = link.Addr
					}
					addrs = append(addrs, addr)
				}
				five, one := pawlOnRedlock(b, addrs, &v.opts), pawlOnRedis(b, addrs[0])
				warm(b, five)
				warm(b, one)
				single := one.Mutex("order/43")
				beside(b, "redlock of 5 "+name+" p50", five.Mutex("order/42"), v.goal, func() { lockUnlock(b, single) })
			})
		}
	}
}
