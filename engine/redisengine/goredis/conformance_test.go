package goredis_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/engine/redisengine/goredis"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// on returns the engine of a client, which is closed with the test.
func on(t *testing.T, client redis.UniversalClient, opts *redisengine.Options) engine.Engine {
	t.Helper()
	t.Cleanup(func() { client.Close() })
	eng, err := goredis.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	return eng
}

// elsewhere is why rows about the data of a server do not run with this client.
var elsewhere = map[string]string{
	"Fresh": "the row is in TestRedis of engine/open", "Snapshot": "the row is in TestRedis of engine/open", "Full": "the row is in TestRedis of engine/open",
	"Hang": "the row is in TestRedis of engine/open",
}

// dials is how often a client dials a server that is away before it pauses for a second. Some rows
// have no longer TTL.
const dials = 200

func single(t *testing.T, addr string, opts *redisengine.Options) engine.Engine {
	t.Helper()
	return on(t, redis.NewClient(&redis.Options{Addr: addr, PoolSize: dials}), opts)
}

// network has its trouble with all these proxies.
func network(t *testing.T, proxies ...*proxy.Proxy) enginetest.Network {
	freeze, freezeReplies, cut, heal := proxy.Together(proxies)
	t.Cleanup(heal)
	return enginetest.Network{Freeze: freeze, FreezeReplies: freezeReplies, Cut: cut, Heal: heal}
}

func troubled(t *testing.T, addr string, opts *redisengine.Options) (engine.Engine, enginetest.Network) {
	link := proxy.New(t, addr)
	return single(t, link.Addr, opts), network(t, link)
}

// conform runs the whole suite on a server, and on others that forget.
func conform(t *testing.T, server func(*testing.T) *testservers.Server, opts *redisengine.Options) {
	addr := server(t).Addr
	raw := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { raw.Close() })
	enginetest.Run(t, &enginetest.Harness{
		Open:    func(t *testing.T) engine.Engine { return single(t, addr, opts) },
		TTL:     time.Second,
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) { return troubled(t, addr, opts) },
		KillSession: func(t *testing.T, session string) {
			a, b := raw.Del(t.Context(), "pawl:session:"+session), raw.ZRem(t.Context(), "pawl:sessions", session)
			if a.Val() != 1 || b.Val() != 1 {
				t.Fatal(a, b)
			}
		},
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			own := server(t)
			return func(t *testing.T) engine.Engine { return single(t, own.Addr, opts) },
				func() { own.Kill(); own.Restart() }
		},
		Cannot: elsewhere,
	})
}

func TestServer(t *testing.T) {
	conform(t, func(t *testing.T) *testservers.Server { return testservers.Redis(t) }, nil)
}

// TestWait1: all of it with a replica that has to know each step.
func TestWait1(t *testing.T) {
	conform(t, func(t *testing.T) *testservers.Server {
		master := testservers.Redis(t)
		testservers.RedisReplica(t, master.Addr)
		return master
	}, &redisengine.Options{Wait: 1})
}

// clustered has the grace of the rows, some of which have sessions of minutes.
func clustered(t *testing.T, nodes []*testservers.Server, dial func(context.Context, string, string) (net.Conn, error)) engine.Engine {
	t.Helper()
	return on(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr}, Dialer: dial, PoolSize: dials}), &redisengine.Options{Grace: time.Second})
}

// troubledCluster reaches each node through a proxy.
func troubledCluster(t *testing.T, nodes []*testservers.Server) (engine.Engine, enginetest.Network) {
	proxies := make(map[string]*proxy.Proxy)
	for _, node := range nodes {
		proxies[node.Addr] = proxy.New(t, node.Addr)
	}
	eng := clustered(t, nodes, func(ctx context.Context, network, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, proxies[addr].Addr)
	})
	return eng, network(t, slices.Collect(maps.Values(proxies))...)
}

func TestCluster(t *testing.T) {
	nodes := testservers.RedisCluster(t)
	raw := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr}})
	t.Cleanup(func() { raw.Close() })
	enginetest.Run(t, &enginetest.Harness{
		Open:    func(t *testing.T) engine.Engine { return clustered(t, nodes, nil) },
		TTL:     time.Second,
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) { return troubledCluster(t, nodes) },
		KillSession: func(t *testing.T, session string) {
			if n, err := raw.Del(t.Context(), "pawl:session:"+session).Result(); n != 1 {
				t.Fatal(n, err)
			}
			err := raw.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
				keys, err := node.Keys(ctx, "pawl:{*}:s:"+session+":*").Result()
				for _, key := range keys {
					sessions, id, _ := strings.Cut(key, "}:s:")
					err = errors.Join(err, raw.Del(ctx, key).Err(), raw.ZRem(ctx, sessions+"}:s", id).Err())
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			nodes := testservers.RedisCluster(t)
			return func(t *testing.T) engine.Engine { return clustered(t, nodes, nil) },
				func() { testservers.RestartRedisCluster(t, nodes) }
		},
		Cannot: elsewhere,
	})
}
