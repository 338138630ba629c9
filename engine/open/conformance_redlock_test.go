package open_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func redlockURL(addrs []string) string { return "redlock://" + strings.Join(addrs, ",") }

// redlockServers starts independent servers.
func redlockServers(t *testing.T, n int) (servers []*testservers.Server, addrs []string) {
	t.Helper()
	for range n {
		server := testservers.Redis(t)
		servers, addrs = append(servers, server), append(addrs, server.Addr)
	}
	return servers, addrs
}

// majority is how many nodes of five a Redlock session needs.
const majority = 3

// killOnNodes ends the sessions on all nodes that a session with a claim has. A majority has the claim, and the others get it soon. A slow
// node that missed the claim gets it with a renewal, which a session that is to die may not send any more.
func killOnNodes(t *testing.T, clients []rueidis.Client, session string) {
	t.Helper()
	ctx := context.Background()
	on := make([]string, len(clients))
	found := 0
	// All are found before the first dies, because the client leaves the others when a majority is dead. The session must not expire meanwhile.
	for began := time.Now(); found < len(clients) && (found < majority || time.Since(began) < time.Second); {
		if time.Since(began) > time.Minute {
			t.Fatalf("session %s: %d nodes have a claim of it", session, found)
		}
		for i, c := range clients {
			if on[i] == "" {
				if on[i] = onNode(t, c, session); on[i] != "" {
					found++
				}
			}
		}
	}
	dead := 0
	for i, c := range clients {
		if on[i] == "" {
			continue
		}
		killed := 0
		for _, r := range c.DoMulti(ctx, c.B().Del().Key("pawl:session:"+on[i]).Build(), c.B().Zrem().Key("pawl:sessions").Member(on[i]).Build()) {
			n, err := r.AsInt64()
			if err != nil {
				t.Fatal(err)
			}
			killed += int(n)
		}
		if killed != 2 && dead < majority {
			t.Fatalf("session %s: %d keys of a node, not 2", session, killed)
		}
		dead++
	}
}

// onNode returns the session on a node that has a claim of a session of Redlock, or "".
func onNode(t *testing.T, c rueidis.Client, session string) (on string) {
	t.Helper()
	ctx, node := context.Background(), redisengine.New(c, nil)
	for name, err := range node.List(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		r, err := node.Show(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, claim := range r.Claims {
			if strings.HasPrefix(claim.ID, session+".") {
				on = claim.Session
			}
		}
	}
	return on
}

func conformRedlock(t *testing.T, servers []*testservers.Server, addrs []string) {
	var clients []rueidis.Client
	for _, server := range servers {
		clients = append(clients, oneRedis(t, server.Addr))
	}
	enginetest.Run(t, &enginetest.Harness{
		Open: func(t *testing.T) engine.Engine { return connect(t, redlockURL(addrs)) },
		TTL:  4 * time.Second, // a claim takes several requests to each node, and a busy machine has to do them in a part of it
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) {
			through, net := proxies(t, addrs...)
			return connect(t, redlockURL(through)), net
		},
		KillSession: func(t *testing.T, session string) { killOnNodes(t, clients, session) },
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			servers, addrs := redlockServers(t, 5)
			return func(t *testing.T) engine.Engine { return connect(t, redlockURL(addrs)) },
				func() {
					for _, server := range servers {
						server.Kill()
						server.Restart()
					}
				}
		},
		Cannot: map[string]string{"Snapshot": "the data are on five servers", "Full": "a waiter writes its token, which full nodes may refuse", "Hang": "each node is a Redis server: TestRedis"},
	})
}

func TestRedlock5(t *testing.T) {
	servers, addrs := redlockServers(t, 5)
	conformRedlock(t, servers, addrs)
}

func TestRedlock5With2Dead(t *testing.T) {
	servers, addrs := redlockServers(t, 5)
	servers[1].Kill()
	servers[3].Kill()
	conformRedlock(t, []*testservers.Server{servers[0], servers[2], servers[4]}, addrs)
}
