package testservers

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// RedisReplica starts a replica of the master at addr, and waits until the replica follows and the
// master counts on it.
func RedisReplica(t testing.TB, master string, args ...string) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master)
	if err != nil {
		t.Fatal(err)
	}
	k := redisKind
	k.ready = func(addr string) error { return redisSays(addr, "INFO replication", "master_link_status:up") }
	s := start(t, k, append([]string{"--replicaof", host, port}, args...))
	acknowledges(t, master, s)
	return s
}

// Sentinels is a master of Redis with a replica, and three Sentinels. If the master fails, the
// Sentinels make the replica the master within about two seconds.
type Sentinels struct {
	Master, Replica *Server // their roles at the start
	Watchers        []*Server
}

// SentinelMaster is the Sentinels' name of the master.
const SentinelMaster = "mymaster"

// RedisSentinels starts them; args are for the Sentinels.
func RedisSentinels(t testing.TB, args ...string) *Sentinels {
	t.Helper()
	// The replica has a user of its own, so that a test can shut it out.
	master := Redis(t, "--user", "replica", "on", ">replica", "+psync", "+replconf", "+ping")
	s := &Sentinels{Master: master, Replica: RedisReplica(t, master.Addr, "--masteruser", "replica", "--masterauth", "replica")}
	for range 3 {
		w := redisSentinel(t, SentinelMaster, master.Addr, 2, 500*time.Millisecond, args)
		// The Sentinels greet one another so often; without this setting they need seconds to meet.
		w.redis("SENTINEL DEBUG publish-period 100 info-period 1000")
		s.Watchers = append(s.Watchers, w)
	}
	for _, w := range s.Watchers {
		until(t, "the Sentinels know all", func() error {
			if err := redisSays(w.Addr, "SENTINEL MASTER "+SentinelMaster, "num-other-sentinels\n2\n", "num-slaves\n1\n", "flags\nmaster\n"); err != nil {
				return err
			}
			return redisSays(w.Addr, "SENTINEL CKQUORUM "+SentinelMaster, "OK 3 ")
		})
	}
	return s
}

// Addrs returns where the Sentinels listen.
func (s *Sentinels) Addrs() (addrs []string) {
	for _, w := range s.Watchers {
		addrs = append(addrs, w.Addr)
	}
	return addrs
}

// CutReplica ends the replication. The replica never learns the later changes of the master, also
// after it was made the master.
func (s *Sentinels) CutReplica() {
	s.Master.t.Helper()
	s.Master.redis("ACL DELUSER replica") // the command closes the replica's connection
	until(s.Master.t, "the replica is cut off", func() error { return redisSays(s.Replica.Addr, "INFO replication", "master_link_status:down") })
}

// RedisObserver starts one Sentinel that calls the server at addr master and never replaces it.
// Clients get addr from the Sentinel, which may be a proxy. args are for the Sentinel.
func RedisObserver(t testing.TB, addr string, args ...string) *Server {
	t.Helper()
	return redisSentinel(t, ObservedMaster, addr, 1, time.Hour, args)
}

// ObservedMaster is the name of the master at a [RedisObserver].
const ObservedMaster = "observed"

// sentinelConfig is a file, because a Sentinel writes its knowledge into the file.
const sentinelConfig = `port %d
bind 127.0.0.1
protected-mode no
daemonize no
logfile ""
dir %s
sentinel monitor %[3]s %s %s %d
sentinel down-after-milliseconds %[3]s %[7]d
sentinel failover-timeout %[3]s 3000
sentinel parallel-syncs %[3]s 1
`

func redisSentinel(t testing.TB, name, addr string, quorum int, down time.Duration, args []string) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	k := redisKind
	k.args = func(dir string, ports []int) []string {
		file := filepath.Join(dir, "sentinel.conf")
		if err := os.WriteFile(file, fmt.Appendf(nil, sentinelConfig, ports[0], dir, name, host, port, quorum, down.Milliseconds()), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{file, "--sentinel"}
	}
	return start(t, k, args)
}

// RedisCluster starts a Redis Cluster of three masters and no replicas. The Restart of a node needs
// the other nodes.
func RedisCluster(t testing.TB, args ...string) []*Server {
	t.Helper()
	return redisCluster(t, redisNode(), args)
}

func redisCluster(t testing.TB, k kind, args []string) []*Server {
	t.Helper()
	const nodes, slots = 3, 16384
	var all []*Server
	for i := range nodes {
		s := start(t, k, args)
		s.redis(fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1))
		s.redis(fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*slots/nodes, (i+1)*slots/nodes-1))
		if i > 0 {
			all[0].meet(s)
		}
		all = append(all, s)
	}
	AwaitRedisCluster(t, all)
	return all
}

func redisNode() kind {
	k := redisKind
	k.ports = 2
	k.args = func(dir string, ports []int) []string {
		return append(append(redisArgs(dir), "--port", strconv.Itoa(ports[0]), "--cluster-port", strconv.Itoa(ports[1]),
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"), tuned(redisClusterSettings)...)
	}
	return k
}

// meet lets another node in.
func (s *Server) meet(other *Server) {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(other.Addr)
	s.redis(fmt.Sprintf("CLUSTER MEET %s %s %d", host, port, other.proc.ports[1]))
}

// RedisClusterReplica adds a replica of a master to a cluster. The replica takes the master's place
// about two seconds after the master has died.
func RedisClusterReplica(t testing.TB, nodes []*Server, master *Server) *Server {
	t.Helper()
	s := start(t, redisNode(), nil)
	master.meet(s)
	id, err := redisAsk(master.Addr, "CLUSTER MYID")
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range append([]*Server{s}, nodes...) {
		until(t, "all know it", func() error {
			return redisSays(node.Addr, "CLUSTER INFO", "cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", len(nodes)+1))
		})
	}
	s.redis("CLUSTER REPLICATE " + strings.TrimSpace(id))
	acknowledges(t, master.Addr, s)
	return s
}

// acknowledges waits until a master counts on a replica.
func acknowledges(t testing.TB, master string, replica *Server) {
	t.Helper()
	_, port, _ := net.SplitHostPort(replica.Addr)
	until(t, "it has acknowledged something", func() error {
		is := "port=" + port + ",state=online,offset="
		if err := redisSays(master, "INFO replication", is); err != nil {
			return err
		}
		if redisSays(master, "INFO replication", is+"0,") == nil {
			return errors.New("not yet")
		}
		return nil
	})
}

// RestartRedisCluster kills all nodes at once, starts them again, and returns when they are a
// cluster.
func RestartRedisCluster(t testing.TB, nodes []*Server) {
	t.Helper()
	for _, node := range nodes {
		node.Kill()
	}
	for _, node := range nodes {
		node.Restart()
	}
	AwaitRedisCluster(t, nodes)
}

// AwaitRedisCluster waits until a cluster serves (again).
func AwaitRedisCluster(t testing.TB, nodes []*Server) {
	t.Helper()
	for _, s := range nodes {
		until(t, "the cluster serves", func() error {
			return redisSays(s.Addr, "CLUSTER INFO", "cluster_state:ok", "cluster_slots_ok:16384", fmt.Sprintf("cluster_known_nodes:%d", len(nodes)))
		})
	}
}
