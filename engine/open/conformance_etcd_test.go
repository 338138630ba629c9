package open_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func etcdCluster(addrs []string) string { return etcdURL(strings.Join(addrs, ",")) }

// etcdKiller ends sessions.
func etcdKiller(t *testing.T, addr string) func(*testing.T, string) {
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	return func(t *testing.T, session string) {
		lease, _, _ := strings.Cut(session, "-")
		id, err := strconv.ParseInt(lease, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Revoke(context.Background(), clientv3.LeaseID(id)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEtcd3: clients know all members, and the trouble concerns all members.
func TestEtcd3(t *testing.T) {
	addrs := addrsOf(testservers.EtcdCluster(t))
	enginetest.Run(t, &enginetest.Harness{
		Open: func(t *testing.T) engine.Engine { return connect(t, etcdCluster(addrs)) },
		TTL:  2 * time.Second,
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) {
			through, net := proxies(t, addrs...)
			return connect(t, etcdCluster(through)), net
		},
		KillSession: etcdKiller(t, addrs[0]),
		Fresh:       unused(etcdCluster(addrs) + "?prefix=NEW/"),
		Cannot:      map[string]string{"Snapshot": "the data are on three members", "Full": "the row is in TestEtcd", "Hang": inOneRow},
	})
}
