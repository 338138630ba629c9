package testservers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var etcdKind = kind{
	name: "etcd", binary: "PAWL_TEST_ETCD_SERVER", given: "PAWL_TEST_ETCD", ports: 2,
	args: func(dir string, ports []int) []string {
		return etcdArgs(dir, "http", "n0", ports, fmt.Sprintf("n0=http://127.0.0.1:%d", ports[1]))
	},
	ready: etcdReady,
}

// etcdArgs are the arguments of one member of a cluster.
func etcdArgs(dir, scheme, name string, ports []int, cluster string) []string {
	client, peer := fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	return append([]string{
		"--name", name, "--data-dir", filepath.Join(dir, "data"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", cluster, "--initial-cluster-state", "new", "--logger", "zap",
	}, tuned(etcdSettings)...)
}

// Etcd starts a private etcd of one node for one test. The etcd keeps its data over Kill and
// Restart.
func Etcd(t testing.TB, args ...string) *Server { t.Helper(); return start(t, etcdKind, args) }

// SharedEtcd returns the etcd of this test process, or the etcd that PAWL_TEST_ETCD names. Tests
// use names of their own in it.
func SharedEtcd(t testing.TB) *Server { t.Helper(); return shared(t, etcdKind) }

// EtcdTLS starts an etcd whose clients have to speak TLS. The etcd asks for no certificate of
// clients unless args say "--client-cert-auth", "--trusted-ca-file", ca.File.
func EtcdTLS(t testing.TB, ca *CA, args ...string) *Server {
	t.Helper()
	cert, k := ca.Issue("etcd"), etcdKind
	k.args = func(dir string, ports []int) []string {
		return append(etcdArgs(dir, "https", "n0", ports, fmt.Sprintf("n0=http://127.0.0.1:%d", ports[1])),
			"--cert-file", cert.CertFile, "--key-file", cert.KeyFile)
	}
	config := ca.Client(cert)
	k.ready = func(addr string) error { return etcdHealth("https://"+addr, config) }
	return start(t, k, args)
}

// EtcdUser starts an etcd that asks for a password. The user may read and write keys that start
// with prefix. root, with the same password, may do everything.
func EtcdUser(t testing.TB, user, password, prefix string, args ...string) *Server {
	t.Helper()
	s := Etcd(t, args...)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := t.Context()
	for _, step := range []func() error{
		func() error { _, err := client.UserAdd(ctx, "root", password); return err },
		func() error { _, err := client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := client.RoleAdd(ctx, user); return err },
		func() error {
			_, err := client.RoleGrantPermission(ctx, user, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := client.UserAdd(ctx, user, password); return err },
		func() error { _, err := client.UserGrantRole(ctx, user, user); return err },
		func() error { _, err := client.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// EtcdCluster starts a cluster of three members. A test can kill, pause and restart each by itself.
// A restart waits until the cluster serves, so it needs one other member that serves.
func EtcdCluster(t testing.TB, args ...string) []*Server {
	t.Helper()
	path, err := etcdKind.lookPath()
	if err != nil {
		t.Fatal(err)
	}
	for attempt := 1; ; attempt++ {
		all, err := launchEtcds(path, args)
		for _, p := range all {
			t.Cleanup(p.remove)
		}
		switch {
		case err == nil:
			var servers []*Server
			for _, p := range all {
				servers = append(servers, &Server{Addr: p.addr, Dir: p.dir, t: t, proc: p})
			}
			return servers
		case attempt == 3 || !errors.Is(err, errEnded):
			t.Fatal(missed(err))
		}
	}
}

// launchEtcds starts all members at once, because none is ready without others.
func launchEtcds(path string, args []string) (all []*process, err error) {
	const members = 3
	ports, err := freePorts(2 * members)
	if err != nil {
		return nil, err
	}
	var cluster []string
	for i := range members {
		cluster = append(cluster, fmt.Sprintf("n%d=http://127.0.0.1:%d", i, ports[2*i+1]))
	}
	for i := range members {
		k := etcdKind
		k.args = func(dir string, ports []int) []string {
			return etcdArgs(dir, "http", fmt.Sprintf("n%d", i), ports, strings.Join(cluster, ","))
		}
		p, err := prepare(k, path, ports[2*i:2*i+2], args)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	started := make(chan error)
	for _, p := range all {
		go func() { started <- p.start() }()
	}
	for range all {
		err = errors.Join(err, <-started)
	}
	return all, err
}

// EtcdLeader returns the member that leads the cluster, and the others.
func EtcdLeader(t testing.TB, cluster []*Server) (leader *Server, others []*Server) {
	t.Helper()
	until(t, "the cluster has a leader", func() error {
		leader, others = nil, nil
		for _, s := range cluster {
			leads, err := etcdLeads(t, s.Addr)
			switch {
			case err != nil:
				return err
			case leads:
				leader = s
			default:
				others = append(others, s)
			}
		}
		if leader == nil || len(others) != len(cluster)-1 {
			return errors.New("none leads")
		}
		return nil
	})
	return leader, others
}

func etcdLeads(t testing.TB, addr string) (bool, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		return false, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	status, err := client.Status(ctx, addr)
	if err != nil {
		return false, err
	}
	return status.Leader == status.Header.MemberId, nil
}

// etcdReady asks for the health, which depends on a leader as well.
func etcdReady(addr string) error { return etcdHealth("http://"+addr, nil) }

func etcdHealth(base string, config *tls.Config) error {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}
	client := http.Client{Timeout: time.Second, Transport: transport}
	reply, err := client.Get(base + "/health")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		return err
	}
	if !strings.Contains(string(body), `"health":"true"`) {
		return fmt.Errorf("health is %s", body)
	}
	return nil
}
