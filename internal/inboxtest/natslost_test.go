package inboxtest_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/natsjs"
)

// letters is how many dead letters there are.
func (b *natsBroker) letters(t *testing.T) uint64 {
	t.Helper()
	stream, err := b.js.Stream(t.Context(), b.name+"_dead")
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

// awaited waits for a delivery.
func awaited(t *testing.T, f inbox.Feed) inbox.Delivery {
	t.Helper()
	var got []inbox.Delivery
	until(t, "a delivery", func() bool {
		some, err := f.Receive(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		got = some
		return len(got) == 1
	})
	return got[0]
}

// TestDeadAfterAckWait: after AckWait a message may be in the hands of another process. The process that had the message before makes no dead
// letter. That process neither ends the message nor gives the message back.
func TestDeadAfterAckWait(t *testing.T) {
	b := newNATS(t)
	if err := b.publish(t.Context(), message("a", 1)); err != nil {
		t.Fatal(err)
	}
	opts := &natsjs.Options{Hold: time.Second, Block: 10 * time.Millisecond}
	slow, other := b.open(t, false, opts), b.open(t, false, opts)
	late, now := awaited(t, slow), awaited(t, other)
	if now.Count() != 2 {
		t.Fatalf("delivery %d, want the second", now.Count())
	}
	for range 2 { // an extension that comes late brings nothing back
		if err := late.Dead(t.Context(), "a reason"); !errors.Is(err, inbox.ErrTaken) {
			t.Fatal(err)
		}
		if err := slow.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.letters(t); n > 0 {
		t.Errorf("%d dead letters of a message that another process runs", n)
	}
	if err := late.Nack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := slow.Receive(t.Context(), 1); err != nil || len(got) > 0 {
		t.Errorf("a message that another process runs came again: %v, %v", got, err)
	}
	c, err := b.js.Consumer(t.Context(), b.name, "g")
	if err != nil || c.CachedInfo().NumAckPending != 1 {
		t.Errorf("the message was ended under the other process: %v", err)
	}
	if err := now.Dead(t.Context(), "its reason"); err != nil || b.letters(t) != 1 {
		t.Errorf("%d dead letters, %v, want 1", b.letters(t), err)
	}
}

// TestQuestionsAtOnce: two goroutines ask the server for the messages under way at the same time, as Extend and Receive do.
func TestQuestionsAtOnce(t *testing.T) {
	b := newNATS(t)
	if err := b.publish(t.Context(), message("a", 1)); err != nil {
		t.Fatal(err)
	}
	f := b.open(t, false, &natsjs.Options{Hold: time.Minute, Block: 10 * time.Millisecond})
	awaited(t, f)
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for range 10 {
				if err := f.Extend(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// TestDeadOfALongRun: a message that is extended stays with its process for longer than AckWait, and becomes a dead letter.
func TestDeadOfALongRun(t *testing.T) {
	b := newNATS(t)
	if err := b.publish(t.Context(), message("a", 1)); err != nil {
		t.Fatal(err)
	}
	const hold = time.Second
	f := b.open(t, false, &natsjs.Options{Hold: hold, Block: 10 * time.Millisecond})
	d := awaited(t, f)
	tick := time.NewTicker(hold / 3)
	defer tick.Stop()
	for range 6 {
		<-tick.C
		if err := f.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Dead(t.Context(), "a reason"); err != nil || b.letters(t) != 1 {
		t.Errorf("%d dead letters, %v, want 1", b.letters(t), err)
	}
	var c jetstream.Consumer
	until(t, "the message has ended", func() (ended bool) {
		var err error
		c, err = b.js.Consumer(t.Context(), b.name, "g")
		return err == nil && c.CachedInfo().NumAckPending == 0
	})
	if n := c.CachedInfo().Delivered.Consumer; n != 1 {
		t.Errorf("%d deliveries, want 1", n)
	}
}
