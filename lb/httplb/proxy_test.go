package httplb_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// front starts a server of HTTPS with HTTP/2 before the handler, and returns its client.
func front(t testing.TB, h http.Handler) (url string, client *http.Client) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, s.Client()
}

// ask returns the response with its whole body.
func ask(t testing.TB, client *http.Client, r *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return res, text(t, res)
}

// TestHTTP2: HTTP/2 on both sides, by TLS. The body goes both ways at the same time, and trailers arrive.
func TestHTTP2(t *testing.T) {
	back := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Sum")
		w.Header().Set("Proto", r.Proto)
		lines := bufio.NewScanner(r.Body)
		n := 0
		for ; lines.Scan(); n++ {
			fmt.Fprintf(w, "got %s\n", lines.Text())
			http.NewResponseController(w).Flush() //nolint:errcheck // the client sees it
		}
		w.Header().Set("Sum", fmt.Sprint(n))
	}))
	back.EnableHTTP2 = true
	back.StartTLS()
	t.Cleanup(back.Close)
	set, b := balance(t, lb.LeastConnections, nil, back.Listener.Addr().String())
	base, _ := back.Client().Transport.(*http.Transport)
	url, client := front(t, newProxy(t, b, &httplb.ProxyOptions{Scheme: "https", Options: httplb.Options{Base: base}}))
	in, out := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, in)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Te", "trailers")
	go fmt.Fprintln(out, "one")
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(res.Body)
	for _, line := range []string{"one", "two", "three"} {
		if line != "one" {
			fmt.Fprintln(out, line)
		}
		if got, err := answers.ReadString('\n'); err != nil || got != "got "+line+"\n" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if inFlight(set) != 1 {
		t.Errorf("%d requests are in flight", inFlight(set))
	}
	out.Close() //nolint:errcheck // a pipe
	text(t, res)
	if res.ProtoMajor != 2 || res.Header.Get("Proto") != "HTTP/2.0" || res.Trailer.Get("Sum") != "3" {
		t.Errorf("%s, %v, %v", res.Proto, res.Header, res.Trailer)
	}
	becomes(t, set, 0)
}

// becomes waits until so many requests are in flight.
func becomes(t testing.TB, set *lb.Set, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); inFlight(set) != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests are in flight, want %d", inFlight(set), n)
		}
	}
}

// switches is a node that echoes bytes after the handshake of a websocket.
func switches(w http.ResponseWriter, r *http.Request) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close() //nolint:errcheck // it has ended
	to := r.Header.Get("Upgrade")
	if r.URL.Path == "/wrong" {
		to = "other"
	}
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", to)
	io.Copy(conn, buffered) //nolint:errcheck // until the other side ends
}

// TestWebsocket: a connection is in flight until it ends, by the client or by an answer of another protocol.
func TestWebsocket(t *testing.T) {
	n := serve(t, switches)
	set, b := balance(t, lb.LeastConnections, nil, n.addr())
	url, client := front(t, newProxy(t, b, &httplb.ProxyOptions{Options: httplb.Options{TryTimeout: 5 * time.Second}}))
	open := func(path string) *http.Response {
		r := request(t, "GET", url+path, "")
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := open("/")
	conn, ok := res.Body.(io.ReadWriteCloser)
	if !ok || res.StatusCode != 101 {
		t.Fatal(res.Status)
	}
	for _, line := range []string{"one", "two"} {
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(line))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != line {
			t.Fatalf("%q, %v", got, err)
		}
		becomes(t, set, 1)
	}
	conn.Close() //nolint:errcheck // the proxy sees it
	becomes(t, set, 0)
	if res := open("/wrong"); res.StatusCode != http.StatusBadGateway {
		t.Errorf("after another protocol: %s", res.Status)
	} else {
		text(t, res)
	}
	becomes(t, set, 0)
}

