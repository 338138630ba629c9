package httplb_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// node is an HTTP server.
type node struct {
	*httptest.Server
	hits atomic.Int64
}

func (n *node) addr() string { return n.Listener.Addr().String() }

// serve starts a node. Each node echoes what follows from the handler.
func serve(t testing.TB, h http.HandlerFunc) *node {
	t.Helper()
	n := &node{}
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.hits.Add(1)
		h(w, r)
	}))
	t.Cleanup(n.Close)
	return n
}

// echo answers with the body, after the whole body, because a server of HTTP/1.1 drops the rest when its answer begins.
func echo(w http.ResponseWriter, r *http.Request) {
	if all, err := io.ReadAll(r.Body); err == nil {
		w.Write(all) //nolint:errcheck // the test sees what is missing
	}
}

// refuses is an address at which nothing listens.
func refuses(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it is free again
	return l.Addr().String()
}

// balance returns a balancer whose first turn is the first address. The IDs are a, b and so on.
func balance(t testing.TB, p lb.Policy, opts *lb.SetOptions, addrs ...string) (*lb.Set, *lb.Balancer) {
	t.Helper()
	var all []lb.Node
	for i, a := range addrs {
		all = append(all, lb.Node{ID: string(rune('a' + i)), Addr: a})
	}
	set, err := lb.NewSet(opts, all...)
	if err != nil {
		t.Fatal(err)
	}
	b, err := lb.New(set, p, &lb.Options{Rand: func() uint64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	return set, b
}

func newTransport(t testing.TB, b *lb.Balancer, opts *httplb.Options) *httplb.Transport {
	t.Helper()
	transport, err := httplb.NewTransport(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

func newProxy(t testing.TB, b *lb.Balancer, opts *httplb.ProxyOptions) *httplb.Proxy {
	t.Helper()
	p, err := httplb.NewProxy(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.CloseIdleConnections)
	return p
}

func request(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, content)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// text reads the whole body.
func text(t testing.TB, res *http.Response) string {
	t.Helper()
	defer res.Body.Close() //nolint:errcheck // it was read
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

func inFlight(set *lb.Set) (n int) {
	for _, is := range set.Nodes() {
		n += is.InFlight
	}
	return n
}
