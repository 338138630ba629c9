package testservers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsKind has no settings of these tests: a nats-server as shipped starts soon, and flushes
// little.
var natsKind = kind{
	name: "nats-server", binary: "PAWL_TEST_NATS_SERVER", given: "PAWL_TEST_NATS", ports: 1,
	folders: []string{"/usr/sbin"},
	args: func(dir string, ports []int) []string {
		return []string{"-a", "127.0.0.1", "-p", strconv.Itoa(ports[0]), "-js", "-sd", filepath.Join(dir, "data")}
	},
	ready: natsReady,
}

// NATS starts a private nats-server with JetStream for one test. The server keeps its data over
// Kill and Restart.
func NATS(t testing.TB, args ...string) *Server { t.Helper(); return start(t, natsKind, args) }

// SharedNATS returns the nats-server of this test process, or the nats-server that PAWL_TEST_NATS
// names. Tests use names of their own in it.
func SharedNATS(t testing.TB) *Server { t.Helper(); return shared(t, natsKind) }

// NATSUser starts a nats-server that asks for a user and a password, or for a token where the password is empty. The
// password is not in the list of processes.
func NATSUser(t testing.TB, user, password string) *Server {
	t.Helper()
	login := fmt.Sprintf("user: %q, password: %q", user, password)
	if password == "" {
		login = fmt.Sprintf("token: %q", user)
	}
	return natsConfigured(t, "authorization { "+login+" }\n", natsReady)
}

// NATSUsers starts a nats-server for these users, as its configuration lists them.
func NATSUsers(t testing.TB, users string) *Server {
	t.Helper()
	return natsConfigured(t, "authorization { users: [\n"+users+"\n] }\n", natsReady)
}

// NATSTLS starts a nats-server that speaks TLS only. The server asks for no certificate of the
// client unless verify says so.
func NATSTLS(t testing.TB, ca *CA, verify bool) *Server {
	t.Helper()
	cert := ca.Issue("nats")
	return natsConfigured(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: %v }\n",
		cert.CertFile, cert.KeyFile, ca.File, verify), natsReady)
}

// natsClusterKind is a nats-server for clusters. There the engine needs 2.11, which older package
// managers lack: `make setup` then builds a nats-server.
func natsClusterKind() kind {
	k := natsKind
	k.binary = "PAWL_TEST_NATS_CLUSTER_SERVER"
	if _, file, _, known := runtime.Caller(0); known {
		built := filepath.Join(filepath.Dir(file), "../../.cache/bin/nats-server")
		if _, err := os.Stat(built); err == nil {
			k.program, k.folders = built, nil
		}
	}
	return k
}

// NATSCluster starts three nats-servers of 2.11 or later for one test; they are one cluster. A test
// can kill, pause and restart each server by itself. The servers keep their data.
func NATSCluster(t testing.TB) []*Server {
	t.Helper()
	return natsCluster(t, natsClusterKind())
}

// NATSOldCluster is [NATSCluster] with the nats-server of [NATS].
func NATSOldCluster(t testing.TB) []*Server {
	t.Helper()
	return natsCluster(t, natsKind)
}

func natsCluster(t testing.TB, k kind) []*Server {
	t.Helper()
	const n = 3
	routes, err := freePorts(n)
	if err != nil {
		t.Fatal(err)
	}
	nodes, errs := make([]*Server, n), make([]error, n)
	var starting sync.WaitGroup
	for i := range n { // at once, because JetStream begins with a majority
		starting.Go(func() {
			var p *process
			if p, errs[i] = launch(natsNode(k, i, routes), nil); errs[i] == nil {
				t.Cleanup(p.remove)
				nodes[i] = &Server{Addr: p.addr, Dir: p.dir, t: t, proc: p}
			}
		})
	}
	starting.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the cluster has a leader", func() error { return natsLeads(t.Context(), nodes[0].Addr, n) })
	return nodes
}

// natsNode is the node of this number in a cluster.
func natsNode(k kind, number int, routes []int) kind {
	var urls []string
	for _, port := range routes {
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	k.args = func(dir string, ports []int) []string {
		return append(natsKind.args(dir, ports), "--server_name", fmt.Sprintf("n%d", number), "--cluster_name", "pawl",
			"--cluster", urls[number], "--routes", strings.Join(urls, ","),
			"--no_advertise") // so that clients know the addresses only that they were given, as those of proxies
	}
	return k
}

// natsLeads says whether JetStream can place a stream on so many nodes: it has a leader that has
// heard of them.
func natsLeads(ctx context.Context, addr string, nodes int) error {
	nc, err := nats.Connect(addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	const probe = "testservers"
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: probe, Replicas: nodes}); err != nil {
		return err
	}
	return js.DeleteStream(ctx, probe)
}

// JetStream connects to JetStream by a client of its own, which the end of the test closes.
func JetStream(t testing.TB, addr string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// NATSLeader returns the node that leads a stream, and the others.
func NATSLeader(t testing.TB, cluster []*Server, stream string) (leader *Server, others []*Server) {
	t.Helper()
	until(t, "the stream has a leader", func() error {
		name, err := natsLeader(t.Context(), cluster, stream)
		leader, others = nil, nil
		for i, s := range cluster {
			if name == fmt.Sprintf("n%d", i) {
				leader = s
			} else {
				others = append(others, s)
			}
		}
		if err == nil && leader == nil {
			err = fmt.Errorf("the leader is %q", name)
		}
		return err
	})
	return leader, others
}

func natsLeader(ctx context.Context, cluster []*Server, stream string) (string, error) {
	var urls []string
	for _, s := range cluster {
		urls = append(urls, s.Addr)
	}
	nc, err := nats.Connect(strings.Join(urls, ","))
	if err != nil {
		return "", err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	is, err := js.Stream(ctx, stream)
	if err != nil {
		return "", err
	}
	if is.CachedInfo().Cluster == nil {
		return "", fmt.Errorf("stream %s is in no cluster", stream)
	}
	return is.CachedInfo().Cluster.Leader, nil
}

func natsConfigured(t testing.TB, config string, ready func(string) error) *Server {
	t.Helper()
	k := natsKind
	k.ready = ready
	k.fill = func(_ kind, _, dir string, _ []int) error {
		return os.WriteFile(filepath.Join(dir, "nats.conf"), []byte(config), 0o600)
	}
	k.args = func(dir string, ports []int) []string {
		return append(natsKind.args(dir, ports), "-c", filepath.Join(dir, "nats.conf"))
	}
	return start(t, k, nil)
}

// natsReady reads the server's greeting. JetStream is ready then, because the server listens for
// clients last.
func natsReady(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second)) //nolint:errcheck // the read reports the fault
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "INFO ") {
		err = fmt.Errorf("the server says %q", line)
	}
	return err
}
