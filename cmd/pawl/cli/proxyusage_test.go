//go:build unix

package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

func TestProxy_refuses_wrong_usage(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testservers.NewCA(t)
	cert := ca.Issue("x")
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, says := range map[string]string{
		"":                                     "--listen is missing: the form is: pawl proxy --listen HOST:PORT --group NAME [flags]",
		"--listen :0":                          "--group is missing",
		"--listen x --group g":                 `--listen is "x": HOST:PORT is allowed`,
		"--listen :0 --group g --policy best":  `--policy: invalid: policy is "best": one of ["round-robin"`,
		"--listen :0 --group g --admin x":      `--admin is "x": HOST:PORT is allowed`,
		"--listen :0 --group g --admin=":       "--admin is empty",
		"--listen :0 --group g --admin :70000": `--admin is ":70000": HOST:PORT is allowed, with a port from 0 to 65535`,
		"--listen :0 --group g --trusted ::ffff:10.0.0.0/104":                                                           `--trusted is "::ffff:10.0.0.0/104": a network`,
		"--listen :0 --group g --hash-header X":                                                                         "--hash-header is for --policy source-hash",
		"--listen :0 --group g --bound 2":                                                                               "--bound is for --policy source-hash",
		"--listen :0 --group g --policy source-hash --hash-header a:b":                                                  `--hash-header is "a:b": the name of a header is allowed`,
		"--listen :0 --group g --trusted 10.0.0.0/99":                                                                   `--trusted is "10.0.0.0/99": a network such as 10.0.0.0/8, or an address, is allowed`,
		"--listen :0 --group g --ttl 0":                                                                                 "--ttl is 0s: more than 0 is allowed",
		"--listen :0 --group g --upstream ftp":                                                                          `--upstream is "ftp": http, https and h2c are allowed`,
		"--listen :0 --group g --upstream-ca " + ca.File:                                                                "--upstream-ca, --upstream-name, --upstream-cert and --upstream-key are for --upstream https",
		"--listen :0 --group g --upstream-key " + cert.KeyFile:                                                          "--upstream-ca, --upstream-name, --upstream-cert and --upstream-key are for --upstream https",
		"--listen :0 --group g --upstream https --upstream-key " + cert.KeyFile:                                         "--upstream-cert and --upstream-key belong together: one of them is missing",
		"--listen :0 --group g --upstream https --upstream-cert /no --upstream-key " + cert.KeyFile:                     "--upstream-cert and --upstream-key: ",
		"--listen :0 --group g --tls-client-ca " + ca.File:                                                              "--tls-client-ca is for --tls-cert and --tls-key: both are missing",
		"--listen :0 --group g --tls-client-ca " + text + " --tls-key " + cert.KeyFile + " --tls-cert " + cert.CertFile: "--tls-client-ca: " + text + " has no certificate in PEM",
		"--listen :0 --group g --tls-cert= --tls-key=":                                                                  "--tls-cert is empty",
		"--listen :0 --group g --tls-client-ca=":                                                                        "--tls-client-ca is empty",
		"--listen :0 --group g --upstream https --upstream-cert= --upstream-key=":                                       "--upstream-cert is empty",
		"--listen :0 --group g --upstream https --upstream-ca=":                                                         "--upstream-ca is empty",
		"--listen :0 --group g --upstream https --upstream-ca " + text:                                                  "has no certificate in PEM",
		"--listen :0 --group g --upstream https --upstream-ca /no/such":                                                 "no such file",
		"--listen :0 --group g --tls-cert " + cert.CertFile:                                                             "--tls-cert and --tls-key belong together: one of them is missing",
		"--listen :0 --group g --tls-key " + text + " --tls-cert " + cert.CertFile:                                      "--tls-cert and --tls-key: ",
		"--listen :0 --group " + strings.Repeat("g", 300):                                                               "at most 256 are allowed",
		"--listen :0 --group g --policy source-hash --slow-start 1s":                                                    "--slow-start is for --policy power-of-two, peak-ewma and policies that begin with weighted-",
		"--listen :0 --group g --policy round-robin --slow-start 1s":                                                    "--slow-start is for --policy",
		"--listen :0 --group g --policy random --slow-start 1s":                                                         "--slow-start is for --policy",
		"--listen :0 --group g --policy least-connections --slow-start 1s":                                              "--slow-start is for --policy",
		"--listen :0 --group g x":                                                                                       "the number of arguments is 1",
	} {
		stdout, stderr := want(t, 64, "redis://127.0.0.1:1", append([]string{"proxy"}, strings.Fields(args)...)...)
		complaint(t, stderr, says)
		if stdout != "" {
			t.Errorf("%s: prints %s", args, stdout)
		}
	}
}

