//go:build unix

package cli

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/segment"
)

// BenchmarkIDServe compares the service with a handler that answers a constant, by the same client.
func BenchmarkIDServe(b *testing.B) {
	s := newIDService("segment", []string{"x"}, map[string]lines{"x": segmentInMemory(b)})
	constant := []byte("1234567\n")
	for _, bench := range []struct {
		name    string
		handler http.Handler
	}{
		{"constant", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(constant) })}, //nolint:errcheck // the client has gone
		{"segment", s.handler()},
	} {
		b.Run(bench.name, func(b *testing.B) {
			server := httptest.NewServer(bench.handler)
			defer server.Close()
			client := server.Client()
			for b.Loop() {
				answer, err := client.Get(server.URL + "/id/x?n=1")
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, answer.Body) //nolint:errcheck // an error shows in the next request
				answer.Body.Close()
				if answer.StatusCode != 200 {
					b.Fatal(answer.Status)
				}
			}
		})
	}
}

// segmentInMemory are the lines of a segment in this process.
func segmentInMemory(b *testing.B) lines {
	b.Helper()
	ctx := b.Context()
	eng, err := open.Open(ctx, "memory:")
	if err != nil {
		b.Fatal(err)
	}
	client, err := pawl.New(ctx, eng, &pawl.Options{TTL: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	registers, err := id.Values(client, &id.ValuesOptions{AllowForgetting: true})
	if err != nil {
		b.Fatal(err)
	}
	g, err := segment.New(registers.Counter("x"), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx := context.Background()
		g.Close(ctx)      //nolint:errcheck // the benchmark is over
		client.Close(ctx) //nolint:errcheck // as above
		eng.Close()       //nolint:errcheck // as above
	})
	return numberLines(g)
}
