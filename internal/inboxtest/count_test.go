package inboxtest_test

import (
	"errors"
	"testing"

	"github.com/pawl-go/pawl/inbox"
)

// TestParkedCountsNot: messages that wait behind a failing one for long, and never ran, run in the next process.
func TestParkedCountsNot(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.opts.Window, w.opts.Workers, w.opts.MaxAttempts, w.opts.MaxDeliveries = 8, 2, 1_000_000, 2
		w.fail = func(inbox.Message, int) error { return errors.New("bad luck") }
		const messages = 6
		for n := 1; n <= messages; n++ {
			w.send(t, message("a", n))
		}
		stop := w.run(t)
		until(t, "the first message has failed often", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.ran["a-1"] > 20
		})
		stop()
		w.fail = func(inbox.Message, int) error { return nil }
		w.run(t)
		w.idle(t)
		all, err := w.effects(t.Context())
		if f := check(all, 1, messages); f != (faults{}) || err != nil {
			t.Error(f, all, err)
		}
		if dead, err := w.dead(t.Context()); err == nil && len(dead) > 0 {
			t.Error(dead)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ran["a-6"] != 1 {
			t.Error(w.ran)
		}
	})
}

// TestCount: deliveries to readers that died count. On Redis, deliveries that were given back do not.
func TestCount(t *testing.T) {
	for _, kind := range []string{"redis", "nats", quorum} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind, brokers[kind].shared(t))
			w.send(t, message("a", 1))
			for want := 1; want <= 3; want++ {
				source, err := w.source()
				if err != nil {
					t.Fatal(err)
				}
				f, err := source.Open(t.Context(), false)
				if err != nil {
					t.Fatal(err)
				}
				if d := one(t, f); d.Count() != want {
					t.Errorf("the count is %d, want %d", d.Count(), want)
				} else if kind == "redis" {
					if err := d.Nack(t.Context()); err != nil {
						t.Fatal(err)
					}
					if d = one(t, f); d.Count() != want {
						t.Errorf("the count is %d after it was given back, want %d", d.Count(), want)
					}
				}
				if err := f.Close(t.Context()); err != nil { // the reader dies
					t.Fatal(err)
				}
			}
		})
	}
}

// one waits for a delivery.
func one(t *testing.T, f inbox.Feed) (d inbox.Delivery) {
	t.Helper()
	until(t, "a delivery", func() bool {
		got, err := f.Receive(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) > 0 {
			d = got[0]
		}
		return len(got) > 0
	})
	return d
}
