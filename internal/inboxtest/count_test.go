package inboxtest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/inbox"
)

// counting is a broker whose sources count deliveries.
type counting struct {
	broker
	mu  sync.Mutex
	all map[string]int // by ID
}

func (c *counting) source() (inbox.Source, error) {
	s, err := c.broker.source()
	return &countingSource{s, c}, err
}

type countingSource struct {
	inbox.Source
	c *counting
}

func (s *countingSource) Open(ctx context.Context, single bool) (inbox.Feed, error) {
	f, err := s.Source.Open(ctx, single)
	if err != nil {
		return nil, err
	}
	return &countingFeed{f, s.c}, nil
}

type countingFeed struct {
	inbox.Feed
	c *counting
}

func (f *countingFeed) Receive(ctx context.Context, most int) ([]inbox.Delivery, error) {
	got, err := f.Feed.Receive(ctx, most)
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	for _, d := range got {
		f.c.all[d.Message().ID]++
	}
	return got, err
}

// TestGivenBackCountsNot: messages that were given back often, and never ran, run in the next process.
func TestGivenBackCountsNot(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{broker: w.broker, all: make(map[string]int)}
		w.broker = c
		w.opts.Window, w.opts.Workers, w.opts.MaxAttempts, w.opts.MaxDeliveries = 8, 2, 1_000_000, 2
		w.fail = func(inbox.Message, int) error { return errors.New("bad luck") }
		const messages = 6
		for n := 1; n <= messages; n++ {
			w.send(t, message("a", n))
		}
		stop := w.run(t)
		until(t, "the last message is given back often", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.all["a-6"] > w.opts.MaxDeliveries+1
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

// TestCount: deliveries to readers that died count, and deliveries that were given back do not.
func TestCount(t *testing.T) {
	for _, kind := range []string{"redis", "nats", quorum} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind, brokers[kind].shared(t))
			source, err := w.source()
			if err != nil {
				t.Fatal(err)
			}
			w.send(t, message("a", 1))
			for want := 1; want <= 3; want++ {
				f, err := source.Open(t.Context(), false)
				if err != nil {
					t.Fatal(err)
				}
				for _, delay := range []time.Duration{0, 10 * time.Millisecond, -1} {
					d := one(t, f)
					if d.Count() != want {
						t.Errorf("the count is %d, want %d", d.Count(), want)
					}
					if delay < 0 {
						break // the reader dies
					}
					if err := d.Nack(t.Context(), delay); err != nil {
						t.Fatal(err)
					}
				}
				if err := f.Close(t.Context()); err != nil {
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
