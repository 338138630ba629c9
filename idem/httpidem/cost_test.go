package httpidem

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/pawl-go/pawl/idem"
)

// free is a claim that costs nothing: the store is measured elsewhere.
type free struct{}

func (free) Kept() ([]byte, bool)                   { return nil, false }
func (free) Context() context.Context               { return context.Background() }
func (free) Complete(context.Context, []byte) error { return nil }
func (free) Abort(context.Context) error            { return nil }

// quiet is an http.ResponseWriter that keeps nothing.
type quiet struct{ header http.Header }

func (q *quiet) Header() http.Header            { return q.header }
func (q *quiet) Write(data []byte) (int, error) { return len(data), nil }
func (q *quiet) WriteHeader(int)                {}

// echo returns one request of 1 KiB to a handler that sends it back, bare and behind the middleware.
func echo(tb testing.TB) (bare, wrapped func()) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = []string{"application/octet-stream"}
		io.Copy(w, r.Body) //nolint:errcheck // both are in memory
	})
	m, err := newMiddleware(&Options{Identity: func(*http.Request) (string, error) { return "user-7", nil }},
		func(context.Context, idem.Key, idem.Fingerprint) (claim, error) { return free{}, nil })
	if err != nil {
		tb.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), 1<<10)
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "/payments?a=b", nil)
	if err != nil {
		tb.Fatal(err)
	}
	r.Header[Header] = []string{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`}
	r.ContentLength = int64(len(body))
	reader := bytes.NewReader(body)
	call := func(h http.Handler) func() {
		w := &quiet{make(http.Header)}
		return func() {
			clear(w.header)
			reader.Reset(body)
			r.Body = io.NopCloser(reader)
			h.ServeHTTP(w, r)
		}
	}
	return call(handler), call(m.wrap(handler))
}

// TestAllocations: the middleware without its store needs at most 10 more than the handler.
func TestAllocations(t *testing.T) {
	bare, wrapped := echo(t)
	most := testing.AllocsPerRun(100, wrapped) - testing.AllocsPerRun(100, bare)
	if t.Logf("%v allocations", most); most > 10 {
		t.Errorf("%v allocations more than the bare handler, and 10 are allowed", most)
	}
}

// BenchmarkMiddleware: the middleware over the bare handler, without the store. At most 15 µs are allowed.
func BenchmarkMiddleware(b *testing.B) {
	bare, wrapped := echo(b)
	for name, run := range map[string]func(){"bare": bare, "wrapped": wrapped} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}