// TestProxy_refuses_at_start: the proxy ends where it cannot serve.
func TestProxy_refuses_at_start(t *testing.T) {
	t.Parallel()
	_, stderr := want(t, 69, "redis://127.0.0.1:1", "proxy", "--listen", "127.0.0.1:0", "--group", "g")
	complaint(t, stderr, "unavailable")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, flag := range []string{"--listen", "--admin"} {
		_, stderr = want(t, 69, sqliteStore(t), "proxy", "--listen", "127.0.0.1:0", "--group", "g", flag, taken.Addr().String())
		complaint(t, stderr, flag+": listen tcp")
	}
	_, stderr = want(t, 64, "postgres://postgres@"+testservers.SharedPostgres(t).Addr+"/postgres?mode=row", "proxy", "--listen", "127.0.0.1:0", "--group", "g")
	complaint(t, stderr, "unsupported")
}

// TestAccessLog_slow_reader: requests do not wait for the reader of the log, and each line is written or counted.
func TestAccessLog_slow_reader(t *testing.T) {
	t.Parallel()
	in, out := io.Pipe()
	l := newAccessLog(out)
	r := httptest.NewRequest("GET", "/", nil)
	const all = mostLogged + 5000
	for range all {
		l.write(&exchange{began: time.Now(), status: 200}, r, netip.Addr{})
	}
	dropped := int(l.dropped.Load())
	if dropped == 0 {
		t.Error("nothing was dropped")
	}
	close(l.enough)
	go func() {
		<-l.ended
		out.Close()
	}()
	n := 0
	for lines := bufio.NewScanner(in); lines.Scan(); n++ {
		if !json.Valid(lines.Bytes()) {
			t.Errorf("line %s", lines.Text())
		}
	}
	if n+dropped != all {
		t.Errorf("%d lines and %d dropped, of %d", n, dropped, all)
	}
}

// fullDisk takes nothing until the operator has made room.
type fullDisk struct {
	refused chan struct{}
	room    chan struct{}
	got     bytes.Buffer
}

func (d *fullDisk) Write(p []byte) (int, error) {
	select {
	case <-d.room:
		return d.got.Write(p)
	default:
	}
	d.refused <- struct{}{}
	return 0, errors.New("no space left on device")
}

// TestAccessLog_full_disk: lines that could not be written count, and later lines are written again.
func TestAccessLog_full_disk(t *testing.T) {
	t.Parallel()
	d := &fullDisk{refused: make(chan struct{}), room: make(chan struct{})}
	l := newAccessLog(d)
	r := httptest.NewRequest("GET", "/", nil)
	l.write(&exchange{began: time.Now(), status: 200}, r, netip.Addr{})
	<-d.refused
	close(d.room)
	for l.dropped.Load() == 0 {
		runtime.Gosched()
	}
	l.write(&exchange{began: time.Now(), status: 201}, r, netip.Addr{})
	l.end()
	if n := l.dropped.Load(); n != 1 || !strings.Contains(d.got.String(), `"status":201`) {
		t.Errorf("%d lines dropped, the log is %q", n, d.got.String())
	}
}
