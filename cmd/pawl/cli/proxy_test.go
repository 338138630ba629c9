//go:build unix

package cli

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

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
func memberOf(t *testing.T, store, id string, at net.Listener) {
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
	m, err := group.New(client, "api").Join(t.Context(), group.Member{ID: id, Addr: at.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Leave(context.Background()) }) //nolint:errcheck // the end
}

// backend starts a server that is a member. The answer has the ID and the protocol.
func backend(t *testing.T, store, id string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, id, " ", r.Proto) }))
	t.Cleanup(s.Close)
	memberOf(t, store, id, s.Listener)
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
	load := asking(t, p.url, 4)
	count := load.count
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
	load.stop()
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
	memberOf(t, store, "a", s.Listener)
	p := proxying(t, store, "--drain", "1s", "--finish", "2s")
	slow := make(chan string, 1)
	go func() { text, _ := get(t, 200, p.url+"/slow"); slow <- text }()
	conn := websocket(t, p.url, nil)
	eventually(t, "two are under way", func() bool { return p.figure("pawl_proxy_in_flight", "") == 2 })
	if closes(t, p.url) {
		t.Error("before the end the connection is not kept")
	}
	p.signal(syscall.SIGTERM)
	eventually(t, "it is not ready", func() bool { return status(t, nil, p.admin+"/readyz") == 503 })
	if !closes(t, p.url) {
		t.Error("in the drain the client is not told to go elsewhere")
	}
	eventually(t, "the proxy listens no longer", func() bool { return !joined{addr: strings.TrimPrefix(p.url, "http://")}.serves() })
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
	complaint(t, p.errors(), "requests that have not ended within 2s are cut: 1")
}

// TestProxy_store_away: while requests come the store is killed and comes back empty. The proxy goes on with both members, no request fails, and the
// metric says when the members are those of an earlier time. The members are real processes too.
func TestProxy_store_away(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	store := "redis://" + server.Addr
	one, two := join(t, store, "api", freeAddr(t)), join(t, store, "api", freeAddr(t))
	p := proxying(t, store, "--policy", "round-robin", "--drain", "0", "--ttl", "1s")
	eventually(t, "it has both members", func() bool { return p.figure("pawl_proxy_members", "") == 2 })
	eventually(t, "both listen", func() bool { return one.serves() && two.serves() })
	load := asking(t, p.url, 2)
	bothServe := func(when string) {
		t.Helper()
		a, b := load.count(one.addr), load.count(two.addr)
		eventually(t, "both serve "+when, func() bool { return load.count(one.addr) >= a+10 && load.count(two.addr) >= b+10 })
		get(t, 200, p.admin+"/readyz")
		eventually(t, "it has both members "+when, func() bool { return p.figure("pawl_proxy_members", "") == 2 }) // a busy member may join again late
	}
	bothServe("before")
	if p.figure("pawl_proxy_members_stale", "") != 0 {
		t.Error("the members are stale before the store is away")
	}
	server.Kill()
	eventually(t, "the members are stale", func() bool { return p.figure("pawl_proxy_members_stale", "") == 1 })
	bothServe("while the store is away")
	if p.figure("pawl_proxy_members_stale", "") != 1 {
		t.Error("the members are not stale any more, although the store is away")
	}
	server.Restart()
	eventually(t, "the members are known", func() bool { return p.figure("pawl_proxy_members_stale", "") == 0 })
	bothServe("when the store is back")
	load.stop()
	if text := p.errors(); !strings.Contains(text, "going on with 2\n") || !strings.Contains(text, "the members are known again\n") {
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

// TestProxy_hashes_the_host: net/http keeps the header Host apart.
func TestProxy_hashes_the_host(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for _, id := range []string{"a", "b", "c", "d"} {
		backend(t, store, id)
	}
	p := proxying(t, store, "--policy", "source-hash", "--hash-header", "host", "--drain", "0")
	eventually(t, "it has all members", func() bool { return p.figure("pawl_proxy_members", "") == 4 })
	ids := make(map[string]bool)
	for i := range 30 {
		r, err := http.NewRequestWithContext(t.Context(), "GET", p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = fmt.Sprintf("tenant%d.org", i)
		ids[sent(t, r)] = true
	}
	if len(ids) != 4 {
		t.Errorf("30 hosts are at %v", ids)
	}
	p.ends(0)
}

// clients send requests one after another until they are stopped. A request that fails fails the test.
type clients struct {
	mu     sync.Mutex
	served map[string]int // requests, by the text of the answer
	stop   func()
}

func asking(t *testing.T, url string, n int) *clients {
	ctx, cancel := context.WithCancel(t.Context())
	c := &clients{served: make(map[string]int)}
	var all sync.WaitGroup
	c.stop = func() { cancel(); all.Wait() }
	t.Cleanup(c.stop)
	for range n {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				res, err := client.Get(url)
				if err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 {
					t.Errorf("%s, %v", res.Status, err)
				}
				c.mu.Lock()
				c.served[string(body)]++
				c.mu.Unlock()
			}
		})
	}
	return c
}

func (c *clients) count(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.served[text]
}

// sent returns the answer to a request.
func sent(t *testing.T, r *http.Request) string {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Errorf("%s: %q, %v", res.Status, text, err)
	}
	return string(text)
}

// closes reports whether a client is told that its connection ends.
func closes(t *testing.T, url string) bool {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "done" {
		t.Errorf("%q, %v", text, err)
	}
	return res.Close
}

// status is that of the answer. config is for TLS.
func status(t *testing.T, config *tls.Config, url string) int {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}
