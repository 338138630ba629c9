package testservers

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// zookeeperJar names its class path in its manifest, except for the jars that TLS needs.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

func zookeeperClasses() string {
	jar := cmp.Or(os.Getenv("PAWL_TEST_ZOOKEEPER_JAR"), zookeeperJar)
	folder := filepath.Dir(jar)
	return strings.Join([]string{jar, filepath.Join(folder, "netty-codec.jar"), filepath.Join(folder, "netty-resolver.jar")}, ":")
}

var zookeeperKind = zookeeperNode(1, "")

// zookeeperNode is a node of an ensemble. Without peers it is a server that stands alone.
func zookeeperNode(id int, peers string, more ...string) kind {
	return kind{
		name: "zookeeper", program: "java", binary: "PAWL_TEST_JAVA", given: "PAWL_TEST_ZOOKEEPER", ports: 2,
		args: func(dir string, ports []int) []string {
			return append(tuned(zookeeperSettings),
				"-Dzookeeper.admin.enableServer=false", "-Dzookeeper.jmx.log4j.disable=true", "-Djava.awt.headless=true",
				"-cp", zookeeperClasses(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(dir, "zoo.cfg"))
		},
		fill: func(_ kind, _, dir string, ports []int) error {
			data := filepath.Join(dir, "data")
			if err := os.Mkdir(data, 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(data, "myid"), []byte(strconv.Itoa(id)), 0o600); err != nil {
				return err
			}
			config := fmt.Sprintf("dataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\n"+
				"admin.enableServer=false\n4lw.commands.whitelist=*\n", data, ports[0]) + peers
			settings := tuned(zookeeperConfig)
			if settings == nil {
				settings = []string{"tickTime=2000", "initLimit=10", "syncLimit=5"} // as in zoo_sample.cfg
			}
			for _, line := range append(settings, more...) {
				config += strings.ReplaceAll(line, "SECOND_PORT", strconv.Itoa(ports[1])) + "\n"
			}
			return os.WriteFile(filepath.Join(dir, "zoo.cfg"), []byte(config), 0o600)
		},
		ready: zookeeperReady,
	}
}

// ZooKeeper starts a private ZooKeeper for one test, which stands alone. The server keeps its data
// over Kill and Restart. The server looks for empty containers every second. Lines are added to its configuration, such as
// "preAllocSize=64".
func ZooKeeper(t testing.TB, lines ...string) *Server {
	t.Helper()
	return start(t, zookeeperNode(1, "", lines...), nil)
}

// SharedZooKeeper returns the ZooKeeper of this test process, or the ZooKeeper that
// PAWL_TEST_ZOOKEEPER names. Tests use names of their own in it.
func SharedZooKeeper(t testing.TB) *Server { t.Helper(); return shared(t, zookeeperKind) }

// ZooKeeperTLS is [ZooKeeper] with a second address. There clients speak TLS, and must show a
// certificate.
func ZooKeeperTLS(t testing.TB, ca *CA) (server *Server, secure string) {
	t.Helper()
	cert := ca.Issue("zookeeper")
	var both []byte
	for _, file := range []string{cert.KeyFile, cert.CertFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, text...)
	}
	store := strings.TrimSuffix(cert.KeyFile, ".key") + ".store.pem"
	if err := os.WriteFile(store, both, 0o600); err != nil {
		t.Fatal(err)
	}
	server = start(t, zookeeperNode(1, "", "secureClientPort=SECOND_PORT", "secureClientPortAddress=127.0.0.1",
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location="+store, "ssl.keyStore.type=PEM", "ssl.trustStore.location="+ca.File, "ssl.trustStore.type=PEM",
	), nil)
	secure = net.JoinHostPort("127.0.0.1", strconv.Itoa(server.proc.ports[1]))
	config := ca.Client(ca.Issue("first"))
	until(t, "TLS is served", func() error { // later than on the other port, and the first handshake takes seconds on a busy machine
		conn, err := tls.Dial("tcp", secure, config)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return server, secure
}

// ZooKeeperEnsemble starts three nodes for one test, as [ZooKeeper] does. A test can kill, pause
// and restart each node by itself.
func ZooKeeperEnsemble(t testing.TB) []*Server {
	t.Helper()
	const n = 3
	ports, err := freePorts(2 * n)
	if err != nil {
		t.Fatal(err)
	}
	peers := ""
	for i := range n {
		peers += fmt.Sprintf("server.%d=127.0.0.1:%d:%d\n", i+1, ports[2*i], ports[2*i+1])
	}
	nodes, errs := make([]*Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n { // at once: no node serves before there is a majority
		wg.Go(func() {
			var p *process
			if p, errs[i] = launch(zookeeperNode(i+1, peers), nil); errs[i] == nil {
				t.Cleanup(p.remove)
				nodes[i] = &Server{Addr: p.addr, Dir: p.dir, t: t, proc: p}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// ZooKeeperSays sends a four letter word, and returns the answer.
func ZooKeeperSays(addr, word string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	return string(text), err
}

// zookeeperReady asks for the mode, which depends on a leader as well.
func zookeeperReady(addr string) error {
	text, err := ZooKeeperSays(addr, "srvr")
	if err == nil && !strings.Contains(text, "Mode: ") {
		err = fmt.Errorf("srvr is %q", text)
	}
	return err
}
