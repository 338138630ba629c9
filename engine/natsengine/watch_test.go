package natsengine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/cas"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// watched sends every item of a key, until the watch fails.
func watched(ctx context.Context, s *store, key string) (<-chan cas.Item, <-chan error) {
	items, failed := make(chan cas.Item), make(chan error, 1)
	go func() {
		for i, err := range s.Watch(ctx, key) {
			if err != nil {
				failed <- err
				return
			}
			select {
			case items <- i:
			case <-ctx.Done():
			}
		}
	}()
	return items, failed
}

func next(t *testing.T, items <-chan cas.Item, failed <-chan error) cas.Item {
	t.Helper()
	select {
	case i := <-items:
		return i
	case err := <-failed:
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
	}
	return cas.Item{}
}

// TestWatch: a watch begins with the item of the key, or its absence. Every change and deletion follows.
func TestWatch(t *testing.T) {
	s := newEngine(t, dial(t, testservers.SharedNATS(t).Addr), "watched").store
	items, failed := watched(t.Context(), s, "c/x")
	if i := next(t, items, failed); i.Version != 0 {
		t.Fatalf("%+v of no key", i)
	}
	version := uint64(0)
	for n := range 3 {
		written, err := s.Swap(t.Context(), "c/x", fmt.Append(nil, n), version)
		if err != nil {
			t.Fatal(err)
		}
		i := next(t, items, failed)
		if version = written; i.Version != version || string(i.Data) != fmt.Sprint(n) || time.Since(time.UnixMicro(i.Written)).Abs() > time.Minute {
			t.Errorf("%+v, want version %d", i, version)
		}
		late, lateFailed := watched(t.Context(), s, "c/x")
		if i := next(t, late, lateFailed); i.Version != version || string(i.Data) != fmt.Sprint(n) {
			t.Errorf("%+v is the first of a later watch, want version %d", i, version)
		}
	}
	if err := s.Delete(t.Context(), "c/x", version); err != nil {
		t.Fatal(err)
	}
	if i := next(t, items, failed); i.Version != 0 || i.Data != nil {
		t.Errorf("%+v of a deleted key", i)
	}
}

// TestTake: a heartbeat tells of a last message that has not come. An earlier one does not matter.
func TestTake(t *testing.T) {
	beat := func(last string) *nats.Msg {
		return &nats.Msg{Header: nats.Header{"Status": {"100"}, "Nats-Last-Consumer": {last}}}
	}
	value := func(consumer, stream int, header nats.Header) *nats.Msg {
		return &nats.Msg{Sub: &nats.Subscription{}, Reply: fmt.Sprintf("$JS.ACK.KV_pawl.name.1.%d.%d.1790000000000000000.0", stream, consumer), Data: []byte("x"), Header: header}
	}
	w := &watch{}
	for _, step := range []struct {
		m       *nats.Msg
		ok, gap bool
		version uint64
	}{
		{beat("0"), false, false, 0}, {beat("1"), false, true, 0}, {value(1, 7, nil), true, false, 7}, {beat("1"), false, false, 0},
		{value(4, 9, nil), true, false, 9}, {beat("4"), false, false, 0}, {beat("5"), false, true, 0}, {beat("many"), false, true, 0},
		{value(5, 10, nats.Header{"KV-Operation": {"DEL"}}), true, false, 0}, {value(6, 11, nats.Header{"Nats-Marker-Reason": {"MaxAge"}}), true, false, 0},
	} {
		i, ok, err := w.take(step.m)
		if ok != step.ok || errors.Is(err, errGap) != step.gap || i.Version != step.version {
			t.Errorf("%v: %+v, %v, %v", step.m.Header, i, ok, err)
		}
	}
	if _, _, err := w.take(&nats.Msg{Sub: &nats.Subscription{}, Data: []byte("x")}); err == nil {
		t.Error("a message of no consumer is taken")
	}
}

// TestConsumerIsNotMade: a watch ends when the server does not answer that it made the consumer.
func TestConsumerIsNotMade(t *testing.T) {
	link := proxy.New(t, testservers.SharedNATS(t).Addr)
	s := newEngine(t, dial(t, link.Addr), "unmade").store
	if _, err := s.Load(t.Context(), "c/x"); err != nil { // the bucket is known then
		t.Fatal(err)
	}
	link.FreezeReplies()
	items, failed := watched(t.Context(), s, "c/x")
	select {
	case err := <-failed:
		if !errors.Is(err, engine.ErrUnavailable) {
			t.Error(err)
		}
	case i := <-items:
		t.Errorf("%+v came from a server that is silent", i)
	case <-time.After(time.Minute):
		t.Error("it waits for ever")
	}
}

// TestWatchEnds: a watch ends with its ctx, with its connection, and when the server removes its consumer. No
// subscription stays.
func TestWatchEnds(t *testing.T) {
	server := testservers.NATS(t)
	nc := dial(t, server.Addr)
	s := newEngine(t, nc, "").store
	before := nc.NumSubscriptions()
	ctx, cancel := context.WithCancel(t.Context())
	items, failed := watched(ctx, s, "c/x")
	next(t, items, failed)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	items, failed = watched(t.Context(), s, "c/x")
	next(t, items, failed)
	for name := range s.api.ConsumerNames("KV_" + s.bucket) {
		if err := s.api.DeleteConsumer("KV_"+s.bucket, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-failed; !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
	items, failed = watched(t.Context(), s, "c/x")
	next(t, items, failed)
	server.Kill()
	server.Restart()
	if err := <-failed; !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
	for deadline := time.Now().Add(time.Minute); nc.NumSubscriptions() > before; {
		if time.Now().After(deadline) {
			t.Fatalf("%d subscriptions, %d before", nc.NumSubscriptions(), before)
		}
	}
}