// TestOwnResponses: where no node answers, the client learns why, and no address of a node.
func TestOwnResponses(t *testing.T) {
	hangs := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	refused := refuses(t)
	for _, row := range []struct {
		name, method, body string
		addrs              []string
		want               int
	}{
		{"no node", "GET", "", nil, 503},
		{"refused", "GET", "", []string{refused}, 502},
		{"late", "GET", "", []string{hangs.addr()}, 504},
		{"too large", "PUT", "1234567890", []string{hangs.addr()}, 413},
	} {
		_, b := balance(t, lb.RoundRobin, nil, row.addrs...)
		tries := time.Minute
		if row.name == "late" {
			tries = 50 * time.Millisecond
		}
		var reported error
		p := newProxy(t, b, &httplb.ProxyOptions{RetryAfter: 1500 * time.Millisecond, Options: httplb.Options{TryTimeout: tries},
			Report: func(_ *http.Request, err error) { reported = err }})
		url, client := front(t, http.MaxBytesHandler(p, 5))
		res, got := ask(t, client, request(t, row.method, url, row.body))
		if res.StatusCode != row.want || got != http.StatusText(row.want)+"\n" || reported == nil {
			t.Errorf("%s: %d %q, %v", row.name, res.StatusCode, got, reported)
		}
		if after := res.Header.Get("Retry-After"); (row.want == 503) != (after == "2") {
			t.Errorf("%s: Retry-After is %q", row.name, after)
		}
	}
}

// TestForwarded: a node sees the address of the client as far as trusted proxies vouch for that address.
func TestForwarded(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		h := r.Header
		fmt.Fprint(w, r.Host, " ", h["X-Forwarded-For"], h["X-Forwarded-Host"], h["X-Forwarded-Proto"], h["Forwarded"])
	})
	_, b := balance(t, lb.RoundRobin, nil, n.addr())
	for _, row := range []struct {
		trusted []netip.Prefix
		want    string
	}{
		{nil, "books [127.0.0.1] [books] [https] []"},
		{[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")},
			"books [192.0.2.1, 10.0.0.1, 127.0.0.1] [public] [http] []"},
	} {
		url, client := front(t, newProxy(t, b, &httplb.ProxyOptions{Trusted: row.trusted}))
		r := request(t, "GET", url, "")
		r.Host = "books"
		for name, value := range map[string]string{"X-Forwarded-For": "6.6.6.6, 192.0.2.1, 10.0.0.1", "X-Forwarded-Host": "public",
			"X-Forwarded-Proto": "http", "Forwarded": "for=6.6.6.6"} {
			r.Header.Set(name, value)
		}
		if _, got := ask(t, client, r); got != row.want {
			t.Errorf("the node saw %s, want %s", got, row.want)
		}
	}
}

// TestQuery: a node gets the query as the client has sent it, also where Go cannot parse that query.
func TestQuery(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.RequestURI()) })
	_, b := balance(t, lb.RoundRobin, nil, n.addr())
	url, client := front(t, newProxy(t, b, nil))
	for _, uri := range []string{"/", "/a?b=1&c", "/a?b;c=%zz&d=1", "/a%2Fb?x=a%20b+c"} {
		if _, got := ask(t, client, request(t, "GET", url+uri, "")); got != uri {
			t.Errorf("the node saw %s, want %s", got, uri)
		}
	}
}

// TestSticky: with SourceHash each client has its node. A key of the user's own overrides the address.
func TestSticky(t *testing.T) {
	var addrs []string
	for range 4 {
		var n *node
		n = serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, n.addr()) })
		addrs = append(addrs, n.addr())
	}
	_, b := balance(t, lb.SourceHash, nil, addrs...)
	local := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	for header, opts := range map[string]*httplb.ProxyOptions{
		"X-Forwarded-For": {Trusted: local},
		"User":            {Options: httplb.Options{Key: func(r *http.Request) string { return r.Header.Get("User") }}},
	} {
		url, client := front(t, newProxy(t, b, opts))
		at, nodes := make(map[string]string), make(map[string]bool)
		for i := range 90 {
			user := fmt.Sprintf("192.0.2.%d", i%30)
			r := request(t, "GET", url, "")
			r.Header.Set(header, user)
			_, got := ask(t, client, r)
			if was, ok := at[user]; ok && was != got {
				t.Errorf("%s: %s was at %s, and is at %s", header, user, was, got)
			}
			at[user], nodes[got] = got, true
		}
		if len(nodes) != 4 {
			t.Errorf("%s: 30 users are at %d nodes", header, len(nodes))
		}
	}
}

