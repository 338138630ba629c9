package open_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestRedisWait1: all rows with a replica that has to know each step.
func TestRedisWait1(t *testing.T) {
	master := testservers.Redis(t)
	testservers.RedisReplica(t, master.Addr)
	url := func(addr string) string { return redisURL(addr) + "?wait=1" }
	enginetest.Run(t, &enginetest.Harness{
		Open:        func(t *testing.T) engine.Engine { return connect(t, url(master.Addr)) },
		TTL:         time.Second,
		Network:     proxied(master.Addr, url),
		KillSession: redisKiller(t, rueidis.ClientOption{InitAddress: []string{master.Addr}}),
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			server := testservers.Redis(t)
			testservers.RedisReplica(t, server.Addr)
			return func(t *testing.T) engine.Engine { return connect(t, url(server.Addr)) },
				func() { server.Kill(); server.Restart() }
		},
		Cannot: otherRedis,
	})
}
