//go:build unix

package cli

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
)

// TestTx_agent_bounds_its_complaints: connections that are no clients make few lines of pawl on standard error.
func TestTx_agent_bounds_its_complaints(t *testing.T) {
	t.Parallel()
	ca, file := testservers.NewCA(t), "sqlite:"+filepath.Join(t.TempDir(), "log.db")
	want(t, 0, "memory:", "tx", "migrate", "--agent", "--db", file)
	mine := ca.Issue("witness")
	p := start(t, command(t, "memory:", "tx", "agent", "--db", file, "--name", "witness", "--listen", "127.0.0.1:0", "--peer", "b=https://127.0.0.1:1/",
		"--peer", "c=https://127.0.0.1:1/", "--tls-cert", mine.CertFile, "--tls-key", mine.KeyFile, "--tls-ca", ca.File))
	at := p.line()
	for range 50 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(at, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("x")) //nolint:errcheck // the agent may have hung up
		conn.Close()
	}
	transport := &http.Transport{TLSClientConfig: ca.Client(ca.Issue("program")), DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport, Timeout: patience}).Get(at + "/healthz") // behind all others
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 || answer.StatusCode != 200 {
		t.Errorf("exit code %d, status %s", code, answer.Status)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(p.errors(), "\n"), "\n")
	for _, line := range lines {
		if !strings.HasPrefix(line, "pawl: ") {
			t.Errorf("line %q", line)
		}
	}
	if len(lines) > mostLogs+1 || !strings.Contains(p.errors(), "TLS handshake error") || !strings.HasSuffix(p.errors(), " further errors\n") {
		t.Errorf("standard error: %s", p.errors())
	}
}
