package httplb_test

import (
	"net"
	"net/http"
	"strings"
	"testing"
)

// killable is a server that ends with all its connections, and comes back at the same address.
type killable struct {
	addr   string
	server *http.Server
}

func newKillable(t *testing.T) *killable {
	k := &killable{addr: "127.0.0.1:0"}
	k.start(t)
	t.Cleanup(k.kill)
	return k
}

func (k *killable) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", k.addr)
	if err != nil {
		t.Fatal(err)
	}
	answer := []byte(strings.Repeat("text ", 100))
	k.addr = l.Addr().String()
	k.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(answer) //nolint:errcheck // the client sees it
	})}
	go k.server.Serve(l) //nolint:errcheck // it was closed
}

func (k *killable) kill() { k.server.Close() } //nolint:errcheck // all connections are gone
