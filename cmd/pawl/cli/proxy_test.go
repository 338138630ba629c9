//go:build unix

package cli

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/internal/testservers"
)

// proxied is a proxy that runs.
type proxied struct {
	*process
	url, admin string
}

// proxying starts a proxy before the group api.
func proxying(t *testing.T, store string, args ...string) proxied {
	t.Helper()
	p := start(t, command(t, store, append([]string{"proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--group", "api"}, args...)...))
	return proxied{p, p.line(), p.line()}
}

// figure reads a metric of the proxy. labels are those after the group.
func (p proxied) figure(name, labels string) int {
	p.t.Helper()
	text, _ := get(p.t, 200, p.admin+"/metrics")
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name+`{group="api"`+labels+`}`) + ` (\d+)$`).FindStringSubmatch(text)
	if found == nil {
		p.t.Fatalf("no %s%s in %s", name, labels, text)
	}
	return atoi(p.t, found[1])
}

// ends fails the test unless the proxy ends with this code after TERM.
func (p proxied) ends(code int) {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if is := p.wait(); is != code {
		p.t.Errorf("exit code %d, want %d: %s", is, code, p.errors())
	}
}

// memberOf makes a server of this process a member of the group api.
func memberOf(t *testing.T, store, id string, server *httptest.Server) *group.Membership {
	t.Helper()
	eng, err := open.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() }) //nolint:errcheck // the end
	client, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: lossTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // the end
	m, err := group.New(client, "api").Join(t.Context(), group.Member{ID: id, Addr: server.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Leave(context.Background()) }) //nolint:errcheck // the end
	return m
}

// backend starts a server that is a member. Its answer has its ID and the protocol.
func backend(t *testing.T, store, id string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, id, " ", r.Proto) }))
	t.Cleanup(s.Close)
	memberOf(t, store, id, s)
	return s
}

// TestProxy_members_come_and_go: real processes join, are killed and end while requests come. No request fails that may be repeated.
func TestProxy_members_come_and_go(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	p := proxying(t, store, "--policy", "round-robin", "--retry-after", "3s")
	_, h := get(t, 503, p.url)
	if h.Get("Retry-After") != "3" || p.figure("pawl_proxy_unserved_total", "") != 1 {
		t.Errorf("without a member: %v", h)
	}
	get(t, 503, p.admin+"/readyz")
	one, two := join(t, store, "api", freeAddr(t)), join(t, store, "api", freeAddr(t), "--drain", "200ms")
	ready(t, p.admin)
	asks, asked := context.WithCancel(t.Context())
	defer asked()
	var load sync.WaitGroup
	var mu sync.Mutex
	served := make(map[string]int)
	for range 4 {
		load.Go(func() {
			client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
			defer client.CloseIdleConnections()
			for asks.Err() == nil {
				res, err := client.Get(p.url)
				if err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 {
					t.Errorf("%s, %v", res.Status, err)
				}
				mu.Lock()
				served[string(body)]++
				mu.Unlock()
			}
		})
	}
	count := func(addr string) int {
		mu.Lock()
		defer mu.Unlock()
		return served[addr]
	}
	eventually(t, "both serve", func() bool { return count(one.addr) > 10 && count(two.addr) > 10 })
	one.signal(syscall.SIGKILL)
	eventually(t, "the dead is gone", func() bool { return p.figure("pawl_proxy_members", "") == 1 })
	after := count(one.addr)
	three := join(t, store, "api", freeAddr(t))
	eventually(t, "the new serves", func() bool { return count(three.addr) > 10 })
	two.signal(syscall.SIGTERM)
	if code := two.wait(); code != 9 {
		t.Errorf("exit code %d", code)
	}
	before := count(three.addr)
	eventually(t, "the last serves", func() bool { return count(three.addr) > before+10 })
	asked()
	load.Wait()
	if is := count(one.addr); is != after {
		t.Errorf("%d requests went to a member that was dead", is-after)
	}
	if n := p.figure("pawl_proxy_in_flight", ""); n != 0 {
		t.Errorf("%d requests are in flight", n)
	}
	if n := p.figure("pawl_proxy_tries_total", fmt.Sprintf(`,member="%s",result="succeeded"`, three.addr)); n < 20 {
		t.Errorf("%d tries", n)
	}
	p.ends(0)
}

