//go:build unix

package cli

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// frozen is a connection whose owner reads nothing from it.
type frozen struct {
	net.Conn
	until context.Context
}

func (f *frozen) Read([]byte) (int, error) {
	<-f.until.Done()
	return 0, f.until.Err()
}

// TestProxy_client_stalls: a client that sends no more of its body gets 408. A client that reads nothing is cut, and neither its request nor its
// connection of HTTP/2 stays.
func TestProxy_client_stalls(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Method == "GET" && r.Context().Err() == nil {
			w.Write(make([]byte, 1<<20)) //nolint:errcheck // the loop sees it
		}
	}))
	t.Cleanup(s.Close)
	memberOf(t, store, "a", s.Listener)
	p := proxying(t, store, "--client-timeout", "1s", "--drain", "0")
	eventually(t, "it has the member", func() bool { return p.figure("pawl_proxy_members", "") == 1 })
	to := strings.TrimPrefix(p.url, "http://")
	conn, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: books\r\nContent-Length: 9\r\n\r\ntext")
	if text, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(text, " 408 ") {
		t.Errorf("half a body: %q, %v", text, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx2 context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx2, network, addr)
		if err != nil {
			return nil, err
		}
		return &frozen{conn, ctx}, conn.(*net.TCPConn).SetReadBuffer(4096)
	}}
	const n = 4
	ended := make(chan struct{}, n)
	for range n {
		r, err := http.NewRequestWithContext(ctx, "GET", p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if res, err := transport.RoundTrip(r); err == nil {
				res.Body.Close()
			}
			ended <- struct{}{}
		}()
	}
	eventually(t, "the requests have begun", func() bool { return p.figure("pawl_proxy_tries_total", `,member="a",result="succeeded"`) >= n })
	eventually(t, "the requests have ended", func() bool { return p.figure("pawl_proxy_in_flight", "") == 0 })
	cancel()
	for range n {
		<-ended
	}
	p.ends(0)
}
