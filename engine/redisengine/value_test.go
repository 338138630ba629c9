package redisengine

import (
	"bytes"
	"context"
	"strconv"
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

// TestPutWhereASlotMoves: a value changes also while its slot moves, and expires nowhere. A node that
// gives a slot away takes no new keys there, nor does it where a script deletes a key and sets it again.
func TestPutWhereASlotMoves(t *testing.T) {
	c := newCluster(t)
	e, key := New(c.client, nil), c.on(0)
	version, err := e.Put(t.Context(), key, []byte("before"), 0)
	if err != nil {
		t.Fatal(err)
	}
	_, n := c.node(e.valueKey(key))
	slot := strconv.FormatInt(n, 10)
	c.ask(2, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[0])
	c.ask(0, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[2])
	if _, err := e.Put(t.Context(), key, []byte("after"), version); err != nil {
		t.Errorf("put: %v", err)
	}
	if v, err := e.Get(t.Context(), key); err != nil || string(v.Data) != "after" {
		t.Errorf("got %+v, %v", v, err)
	}
	if left := e.client.Do(t.Context(), command("PTTL", e.valueKey(key))); left.Value != int64(-1) {
		t.Errorf("expires in %v ms, %v", left.Value, left.Err)
	}
}