// TestProxy_ends_gracefully: after TERM the proxy is not ready, but serves. Requests under way are finished, and then a websocket is cut.
func TestProxy_ends_gracefully(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			echoes(w)
			return
		}
		if r.URL.Path == "/slow" {
			<-release
		}
		fmt.Fprint(w, "done")
	}))
	t.Cleanup(s.Close)
	memberOf(t, store, "a", s)
	p := proxying(t, store, "--drain", "1s", "--finish", "2s")
	slow := make(chan string, 1)
	go func() { text, _ := get(t, 200, p.url+"/slow"); slow <- text }()
	conn := websocket(t, p.url, nil)
	eventually(t, "two are under way", func() bool { return p.figure("pawl_proxy_in_flight", "") == 2 })
	closes := func() bool { // whether the client is told that the connection ends
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if text, err := io.ReadAll(res.Body); err != nil || string(text) != "done" {
			t.Errorf("%q, %v", text, err)
		}
		return res.Close
	}
	if closes() {
		t.Error("before the end the connection is not kept")
	}
	p.signal(syscall.SIGTERM)
	eventually(t, "it is not ready", func() bool {
		res, err := http.Get(p.admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode == 503
	})
	if !closes() {
		t.Error("in the drain the client is not told to go elsewhere")
	}
	eventually(t, "the proxy listens no longer", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(release)
	if text := <-slow; text != "done" {
		t.Errorf("the request under way got %q", text)
	}
	echo(t, conn, "still here")
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the websocket was not cut")
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	complaint(t, p.errors(), "1 requests are cut, because they have not ended within 2s")
}

// echoes is the server's side of a connection that is upgraded.
func echoes(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	io.Copy(conn, buffered) //nolint:errcheck // until the other side ends
}

// websocket opens a connection through a proxy, with TLS if config is not nil.
func websocket(t *testing.T, url string, config *tls.Config) io.ReadWriteCloser {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	conn, ok := res.Body.(io.ReadWriteCloser)
	if !ok || res.StatusCode != 101 {
		t.Fatalf("%s", res.Status)
	}
	t.Cleanup(func() { conn.Close() })
	echo(t, conn, "hello")
	return conn
}

func echo(t *testing.T, conn io.ReadWriter, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("%q came back, %v", got, err)
	}
}

// TestProxy_TLS: TLS with HTTP/2 and HTTP/1.1 on both sides, websockets too. A renewed certificate is used without a restart.
func TestProxy_TLS(t *testing.T) {
	t.Parallel()
	store, ca := sqliteStore(t), testservers.NewCA(t)
	cert := ca.Issue("proxy")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			echoes(w)
			return
		}
		fmt.Fprint(w, r.Proto, " ", r.Header.Get("X-Forwarded-Proto"))
	}))
	s.EnableHTTP2, s.TLS = true, &tls.Config{Certificates: ca.Client(ca.Issue("member")).Certificates}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of a proxy that does not trust this server
	s.StartTLS()
	t.Cleanup(s.Close)
	memberOf(t, store, "a", s)
	flags := []string{"--tls-cert", cert.CertFile, "--tls-key", cert.KeyFile, "--upstream", "https", "--drain", "0"}
	p := proxying(t, store, append(flags, "--upstream-ca", ca.File)...)
	serial := func(h2 bool) string {
		transport := &http.Transport{TLSClientConfig: ca.Client(), ForceAttemptHTTP2: h2}
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if text, err := io.ReadAll(res.Body); err != nil || string(text) != "HTTP/2.0 https" || res.ProtoMajor == 2 != h2 {
			t.Errorf("%s: %q, %v", res.Proto, text, err)
		}
		return res.TLS.PeerCertificates[0].SerialNumber.String()
	}
	first := serial(true)
	serial(false)
	websocket(t, p.url, ca.Client()).Close()
	if err := os.WriteFile(cert.CertFile, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says so", func() bool {
		return serial(true) == first && strings.Contains(p.errors(), "going on with the last certificate")
	})
	p.ends(0)

	ca.Issue("proxy")
	p = proxying(t, store, append(flags, "--upstream-ca", ca.File)...)
	first = serial(true)
	ca.Issue("proxy")
	eventually(t, "the new certificate is used", func() bool { return serial(true) != first })
	p.ends(0)

	// A member that another authority has signed gets nothing.
	p = proxying(t, store, append(flags, "--upstream-ca", testservers.NewCA(t).File)...)
	transport := &http.Transport{TLSClientConfig: ca.Client()}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 502 || !strings.Contains(p.errors(), "unknown authority") {
		t.Errorf("%s: %s", res.Status, p.errors())
	}
	p.ends(0)
}

