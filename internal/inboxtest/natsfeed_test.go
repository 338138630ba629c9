package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/natsjs"
	"github.com/pawl-go/pawl/internal/testservers"
)

// newNATS makes a stream in the shared server.
func newNATS(t *testing.T) *natsBroker {
	t.Helper()
	b, err := connectNATS(testservers.SharedNATS(t).Addr, fmt.Sprintf("inbox_%d_%d", time.Now().UnixNano(), tables.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b.(*natsBroker)
}

// open opens the stream for the durable consumer "g".
func (b *natsBroker) open(t *testing.T, single bool, opts *natsjs.Options) inbox.Feed {
	t.Helper()
	source, err := natsjs.New(b.js, b.name, "g", opts)
	if err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(t.Context(), single)
	if err != nil {
		t.Fatal(err)
	}
	return f
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
	if took := time.Since(began); took > 15*time.Second { // it would wait for 20
		t.Errorf("the feed returned after %v", took)
	}
}

// TestWindowAndMaxAckPending: the server may hand out fewer messages than a window has room for. The consumer works all the same.
func TestWindowAndMaxAckPending(t *testing.T) {
	w := newWorld(t, "nats", testservers.SharedNATS(t))
	b := w.broker.(*natsBroker)
	for _, bad := range []int{-1, 1_000_001} {
		if _, err := natsjs.New(b.js, b.name, "g", &natsjs.Options{MaxAckPending: bad}); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%d: %v", bad, err)
		}
	}
	source, err := natsjs.New(b.js, b.name, "g", &natsjs.Options{Hold: hold, MaxAckPending: 10})
	if err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := b.js.Consumer(t.Context(), b.name, "g")
	if err != nil || c.CachedInfo().Config.MaxAckPending != 10 {
		t.Fatal(c, err)
	}
	w.send(t, message("a", 1))
	w.opts.Workers, w.opts.Window = 2, 11
	w.run(t)
	w.took(t, 1)
}

// TestStatus: a feed that waits for messages of the last process says so when the client library hands one of them out to nobody. The feed goes
// on when an operator has removed that message.
func TestStatus(t *testing.T) {
	for _, value := range []string{"404", "paid"} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			b := newNATS(t)
			taken := message("a", 1)
			taken.Headers, taken.Payload = map[string]string{"Status": value}, nil
			if err := b.publish(t.Context(), taken, message("a", 2)); err != nil {
				t.Fatal(err)
			}
			opts := &natsjs.Options{Hold: 200 * time.Millisecond, Block: 10 * time.Millisecond}
			receive := func() ([]inbox.Delivery, error) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				return b.open(t, true, opts).Receive(ctx, 10)
			}
			if got, _ := receive(); len(got) > 0 {
				t.Fatal("the client library hands such messages out")
			}
			if got, err := receive(); len(got) > 0 || err == nil || !strings.Contains(err.Error(), "header Status") {
				t.Error(got, err)
			}
			stream, err := b.js.Stream(t.Context(), b.name)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.DeleteMsg(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if got, err := receive(); err != nil || len(got) != 1 || got[0].Message().ID != "a-2" {
				t.Error(got, err)
			}
		})
	}
}