// TestKeptBody: a request with a small body is repeated when its node dies after the body. A larger body is not kept.
func TestKeptBody(t *testing.T) {
	cut := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the node fails in any case
		panic(http.ErrAbortHandler)
	})
	well := serve(t, echo)
	for _, row := range []struct {
		method string
		size   int
		want   int
	}{{"PUT", 1000, 200}, {"PUT", 1001, 502}, {"POST", 10, 502}} {
		_, b := balance(t, lb.RoundRobin, &lb.SetOptions{EjectAfter: -1}, cut.addr(), well.addr())
		url, client := front(t, newProxy(t, b, &httplb.ProxyOptions{MaxRetryBody: 1000}))
		body := strings.Repeat("x", row.size)
		if res, got := ask(t, client, request(t, row.method, url, body)); res.StatusCode != row.want || row.want == 200 && got != body {
			t.Errorf("%+v: %d, %d bytes", row, res.StatusCode, len(got))
		}
	}
}

// TestClientLeaves: a client that leaves in the middle of either body ends the request at the node, and is no failure of the node.
func TestClientLeaves(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			fmt.Fprint(w, "begin")
			http.NewResponseController(w).Flush() //nolint:errcheck // the client sees it
		} else {
			io.ReadFull(r.Body, make([]byte, 4)) //nolint:errcheck // the client ends it
		}
		began <- struct{}{}
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the client ends it
		<-r.Context().Done()
		ended <- struct{}{}
	})
	set, b := balance(t, lb.PeakEWMA, &lb.SetOptions{EjectAfter: 1, Panic: -1}, n.addr())
	p := newProxy(t, b, nil)
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	for _, head := range []string{"GET / HTTP/1.1\r\nHost: books\r\n\r\n", "POST / HTTP/1.1\r\nHost: books\r\nContent-Length: 9\r\n\r\ntext"} {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		<-began
		becomes(t, set, 1)
		conn.Close() //nolint:errcheck // the proxy sees it
		<-ended
		becomes(t, set, 0)
		if is := set.Nodes(); is[0].Ejected {
			t.Errorf("%.4s: the node was ejected", head)
		}
	}
}

// TestNodeDies: a client learns that the body of its response was cut.
func TestNodeDies(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Write(bytes.Repeat([]byte("x"), 100_000)) //nolint:errcheck // the client sees it
		panic(http.ErrAbortHandler)
	})
	set, b := balance(t, lb.LeastConnections, &lb.SetOptions{EjectAfter: 1, Panic: -1}, n.addr())
	url, client := front(t, newProxy(t, b, nil))
	res, err := client.Do(request(t, "GET", url, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	if all, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("%d bytes of a body that was cut came without an error", len(all))
	}
	becomes(t, set, 0)
	if is := set.Nodes(); !is[0].Ejected {
		t.Error("a node that cuts bodies is not ejected")
	}
}

// TestServerName: certificates of nodes are checked against the name that Base has.
func TestServerName(t *testing.T) {
	back := httptest.NewTLSServer(http.HandlerFunc(echo))
	t.Cleanup(back.Close)
	own, _ := back.Client().Transport.(*http.Transport)
	for name, well := range map[string]bool{"example.com": true, "other.org": false} {
		_, b := balance(t, lb.RoundRobin, nil, back.Listener.Addr().String())
		base := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: own.TLSClientConfig.RootCAs, ServerName: name}}
		res, err := newTransport(t, b, &httplb.Options{Base: base}).RoundTrip(request(t, "GET", "https://books/", ""))
		if (err == nil) != well {
			t.Errorf("%s: %v", name, err)
		}
		if res != nil {
			res.Body.Close() //nolint:errcheck // nothing is left
		}
		var wrong *tls.CertificateVerificationError
		if !well && (!errors.As(err, &wrong) || errors.Is(err, context.Canceled)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
