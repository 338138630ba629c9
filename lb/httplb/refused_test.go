package httplb_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// priorKnowledge starts a node of HTTP/2 without TLS, and returns a base that reaches the node.
func priorKnowledge(t testing.TB, maxHeader int, h http.HandlerFunc) (addr string, base *http.Transport) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.MaxHeaderBytes, s.Config.Protocols = maxHeader, new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	base = httplb.NewBase()
	base.Protocols = s.Config.Protocols
	return s.Listener.Addr().String(), base
}

// sends writes these bytes to a proxy, and returns the response with its body.
func sends(t testing.TB, p http.Handler, text string) (status int, body string) {
	t.Helper()
	s := httptest.NewServer(p)
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the response was read
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	if res.StatusCode == http.StatusSwitchingProtocols {
		return res.StatusCode, ""
	}
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(all)
}

// TestRefusedHere: a request that net/http does not send by HTTP/2 is no failure of the nodes, and spends no repeat.
func TestRefusedHere(t *testing.T) {
	addr, base := priorKnowledge(t, 8<<10, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto, r.Header["Upgrade"], r.Header["Http2-Settings"])
	})
	large := "X-Large: " + strings.Repeat("x", 100_000) + "\r\n"
	for _, row := range []struct {
		name, line, header string
		status             int
		body               string
	}{
		{"plain", "GET / HTTP/1.1", "", 200, "HTTP/2.0[] []"},
		{"other protocol", "GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: foo\r\n", 200, "HTTP/2.0[] []"},
		{"h2c", "GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", 200, "HTTP/2.0[] []"},
		{"websocket", "GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: WebSocket\r\n", 501, "Not Implemented\n"},
		{"no path", "GET a:b HTTP/1.1", "", 400, "Bad Request\n"},
		{"large header", "PUT / HTTP/1.1", large, 431, "Request Header Fields Too Large\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			set, b := balance(t, lb.RoundRobin, &lb.SetOptions{EjectAfter: 1, Panic: -1}, addr, addr)
			tries := 0
			p := newProxy(t, b, &httplb.ProxyOptions{Options: httplb.Options{Base: base, Observe: func(httplb.Try) { tries++ }}})
			for range 2 { // the node tells its largest header in its first answer
				sends(t, p, "GET / HTTP/1.1\r\nHost: books\r\n\r\n")
			}
			before := tries
			status, body := sends(t, p, row.line+"\r\nHost: books\r\n"+row.header+"\r\n")
			if status != row.status || body != row.body {
				t.Errorf("%d %q, want %d %q", status, body, row.status, row.body)
			}
			if is := set.Nodes(); tries > before+1 || is[0].Ejected || is[1].Ejected {
				t.Errorf("%d tries, %+v", tries-before, is)
			}
		})
	}
}

// TestUpgrades: websockets alone may switch protocols, because a client that speaks HTTP/2 to a node goes past the proxy.
func TestUpgrades(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			switches(w, r)
			return
		}
		fmt.Fprint(w, r.Header["Connection"], r.Header["Http2-Settings"])
	})
	_, b := balance(t, lb.RoundRobin, nil, n.addr())
	p := newProxy(t, b, nil)
	for upgrade, want := range map[string]int{"h2c": 200, "foo": 200, "websocket, h2c": 200, "\xff": 200, "websocket": 101, "WebSocket": 101} {
		status, body := sends(t, p, "GET / HTTP/1.1\r\nHost: books\r\nConnection: Upgrade\r\nUpgrade: "+upgrade+"\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
		if status != want || want == 200 && body != "[] []" {
			t.Errorf("%s: %d %q, want %d", upgrade, status, body, want)
		}
	}
}

// TestOddStatus: a status that no server can pass on is a failure of the node, whose request ends.
func TestOddStatus(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()                                                           //nolint:errcheck // it has ended
		io.WriteString(conn, "HTTP/1.1 099 odd\r\nContent-Length: 100\r\n\r\nbegin") //nolint:errcheck // the proxy sees it
	})
	set, b := balance(t, lb.LeastConnections, &lb.SetOptions{EjectAfter: 1, Panic: -1}, n.addr())
	if status, body := sends(t, newProxy(t, b, nil), "GET / HTTP/1.1\r\nHost: books\r\n\r\n"); status != 502 {
		t.Errorf("%d %q", status, body)
	}
	if is := set.Nodes(); inFlight(set) != 0 || !is[0].Ejected {
		t.Errorf("after an odd status: %+v", is)
	}
}

// TestRequestTrailers: a node gets the trailers that the client has announced, but none that only a proxy may set.
func TestRequestTrailers(t *testing.T) {
	see := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, string(body), r.Trailer, err)
	}
	http1 := serve(t, see)
	addr, http2 := priorKnowledge(t, 0, see)
	for _, row := range []struct {
		addr string
		base http.RoundTripper
	}{{http1.addr(), nil}, {addr, http2}} {
		_, b := balance(t, lb.RoundRobin, nil, row.addr)
		p := newProxy(t, b, &httplb.ProxyOptions{Options: httplb.Options{Base: row.base}})
		status, body := sends(t, p, "POST / HTTP/1.1\r\nHost: books\r\nTransfer-Encoding: chunked\r\nTrailer: Sum, X-Forwarded-For\r\n\r\n"+
			"4\r\ntext\r\n0\r\nSum: 4\r\nX-Forwarded-For: 6.6.6.6\r\nOther: 1\r\n\r\n")
		if want := "textmap[Sum:[4]] <nil>"; status != 200 || body != want {
			t.Errorf("%d %q, want %q", status, body, want)
		}
		// A GET rarely has a body, so net/http would look for a body beside the header that it sends. But the end of the body
		// writes the trailers that the header announces.
		front, known := httptest.NewUnstartedServer(p), new(http.Protocols)
		known.SetUnencryptedHTTP2(true)
		front.Config.Protocols = known
		front.Start()
		client := http.Client{Transport: &http.Transport{Protocols: known}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, io.NopCloser(strings.NewReader("")))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength, req.Trailer = -1, http.Header{"Sum": {"0"}}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(res.Body)
		res.Body.Close() //nolint:errcheck // it was read
		client.CloseIdleConnections()
		front.Close()
		if want := "map[Sum:[0]] <nil>"; err != nil || string(all) != want {
			t.Errorf("%q, %v, want %q", all, err, want)
		}
	}
}
