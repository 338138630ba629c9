package testservers

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

var redisKind = kind{
	name: "redis-server", binary: "PAWL_TEST_REDIS_SERVER", given: "PAWL_TEST_REDIS", ports: 1,
	args: func(dir string, ports []int) []string {
		return []string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", dir, "--save", "", "--appendonly", "no",
			"--daemonize", "no", "--logfile", "", "--protected-mode", "no", "--hz", "100",
		}
	},
	ready: redisReady,
}

// Redis starts a private redis-server for one test. It keeps nothing on disk
// unless args say so, as "--appendonly", "yes", "--appendfsync", "always".
func Redis(t testing.TB, args ...string) *Server { t.Helper(); return start(t, redisKind, args) }

// SharedRedis returns the redis-server of this test process, or the one that
// PAWL_TEST_REDIS names. Tests use names of their own in it.
func SharedRedis(t testing.TB) *Server { t.Helper(); return shared(t, redisKind) }

// redisReady pings. A server that asks for a password serves, too.
func redisReady(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH") {
		return nil
	}
	return fmt.Errorf("PING was answered with %q", line)
}