// TestRecoveriesThatAreGivenUp: each recovery that is given up costs the messages behind a delivery, so each waits longer than the last. A
// recovery that waits, or is next, goes on soon after an operator has removed the message that never arrives.
func TestRecoveriesThatAreGivenUp(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint(waits), func(t *testing.T) {
			t.Parallel()
			b := newNATS(t)
			taken := message("a", 1)
			taken.Headers, taken.Payload = map[string]string{"Status": "paid"}, nil
			if err := b.publish(t.Context(), taken, message("a", 2)); err != nil {
				t.Fatal(err)
			}
			source, err := natsjs.New(b.js, b.name, "g", &natsjs.Options{Hold: 100 * time.Millisecond, Block: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			open := func() inbox.Feed {
				f, err := source.Open(t.Context(), true)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			for _, least := range []time.Duration{0, 600, 1200, 2400, 4800, 9600} {
				began := time.Now()
				got, err := open().Receive(t.Context(), 10)
				if took := time.Since(began); len(got) > 0 || err == nil || took < least*time.Millisecond {
					t.Errorf("after %v, and not %v: %d messages, %v", took, least*time.Millisecond, len(got), err)
				}
			}
			stream, err := b.js.Stream(t.Context(), b.name)
			if err != nil {
				t.Fatal(err)
			}
			began, f := time.Now(), open()
			if err := stream.DeleteMsg(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if !waits {
				f = open()
			}
			got, err := f.Receive(t.Context(), 10)
			if took := time.Since(began); err != nil || len(got) != 1 || got[0].Message().ID != "a-2" || took > 18*time.Second {
				t.Errorf("after %v: %v, %v", took, got, err)
			}
		})
	}
}

// TestOwnDeadLetters: a durable consumer that would get its own dead letters, and make dead letters of those, is refused and not made.
func TestOwnDeadLetters(t *testing.T) {
	for filter, refused := range map[string]bool{"": true, ".>": true, ".dead.>": true, ".*.x": true, ".dead.x": true, ".orders": false, ".*": false, ".dead.x.>": false, ".dead.y": false} {
		for _, exists := range []bool{false, true} {
			t.Run(fmt.Sprint(filter, exists), func(t *testing.T) {
				b := newNATS(t)
				if _, err := b.js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: b.name, Subjects: []string{b.name + ".>"}}); err != nil {
					t.Fatal(err)
				}
				opts := &natsjs.Options{Dead: b.name + ".dead.x"}
				if filter != "" {
					opts.Filter = b.name + filter
				}
				if exists {
					config := jetstream.ConsumerConfig{Durable: "g", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: opts.Filter}
					if _, err := b.js.CreateConsumer(t.Context(), b.name, config); err != nil {
						t.Fatal(err)
					}
					opts.Filter = "" // which changes no durable consumer
				}
				source, err := natsjs.New(b.js, b.name, "g", opts)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := source.Open(t.Context(), false); errors.Is(err, pawl.ErrMismatch) != refused || !refused && err != nil {
					t.Error(err)
				}
				if _, err := b.js.Consumer(t.Context(), b.name, "g"); (err == nil) != (exists || !refused) {
					t.Error(err)
				}
			})
		}
	}
}

// TestSlowNetwork: messages arrive over a network that takes longer for an answer than the client library waits for one. Some time after the network is well
// again, a reader without messages ends soon after its ctx.
func TestSlowNetwork(t *testing.T) {
	for name, single := range map[string]bool{"one of many": false, "single": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			network := proxy.New(t, testservers.SharedNATS(t).Addr)
			broker, err := connectNATS(network.Addr, fmt.Sprintf("inbox_%d_%d", time.Now().UnixNano(), tables.Add(1)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(broker.close)
			b := broker.(*natsBroker)
			source, err := natsjs.New(b.js, b.name, "g", &natsjs.Options{Hold: 6 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			f, err := source.Open(t.Context(), single)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.publish(t.Context(), message("a", 1)); err != nil {
				t.Fatal(err)
			}
			network.Delay(650 * time.Millisecond) // in each direction
			defer network.Thaw()
			var got []inbox.Delivery
			for deadline := time.Now().Add(time.Minute); ; {
				if got, err = f.Receive(t.Context(), 8); len(got) > 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("no message came; the last error is %v", err)
				}
				for err != nil && time.Now().Before(deadline) {
					var opened inbox.Feed
					if opened, err = source.Open(t.Context(), single); err == nil {
						f = opened
					}
				}
			}
			network.Delay(0)
			if err := got[0].Ack(t.Context()); err != nil {
				t.Error(err)
			}
			if got, err := f.Receive(t.Context(), 8); err != nil || len(got) > 0 {
				t.Error(got, err)
			}
			until(t, "a reader without messages ends soon after its ctx", func() bool { // when a message that was late would have come again
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				began := time.Now()
				if _, err := f.Receive(ctx, 8); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				return time.Since(began) < 1500*time.Millisecond
			})
		})
	}
}
