package testservers

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var etcdKind = kind{
	name: "etcd", binary: "PAWL_TEST_ETCD_SERVER", given: "PAWL_TEST_ETCD", ports: 2,
	args: func(dir string, ports []int) []string {
		client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
		return []string{
			"--name", "n0", "--data-dir", filepath.Join(dir, "data"),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", "n0=" + peer, "--initial-cluster-state", "new",
			"--heartbeat-interval", "50", "--election-timeout", "500", "--unsafe-no-fsync",
			"--logger", "zap", "--log-level", "error",
		}
	},
	ready: etcdReady,
}

// Etcd starts a private etcd of one node for one test. It keeps its data over
// Kill and Restart.
func Etcd(t testing.TB, args ...string) *Server { t.Helper(); return start(t, etcdKind, args) }

// SharedEtcd returns the etcd of this test process, or the one that
// PAWL_TEST_ETCD names. Tests use names of their own in it.
func SharedEtcd(t testing.TB) *Server { t.Helper(); return shared(t, etcdKind) }

// etcdReady asks for the health, which tells of a leader as well.
func etcdReady(addr string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Get("http://" + addr + "/health")
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
