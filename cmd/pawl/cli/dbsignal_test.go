//go:build unix

package cli

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDatabase_signal: a signal ends a verb that waits for a database which accepts connections and says nothing.
func TestDatabase_signal(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"postgres", "mysql"} {
		for _, line := range []string{"outbox status", "outbox migrate", "tx ls", "tx migrate", "tx ls --agent", "tx migrate --agent", "tx agent --name a", "id segment x", "id serve --kind segment --name x --listen 127.0.0.1:0"} {
			t.Run(scheme+" "+line, func(t *testing.T) {
				t.Parallel()
				silent, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer silent.Close()
				silent.(*net.TCPListener).SetDeadline(time.Now().Add(patience)) //nolint:errcheck // a socket that is open takes a deadline
				p := start(t, command(t, "memory:", append(strings.Fields(line), "--db", scheme+"://root@"+silent.Addr().String()+"/db")...))
				conn, err := silent.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				p.signal(syscall.SIGTERM)
				if code := p.wait(); code != 143 || !strings.Contains(p.errors(), "ended by signal 15") {
					t.Errorf("exit code %d: %s", code, p.errors())
				}
			})
		}
	}
}
