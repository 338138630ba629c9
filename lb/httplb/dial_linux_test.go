package httplb_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// vanished is an address that does not answer, as that of a machine without power: the queue of connections is full, and Linux drops more.
func vanished(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) }) //nolint:errcheck // nothing is lost
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	is, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", is.(*syscall.SockaddrInet4).Port)
	for range 100 {
		conn, err := net.DialTimeout("tcp", addr, 300*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { conn.Close() }) //nolint:errcheck // nothing is lost
	}
	t.Fatal("the queue has no end")
	return ""
}

// TestVanishedNode: a POST goes on from a node that vanished to another, also where a try has no more time than a connection would have. A
// system asks again after a second, so a connection has more time than that.
func TestVanishedNode(t *testing.T) {
	t.Parallel()
	gone, well := vanished(t), serve(t, echo)
	opts := func(base http.RoundTripper) httplb.Options {
		return httplb.Options{TryTimeout: 2 * time.Second, Base: base, Observe: func(try httplb.Try) {
			if try.Node.Addr == gone && try.Took < 1200*time.Millisecond {
				t.Errorf("the node was given up after %v", try.Took)
			}
		}}
	}
	newBalancer := func() *lb.Balancer {
		_, b := balance(t, lb.RoundRobin, nil, gone, well.addr())
		return b
	}
	bare, own := opts(nil), opts(httplb.NewBase())
	front := httptest.NewServer(newProxy(t, newBalancer(), &httplb.ProxyOptions{Options: bare}))
	t.Cleanup(front.Close)
	for name, row := range map[string]struct {
		url  string
		send http.RoundTripper
	}{
		"transport": {"http://books/", newTransport(t, newBalancer(), &bare)},
		"own base":  {"http://books/", newTransport(t, newBalancer(), &own)},
		"proxy":     {front.URL, http.DefaultTransport},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, err := row.send.RoundTrip(request(t, "POST", row.url, "text"))
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, res); got != "text" {
				t.Errorf("status %d, %q", res.StatusCode, got)
			}
		})
	}
}
