package threephase

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/enginetest/proxy"
)

// TestClientOfTLS: a peer that takes connections and says nothing holds no connection of an agent for longer than the time-out, also with TLS.
func TestClientOfTLS(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // the test is over
	o, err := (&Options{TLS: &tls.Config{}, Timeout: 200 * time.Millisecond}).complete()
	if err != nil {
		t.Fatal(err)
	}
	response, err := o.Client.Get("https://" + silent.Addr().String()) //nolint:noctx // the client's own bound counts
	var late net.Error
	if err == nil {
		response.Body.Close() //nolint:errcheck // nothing is read
	}
	if !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("%v", err)
	}
	if _, err := (&Options{TLS: &tls.Config{}, Client: http.DefaultClient}).complete(); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// TestClientOfSharedTLS: an agent does not change the config of its caller, and speaks HTTP/1.1 also where that config asks for HTTP/2. A message that got
// no answer ends its connection, so the next message opens another one.
func TestClientOfSharedTLS(t *testing.T) {
	for name, protos := range map[string][]string{"no protocols": nil, "protocols of HTTP/2": {"h2", "http/1.1"}} {
		t.Run(name, func(t *testing.T) {
			opened := make(chan struct{}, 100)
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.Config.ConnState = func(_ net.Conn, is http.ConnState) {
				if is == http.StateNew {
					opened <- struct{}{}
				}
			}
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(server.Close)
			through := proxy.New(t, server.Listener.Addr().String())
			given := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			given.NextProtos = protos
			o, err := (&Options{TLS: given}).complete()
			if err != nil {
				t.Fatal(err)
			}
			get := func(most time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), most)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+through.Addr, nil)
				if err != nil {
					return err
				}
				response, err := o.Client.Do(request)
				if err != nil {
					return err
				}
				return response.Body.Close()
			}
			if err := get(10 * time.Second); err != nil {
				t.Fatal(err)
			}
			<-opened
			if !slices.Equal(given.NextProtos, protos) {
				t.Errorf("the protocols of the caller are %q now, and were %q", given.NextProtos, protos)
			}
			through.Freeze()
			for range 2 {
				if err := get(100 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
			select {
			case <-opened:
			case <-time.After(5 * time.Second):
				t.Error("the message after one without an answer opens no connection")
			}
		})
	}
}
