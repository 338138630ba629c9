package open_test

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// clusterURL names some nodes. The grace is that of the rows, some of which have sessions of
// minutes.
func clusterURL(nodes []*testservers.Server) string {
	return "redis+cluster://" + nodes[1].Addr + "," + nodes[2].Addr + "?grace=1s"
}

func TestRedisCluster(t *testing.T) {
	nodes := testservers.RedisCluster(t)
	enginetest.Run(t, &enginetest.Harness{
		Open:        func(t *testing.T) engine.Engine { return connect(t, clusterURL(nodes)) },
		TTL:         time.Second,
		Network:     func(t *testing.T) (engine.Engine, enginetest.Network) { return troubledCluster(t, nodes) },
		Fresh:       unused(clusterURL(nodes) + "&prefix=NEW:"),
		KillSession: clusterKiller(t, nodes[0].Addr),
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			nodes := testservers.RedisCluster(t)
			return func(t *testing.T) engine.Engine { return connect(t, clusterURL(nodes)) },
				func() { testservers.RestartRedisCluster(t, nodes) }
		},
		Cannot: map[string]string{"Snapshot": "the data are on three nodes", "Hang": "a cluster with a node that hangs serves no name"},
		Full:   fullRedisCluster,
	})
}

// TestRedisClusterACL: a user of a cluster needs no more rights than the documentation lists.
func TestRedisClusterACL(t *testing.T) {
	rules := slices.Concat(appRules(t), aclRules(t, "Clients of a cluster need also\n\n```\n", "\n"))
	nodes := testservers.RedisCluster(t, slices.Concat(
		[]string{"--user", "default", "on", "nopass", "~*", "&*", "+@all", "--user", "app", "on", ">s3cret"}, rules)...)
	eng := connect(t, "redis+cluster://app:s3cret@"+nodes[0].Addr+"?grace=1s")
	c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // on all nodes
		if err := hold(t, c, "acl/"+strconv.Itoa(i)).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	l := hold(t, c, "acl/held")
	for name, err := range eng.List(t.Context(), "acl/") {
		if name != "acl/held" && name != "" || err != nil {
			t.Error(name, err)
		}
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, node := range nodes {
		commandsUsed(t, node.Addr)
	}
}

// troubledCluster returns an engine whose client reaches each node through a proxy.
func troubledCluster(t *testing.T, nodes []*testservers.Server) (engine.Engine, enginetest.Network) {
	proxies := make(map[string]*proxy.Proxy)
	for _, node := range nodes {
		proxies[node.Addr] = proxy.New(t, node.Addr)
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{nodes[0].Addr}, DisableCache: true, ConnWriteTimeout: 5 * time.Second,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", proxies[addr].Addr)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return redisengine.New(client, &redisengine.Options{Grace: time.Second}), network(t, slices.Collect(maps.Values(proxies))...)
}

// clusterKiller ends sessions wherever they live.
func clusterKiller(t *testing.T, addr string) func(*testing.T, string) {
	raw, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	return func(t *testing.T, session string) {
		ctx := context.Background()
		n, err := raw.Do(ctx, raw.B().Del().Key("pawl:session:"+session).Build()).AsInt64()
		if err != nil || n != 1 {
			t.Fatal(n, err)
		}
		for _, node := range raw.Nodes() {
			keys, err := node.Do(ctx, node.B().Keys().Pattern("pawl:{*}:s:"+session+":*").Build()).AsStrSlice()
			for _, key := range keys {
				sessions, id, _ := strings.Cut(key, "}:s:")
				err = errors.Join(err, raw.Do(ctx, raw.B().Del().Key(key).Build()).Error(),
					raw.Do(ctx, raw.B().Zrem().Key(sessions+"}:s").Member(id).Build()).Error())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
