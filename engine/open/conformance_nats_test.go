package open_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func natsURL(addr string) string { return "nats://" + addr }

// natsKiller ends sessions by their keys.
func natsKiller(t *testing.T, addr string) func(*testing.T, string) {
	t.Helper()
	js := testservers.JetStream(t, addr)
	return func(t *testing.T, session string) {
		kv, err := js.KeyValue(context.Background(), "pawl")
		if err == nil {
			err = kv.Purge(context.Background(), "s."+session)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestNATS(t *testing.T) {
	addr := testservers.SharedNATS(t).Addr
	enginetest.Run(t, &enginetest.Harness{
		Open:        func(t *testing.T) engine.Engine { return connect(t, natsURL(addr)) },
		TTL:         time.Second,
		Network:     proxied(addr, natsURL),
		KillSession: natsKiller(t, addr),
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			server := testservers.NATS(t)
			return func(t *testing.T) engine.Engine { return connect(t, natsURL(server.Addr)) }, func() {
				server.Kill()
				if err := os.RemoveAll(server.Dir + "/data"); err != nil {
					t.Error(err)
				}
				server.Restart()
			}
		},
		Fresh:    unused(natsURL(addr) + "?bucket=NEW"),
		Snapshot: snapshot(testservers.NATS, natsURL),
		Full:     fullNATS,
		Cannot:   map[string]string{"Hang": inOneRow},
	})
}

func natsCluster(addrs []string) string { return natsURL(strings.Join(addrs, ",")) }

// TestNATS3: clients know all servers of a cluster, the bucket has three replicas, and the trouble
// concerns all servers. The crowd takes minutes, because a majority confirms each write. So the
// crowd is a part of `make soak` only.
func TestNATS3(t *testing.T) {
	addrs := addrsOf(testservers.NATSCluster(t))
	enginetest.Run(t, &enginetest.Harness{
		Open: func(t *testing.T) engine.Engine { return connect(t, natsCluster(addrs)) },
		TTL:  2 * time.Second,
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) {
			through, net := proxies(t, addrs...)
			return connect(t, natsCluster(through)), net
		},
		KillSession: natsKiller(t, addrs[0]),
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			nodes := testservers.NATSCluster(t)
			url := natsCluster(addrsOf(nodes))
			return func(t *testing.T) engine.Engine { return connect(t, url) }, func() {
				for _, node := range nodes {
					node.Kill()
					if err := os.RemoveAll(node.Dir + "/data"); err != nil {
						t.Error(err)
					}
				}
				for _, node := range nodes {
					node.Restart()
				}
			}
		},
		Fresh:  unused(natsCluster(addrs) + "?bucket=NEW"),
		Cannot: map[string]string{"Snapshot": "the data are on three servers", "Full": "the row is in TestNATS", "Hang": inOneRow},
	})
}

// TestNATSPermissions runs rows as a user with the rights that docs/stores/nats.md lists, and no
// more.
func TestNATSPermissions(t *testing.T) {
	text, err := os.ReadFile("../../docs/stores/nats.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```\n{ user: app,")
	rules, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/stores/nats.md has no rules")
	}
	addr := testservers.NATSUsers(t, "{ user: app,"+strings.Replace(rules, "PASSWORD", "s3cret", 1)).Addr
	url := "nats://app:s3cret@" + addr
	if _, err := open.Init(t.Context(), connect(t, url)); err != nil {
		t.Fatal(err)
	}
	a, b := clientOf(t, connect(t, url), 2*time.Second), clientOf(t, connect(t, url), 2*time.Second)
	held := hold(t, a, "permitted")
	next := lockSoon(t, b.Mutex("permitted"))
	eventually(t, "it waits", func() bool {
		r, err := b.Show(t.Context(), "permitted")
		return err == nil && len(r.Waiters) == 1
	})
	for _, err := range a.List(t.Context(), "") {
		if err != nil {
			t.Error(err)
		}
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	l := <-next
	if l.err != nil {
		t.Fatal(l.err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := a.Value("v").Put(t.Context(), []byte("x"), 0); err != nil {
		t.Error(err)
	}
	if other, err := open.Open(t.Context(), url+"?bucket=other"); err == nil {
		t.Error("the user may use another bucket")
		other.Close()
	}
}