// TestProxy_h2c: HTTP/2 without TLS on both sides.
func TestProxy_h2c(t *testing.T) {
	t.Parallel()
	store, protocols := sqliteStore(t), new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }))
	s.Config.Protocols = protocols
	s.Start()
	t.Cleanup(s.Close)
	memberOf(t, store, "a", s)
	p := proxying(t, store, "--upstream", "h2c", "--drain", "0")
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "HTTP/2.0" || res.ProtoMajor != 2 {
		t.Errorf("%s: %q, %v", res.Proto, text, err)
	}
	if text, _ := get(t, 200, p.url); text != "HTTP/2.0" { // a client of HTTP/1.1
		t.Errorf("got %q", text)
	}
	p.ends(0)
}

// TestProxy_store_away: the proxy goes on with the last members, and its metric says so.
func TestProxy_store_away(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	store := "redis://" + server.Addr
	backend(t, store, "a")
	p := proxying(t, store, "--drain", "0")
	ready(t, p.admin)
	get(t, 200, p.url)
	server.Kill()
	eventually(t, "the members are stale", func() bool { return p.figure("pawl_proxy_members_stale", "") == 1 })
	get(t, 200, p.url)
	get(t, 200, p.admin+"/readyz")
	server.Restart()
	eventually(t, "the members are known", func() bool { return p.figure("pawl_proxy_members_stale", "") == 0 })
	get(t, 200, p.url)
	if text := p.errors(); !strings.Contains(text, "going on with 1\n") || !strings.Contains(text, "the members are known again\n") {
		t.Errorf("standard error: %s", text)
	}
	server.Kill()
	p.ends(0)
}

// TestProxy_hash: a key has its member, by the header, by the client that a trusted proxy names, or by the peer. The access log
// tells the members, and no query.
func TestProxy_hash(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for _, id := range []string{"a", "b", "c", "d"} {
		backend(t, store, id)
	}
	p := proxying(t, store, "--policy", "source-hash", "--hash-header", "X-User", "--trusted", "127.0.0.0/8,10.1.2.3", "--access-log", "--drain", "0")
	eventually(t, "it has all members", func() bool { return p.figure("pawl_proxy_members", "") == 4 })
	n := 0
	for _, header := range []string{"X-User", "X-Forwarded-For"} {
		at, ids := make(map[string]string), make(map[string]bool)
		for i := range 60 {
			key := fmt.Sprintf("192.0.2.%d", i%30)
			text, _ := get(t, 200, p.url+"/path?password=secret", header, key)
			if was, ok := at[key]; ok && was != text {
				t.Errorf("%s: %s was at %s, and is at %s", header, key, was, text)
			}
			at[key], ids[text] = text, true
			n++
		}
		if len(ids) != 4 {
			t.Errorf("%s: 30 keys are at %v", header, ids)
		}
	}
	for i := range n {
		line := p.line()
		var is logged
		if err := json.Unmarshal([]byte(line), &is); err != nil || strings.Contains(line, "secret") {
			t.Fatalf("%v in %s", err, line)
		}
		client := "127.0.0.1"
		if i >= 60 {
			client = fmt.Sprintf("192.0.2.%d", i%30)
		}
		if is.Client != client || is.Method != "GET" || is.Path != "/path" || is.Status != 200 || is.Bytes != 10 || is.Tries != 1 || !strings.Contains("abcd", is.Member) {
			t.Errorf("line %s", line)
		}
	}
	// A request for another proxy is refused.
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n")
	if text, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(text, " 405 ") {
		t.Errorf("CONNECT: %q, %v", text, err)
	}
	p.ends(0)
}

