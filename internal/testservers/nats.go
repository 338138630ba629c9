package testservers

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// natsKind has no settings of ours: a nats-server as shipped starts soon, and flushes little.
var natsKind = kind{
	name: "nats-server", binary: "PAWL_TEST_NATS_SERVER", given: "PAWL_TEST_NATS", ports: 1,
	folders: []string{"/usr/sbin"},
	args: func(dir string, ports []int) []string {
		return []string{"-a", "127.0.0.1", "-p", strconv.Itoa(ports[0]), "-js", "-sd", filepath.Join(dir, "data")}
	},
	ready: natsReady,
}

// NATS starts a private nats-server with JetStream for one test. It keeps its data over Kill and
// Restart.
func NATS(t testing.TB, args ...string) *Server { t.Helper(); return start(t, natsKind, args) }

// SharedNATS returns the nats-server of this test process, or the one that PAWL_TEST_NATS
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

// NATSTLS starts a nats-server that speaks TLS only. It asks for no certificate of the client unless
// verify says so.
func NATSTLS(t testing.TB, ca *CA, verify bool) *Server {
	t.Helper()
	cert := ca.Issue("nats")
	return natsConfigured(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: %v }\n",
		cert.CertFile, cert.KeyFile, ca.File, verify), natsReady)
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

// natsReady reads what a server says first. JetStream is ready then, because the server listens for clients last.
func natsReady(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second)) //nolint:errcheck // the read tells
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "INFO ") {
		err = fmt.Errorf("the server says %q", line)
	}
	return err
}
