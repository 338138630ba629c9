package httpidem_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem/httpidem"
)

// moody starts a server that refuses the first requests, each in another way, and notes keys and bodies.
func moody(t *testing.T, seen chan<- string, n *atomic.Int64) (url string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		seen <- r.Header.Get(httpidem.Header) + " " + string(body)
		switch n.Add(1) {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusConflict)
		case 4:
			w.WriteHeader(http.StatusConflict) // of the application
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestTransportKeepsTheKey: the key and the body are the same in each attempt, over lost connections, refusals and a
// request that is in flight.
func TestTransportKeepsTheKey(t *testing.T) {
	var seen []string // by the last send
	var n atomic.Int64
	arrived := make(chan string, 100)
	url := moody(t, arrived, &n)
	bare := &http.Transport{DisableKeepAlives: true} // which repeats nothing itself
	send := func(ctx context.Context, transport *httpidem.Transport, method string, body io.Reader) (int, error) {
		seen = nil
		n.Store(0)
		defer func() {
			for len(arrived) > 0 {
				seen = append(seen, <-arrived)
			}
		}()
		r, err := http.NewRequestWithContext(ctx, method, url, body)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			return 0, err
		}
		return reply.StatusCode, reply.Body.Close()
	}
	ctx := httpidem.WithKey(t.Context(), `a"b`)
	quick := &httpidem.Transport{Base: bare, Attempts: 9, Pause: time.Millisecond}
	status, err := send(ctx, quick, "POST", strings.NewReader("5"))
	if err != nil || status != http.StatusConflict || len(seen) != 4 {
		t.Errorf("%d, %v after %q", status, err, seen)
	}
	for _, s := range seen {
		if s != `"a\"b" 5` {
			t.Errorf("sent %s", s)
		}
	}
	if status, err = send(ctx, &httpidem.Transport{Base: bare, Attempts: 2, Pause: time.Millisecond}, "POST", nil); err != nil || status != http.StatusServiceUnavailable || len(seen) != 2 {
		t.Errorf("two attempts: %d, %v after %q", status, err, seen)
	}
	if _, err = send(ctx, quick, "POST", io.LimitReader(strings.NewReader("5"), 9)); err == nil || len(seen) != 1 {
		t.Errorf("a body that cannot be read again: %v after %q", err, seen)
	}
	if _, err = send(t.Context(), quick, "POST", strings.NewReader("5")); err == nil || len(seen) != 1 || seen[0] != " 5" {
		t.Errorf("no key: %v after %q", err, seen)
	}
	if _, err = send(httpidem.WithKey(t.Context(), "é"), quick, "POST", nil); err == nil || len(seen) != 0 {
		t.Errorf("a key that no header takes: %v after %q", err, seen)
	}
	gone, cancel := context.WithCancel(ctx)
	stop := &httpidem.Transport{Pause: time.Minute, MaxPause: time.Hour, Base: roundTrip(func(*http.Request) (*http.Response, error) {
		defer time.AfterFunc(time.Millisecond, cancel)
		return nil, errors.New("lost")
	})}
	if _, err = send(gone, stop, "POST", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("in a pause: %v", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTransportAndMiddleware: a client whose answer is lost gets it by a repeat, and the handler runs once.
func TestTransportAndMiddleware(t *testing.T) {
	s := newSite(t, memengine.New(), nil, paid)
	attempts := 0
	lossy := roundTrip(func(r *http.Request) (*http.Response, error) {
		attempts++
		reply, err := http.DefaultTransport.RoundTrip(r)
		if err == nil && attempts < 3 {
			reply.Body.Close() //nolint:errcheck // it is lost
			return nil, errors.New("the answer is lost")
		}
		return reply, err
	})
	client := &http.Client{Transport: &httpidem.Transport{Base: lossy, Pause: time.Millisecond}}
	r, err := http.NewRequestWithContext(httpidem.WithKey(t.Context(), "order-17"), http.MethodPost, s.url, strings.NewReader("5"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-User", "user-7")
	reply, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close() //nolint:errcheck // it was read
	if text, err := io.ReadAll(reply.Body); string(text) != "paid" || err != nil || s.runs.Load() != 1 || attempts != 3 {
		t.Errorf("%q, %v after %d attempts and %d runs", text, err, attempts, s.runs.Load())
	}
}
