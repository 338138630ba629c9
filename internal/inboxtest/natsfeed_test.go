package inboxtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/pawl-go/pawl/inbox/natsjs"
	"github.com/pawl-go/pawl/internal/testservers"
)

// newNATS makes a stream in the shared server.
func newNATS(t *testing.T) *natsBroker {
	t.Helper()
	return newWorld(t, "nats", testservers.SharedNATS(t)).broker.(*natsBroker)
}

// TestReceiveEndsWithItsContext: a feed of JetStream that waits for messages returns soon after its context has ended.
func TestReceiveEndsWithItsContext(t *testing.T) {
	b := newNATS(t)
	source, err := natsjs.New(b.js, b.name, "g", &natsjs.Options{Block: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := f.Receive(ctx, 10)
		done <- err
	}()
	until(t, "the feed waits at the server", func() bool {
		c, err := b.js.Consumer(t.Context(), b.name, "g")
		return err == nil && c.CachedInfo().NumWaiting > 0
	})
	began := time.Now()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the feed returned after %v", took)
	}
}