func TestProxy_refuses_wrong_usage(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testservers.NewCA(t)
	cert := ca.Issue("x")
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, says := range map[string]string{
		"":                                      "--listen is missing: the form is: pawl proxy --listen HOST:PORT --group NAME [flags]",
		"--listen :0":                           "--group is missing",
		"--listen x --group g":                  `--listen is "x": HOST:PORT is allowed`,
		"--listen :0 --group g --policy best":   `--policy: invalid: policy is "best": one of ["round-robin"`,
		"--listen :0 --group g --admin x":       `--admin is "x": HOST:PORT is allowed`,
		"--listen :0 --group g --hash-header X": "--hash-header is for --policy source-hash",
		"--listen :0 --group g --bound 2":       "--bound is for --policy source-hash",
		"--listen :0 --group g --policy source-hash --bound 0.5":                   "Options.Bound is 0.5: 0 (no limit) and 1 to 100 are allowed",
		"--listen :0 --group g --policy source-hash --hash-header a:b":             `--hash-header is "a:b": the name of a header is allowed`,
		"--listen :0 --group g --trusted 10.0.0.0/99":                              `--trusted is "10.0.0.0/99": a network such as 10.0.0.0/8, or an address, is allowed`,
		"--listen :0 --group g --tries 0":                                          "--tries is 0: more than 0 is allowed",
		"--listen :0 --group g --tries 101":                                        "Options.Tries is 101: 1 to 100 are allowed",
		"--listen :0 --group g --try-timeout 2h":                                   "1ms to 1h",
		"--listen :0 --group g --retry-after 1ms":                                  "1s to 1h are allowed",
		"--listen :0 --group g --eject-after=-2":                                   "1 to 1000000 and -1 (never) are allowed",
		"--listen :0 --group g --slow-start 2h":                                    "0 (none) to 1h are allowed",
		"--listen :0 --group g --drain=-1s":                                        "--drain is -1s: 0 to 1h are allowed",
		"--listen :0 --group g --finish 2h":                                        "--finish is 2h0m0s: 0 to 1h are allowed",
		"--listen :0 --group g --upstream ftp":                                     `--upstream is "ftp": http, https and h2c are allowed`,
		"--listen :0 --group g --upstream-ca " + ca.File:                           "--upstream-ca and --upstream-name are for --upstream https",
		"--listen :0 --group g --upstream https --upstream-ca " + text:             "has no certificate in PEM",
		"--listen :0 --group g --upstream https --upstream-ca /no/such":            "no such file",
		"--listen :0 --group g --tls-cert " + cert.CertFile:                        "--tls-cert and --tls-key belong together: one of them is missing",
		"--listen :0 --group g --tls-key " + text + " --tls-cert " + cert.CertFile: "--tls-cert and --tls-key: ",
		"--listen :0 --group " + strings.Repeat("g", 300):                          "at most 256 are allowed",
		"--listen :0 --group g x":                                                  "the number of arguments is 1",
	} {
		stdout, stderr := want(t, 64, "redis://127.0.0.1:1", append([]string{"proxy"}, strings.Fields(args)...)...)
		complaint(t, stderr, says)
		if stdout != "" {
			t.Errorf("%s: prints %s", args, stdout)
		}
	}
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
