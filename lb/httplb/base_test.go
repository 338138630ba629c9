package httplb_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/lb/httplb"
)

// pipes is a listener whose connections are pipes in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// vanishing is a connection whose other end can vanish: no byte arrives there any more, and none comes.
type vanishing struct {
	net.Conn
	vanished atomic.Bool
}

func (c *vanishing) Write(p []byte) (int, error) {
	if c.vanished.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// TestNodeThatVanished: a node loses its power, and another machine has its address then. A request to the dead connection of HTTP/2 ends
// within six minutes, and the next request opens a connection.
func TestNodeThatVanished(t *testing.T) {
	keys := httptest.NewTLSServer(nil)
	defer keys.Close()
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{
			TLSConfig: &tls.Config{Certificates: keys.TLS.Certificates, NextProtos: []string{"h2"}},
			Handler:   http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		}
		served := make(chan error)
		go func() { served <- server.ServeTLS(l, "", "") }()
		var conns []*vanishing
		base := httplb.NewBase()
		base.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // of a pipe
		base.DialContext = func(context.Context, string, string) (net.Conn, error) {
			mine, theirs := net.Pipe()
			conns = append(conns, &vanishing{Conn: mine})
			l.conns <- theirs
			return conns[len(conns)-1], nil
		}
		ask := func() (*http.Response, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://node/", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := base.RoundTrip(r)
			if err == nil {
				res.Body.Close()
			}
			return res, err
		}
		if res, err := ask(); err != nil || res.ProtoMajor != 2 {
			t.Fatalf("%v, %v", res, err)
		}
		conns[0].vanished.Store(true)
		began := time.Now()
		if res, err := ask(); err == nil || time.Since(began) > 6*time.Minute {
			t.Errorf("after %v: %v, %v", time.Since(began), res, err)
		}
		if _, err := ask(); err != nil || len(conns) != 2 {
			t.Errorf("%d connections, %v", len(conns), err)
		}
		base.CloseIdleConnections()
		server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}
