package redisengine

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestPutThatIsGivenUp: its outcome is unknown, but it writes what it was called
// with or nothing, whatever its caller does with the memory afterwards.
func TestPutThatIsGivenUp(t *testing.T) {
	server := testservers.Redis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr}, DisableCache: true, PipelineMultiplex: -1, // one connection
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e := New(client, nil)
	if _, err := e.Put(t.Context(), "first", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	var all sync.WaitGroup
	for range 300 { // more than the connection takes without a reader
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if _, err := e.Put(ctx, "many", make([]byte, engine.MaxValue), 1); err == nil {
				t.Error("a server that is stopped has answered")
			}
		})
	}
	all.Wait()
	data := bytes.Repeat([]byte("a"), engine.MaxValue)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := e.Put(ctx, "key", data, 0); err == nil {
		t.Fatal("a server that is stopped has answered")
	}
	for i := range data {
		data[i] = 'b'
	}
	server.Resume()
	v, err := e.Watch(t.Context(), "key", 0)
	if err != nil || bytes.ContainsRune(v.Data, 'b') {
		t.Errorf("written is %.10q, %v", v.Data, err)
	}
}
