package testservers

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

var redisKind = kind{
	name: "redis-server", binary: "PAWL_TEST_REDIS_SERVER", given: "PAWL_TEST_REDIS", ports: 1,
	args: func(dir string, ports []int) []string {
		return append(redisArgs(dir), "--port", strconv.Itoa(ports[0]))
	},
	ready: redisReady,
}

func redisArgs(dir string) []string {
	return append([]string{"--bind", "127.0.0.1", "--dir", dir}, tuned(redisSettings)...)
}

// Redis starts a private redis-server for one test. The server keeps nothing over a Kill unless
// args say so, as "--appendonly", "yes", "--appendfsync", "always".
func Redis(t testing.TB, args ...string) *Server { t.Helper(); return start(t, redisKind, args) }

// SharedRedis returns the redis-server of this test process, or the redis-server that
// PAWL_TEST_REDIS names. Tests use names of their own in it.
func SharedRedis(t testing.TB) *Server { t.Helper(); return shared(t, redisKind) }

// RedisTLS starts a redis-server that speaks TLS only. The server asks for no certificate of the
// client unless args say "--tls-auth-clients", "yes".
func RedisTLS(t testing.TB, ca *CA, args ...string) *Server {
	t.Helper()
	cert, k := ca.Issue("redis"), redisKind
	config := ca.Client(cert)
	k.args = func(dir string, ports []int) []string {
		return append(redisArgs(dir), "--port", "0", "--tls-port", strconv.Itoa(ports[0]), "--tls-ca-cert-file", ca.File,
			"--tls-cert-file", cert.CertFile, "--tls-key-file", cert.KeyFile, "--tls-auth-clients", "no")
	}
	k.ready = func(addr string) error {
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", addr, config)
		if err != nil {
			return err
		}
		return redisPong(redisAskOn(conn, "PING"))
	}
	return start(t, k, args)
}

// RedisUser starts a redis-server for one user, with these rules of an access list. No other user
// may do anything there.
func RedisUser(t testing.TB, user, password string, rules ...string) *Server {
	t.Helper()
	return Redis(t, append([]string{"--user", "default", "off", "--user", user, "on", ">" + password}, rules...)...)
}

// redis sends a command that must succeed.
func (s *Server) redis(command string) {
	s.t.Helper()
	if _, err := redisAsk(s.Addr, command); err != nil {
		s.t.Fatalf("%s: %v", command, err)
	}
}

func redisReady(addr string) error { return redisPong(redisAsk(addr, "PING")) }

// redisPong takes the answer to a PING. A server that asks for a password is ready, too.
func redisPong(reply string, err error) error {
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "NOAUTH"):
		return nil
	case err == nil && reply != "PONG\n":
		return fmt.Errorf("PING was answered with %q", reply)
	}
	return err
}

// redisSays asks for a text and fails unless all the pieces are in it.
func redisSays(addr, command string, pieces ...string) error {
	reply, err := redisAsk(addr, command)
	for _, piece := range pieces {
		if err == nil && !strings.Contains(reply, piece) {
			err = fmt.Errorf("%s does not say %q: %s", command, piece, reply)
		}
	}
	return err
}

// redisAsk sends a command over a connection of its own, and returns the lines of the reply.
func redisAsk(addr, command string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	return redisAskOn(conn, command)
}

func redisAskOn(conn net.Conn, command string) (string, error) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	return redisReply(bufio.NewReader(conn))
}

func redisReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSpace(line)
	rest := line[1:]
	switch n, _ := strconv.Atoi(rest); line[0] {
	case '-':
		return "", fmt.Errorf("%s", rest)
	case '$':
		text := make([]byte, max(n, 0)+2)
		_, err := io.ReadFull(r, text)
		return string(text[:max(n, 0)]) + "\n", err
	case '*':
		var all strings.Builder
		for range n {
			one, err := redisReply(r)
			if err != nil {
				return "", err
			}
			all.WriteString(one)
		}
		return all.String(), nil
	}
	return rest + "\n", nil
}
