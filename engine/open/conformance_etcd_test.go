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

func etcdCluster(servers []*testservers.Server) string {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return etcdURL(strings.Join(addrs, ","))
}

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

// TestEtcd3: clients know all members, and the trouble is with all of them.
func TestEtcd3(t *testing.T) {
	cluster := testservers.EtcdCluster(t)
	enginetest.Run(t, &enginetest.Harness{
		Open: func(t *testing.T) engine.Engine { return connect(t, etcdCluster(cluster)) },
		TTL:  2 * time.Second,
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) {
			var proxies []*testservers.Proxy
			var addrs []string
			for _, s := range cluster {
				p := testservers.NewProxy(t, s.Addr)
				proxies, addrs = append(proxies, p), append(addrs, p.Addr)
			}
			all := func(do func(*testservers.Proxy)) func() {
				return func() {
					for _, p := range proxies {
						do(p)
					}
				}
			}
			heal := all((*testservers.Proxy).Heal)
			t.Cleanup(heal)
			return connect(t, etcdURL(strings.Join(addrs, ","))), enginetest.Network{
				Freeze: all((*testservers.Proxy).Freeze), FreezeReplies: all((*testservers.Proxy).FreezeReplies),
				Cut: all((*testservers.Proxy).Cut), Heal: heal,
			}
		},
		KillSession: etcdKiller(t, cluster[0].Addr),
	})
}
