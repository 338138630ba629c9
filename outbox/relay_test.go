package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/outbox"
)

// A relay that starts later gets its share of the partitions, and those of a relay that ends. A relay that gives
// a partition up waits for the results of its sendings, so that no message is sent twice.
func TestRelaysShareThePartitions(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	store := memengine.New()
	var sendings atomic.Int64
	held := make(chan struct{})
	p := publish(func(context.Context, outbox.Message) error { sendings.Add(1); <-held; return nil })
	var ids []string
	for i := range 100 {
		ids = append(ids, d.enqueue(t, outbox.Message{Topic: "t", Key: fmt.Sprint(i)})...)
	}
	var relays []*outbox.Relay
	var stops []func()
	shares := func(want ...int) func() bool {
		return func() bool {
			for i, r := range relays {
				if want[i] > 0 && r.Stats().Partitions > want[i] || r.Stats().Partitions == 0 {
					return false
				}
			}
			return true
		}
	}
	for range 3 {
		client, err := pawl.New(t.Context(), store, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // nothing is lost
		r, stop := d.run(t, client, p, outbox.RelayOptions{Balance: 20 * time.Millisecond})
		relays, stops = append(relays, r), append(stops, stop)
		if len(relays) == 1 {
			until(t, "all partitions are held", func() bool { return r.Stats().Partitions == outbox.Partitions })
			until(t, "all are under way", func() bool { return r.Stats().Sending == 100 })
			if s := r.Stats(); s.Confirmed != 0 || s.Hung != 0 {
				t.Errorf("%+v", s)
			}
		}
		if len(relays) == 2 {
			until(t, "the first gives up", func() bool { return relays[0].Stats().Partitions <= 8 })
			close(held)
			until(t, "two share", shares(8, 8))
		}
	}
	until(t, "three share", shares(6, 6, 6))
	until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
	if n := sendings.Load(); n != 100 {
		t.Errorf("%d sendings of 100 messages", n)
	}
	stops[0]()
	relays = relays[1:]
	until(t, "two hold all", func() bool { return relays[0].Stats().Partitions+relays[1].Stats().Partitions == outbox.Partitions })
}

// Stats counts what happened to messages.
func TestStats(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.Key == "refused" {
				return outbox.ErrRefused
			}
			return nil
		})
		d.enqueue(t, outbox.Message{Topic: "t", Key: "a"}, outbox.Message{Topic: "t", Key: "refused"}, outbox.Message{Topic: "t", Key: "refused"}, outbox.Message{Topic: "t"})
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET created = created - 60"); err != nil {
			t.Fatal(err)
		}
		is, err := d.table.Stats(t.Context(), d.db)
		if err != nil || is.Pending != 4 || is.Oldest < time.Minute || is.Oldest > time.Hour || is.Dead != 0 {
			t.Errorf("%+v, %v", is, err)
		}
		r, _ := d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 2})
		want := outbox.RelayStats{Partitions: outbox.Partitions, Confirmed: 2, Refused: 2, Dead: 1}
		until(t, fmt.Sprintf("%+v", want), func() bool { return r.Stats() == want })
		until(t, "one is pending behind one that is dead", func() bool {
			is, err = d.table.Stats(t.Context(), d.db)
			return err != nil || is.Pending == 1 && is.Dead == 1 && is.HaltedKeys == 1
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// The payloads in memory are bounded by WindowBytes for each partition, and one message more.
func TestWindowBytes(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		table, err := outbox.New(d.dialect, &outbox.Options{Table: d.name, MaxPayload: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		d.table = table
		const messages, size, window = 40, 200_000, 500_000
		for i := range messages {
			d.enqueue(t, outbox.Message{Topic: "t", Key: sameAs("k") + fmt.Sprint(i), Payload: make([]byte, size)})
		}
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET part = 1"); err != nil {
			t.Fatal(err)
		}
		var under, most, done atomic.Int64
		held := make(chan struct{})
		p := publish(func(_ context.Context, m outbox.Message) error {
			n := under.Add(int64(len(m.Payload)))
			for is := most.Load(); n > is && !most.CompareAndSwap(is, n); is = most.Load() {
			}
			<-held
			under.Add(-int64(len(m.Payload)))
			done.Add(1)
			return nil
		})
		r, _ := d.run(t, newClient(t), p, outbox.RelayOptions{WindowBytes: window})
		until(t, "some are under way", func() bool { return r.Stats().Sending == window/size+1 && under.Load() == (window/size+1)*size })
		close(held)
		until(t, "all are sent", func() bool { return done.Load() >= messages })
		if n := most.Load(); n > window+size || n < 2*size {
			t.Errorf("%d bytes were under way at once", n)
		}
	})
}

// A relay that is stopped in the midst of its work marks the confirmed messages, so that the next relay repeats nothing.
func TestAStoppedRelayRepeatsNothing(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var sendings atomic.Int64
		p := publish(func(context.Context, outbox.Message) error { sendings.Add(1); return nil })
		client := newClient(t)
		all := int64(0)
		for range 10 {
			batch := make([]outbox.Message, 300)
			for i := range batch {
				batch[i] = outbox.Message{Topic: "t", Key: fmt.Sprint(i % 50)}
			}
			d.enqueue(t, batch...)
			all += int64(len(batch))
			_, stop := d.run(t, client, p, outbox.RelayOptions{Window: 8, OnError: func(err error) { t.Log(err) }})
			until(t, "some are sent", func() bool { return sendings.Load() > all-150 })
			stop()
		}
		d.run(t, client, p, outbox.RelayOptions{Window: 8})
		until(t, "all are sent", func() bool {
			is, err := d.table.Stats(t.Context(), d.db)
			return err == nil && is.Pending == 0
		})
		if n := sendings.Load(); n != all {
			t.Errorf("%d sendings of %d messages", n, all)
		}
	})
}

// permitless is a store without semaphores, as Redlock is.
type permitless struct{ *memengine.Engine }

func (p permitless) Caps() engine.Caps {
	caps := p.Engine.Caps()
	caps.Lacks = map[engine.Feature]string{engine.FeatureSemaphore: "the test says so"}
	return caps
}

// A relay whose store cannot keep partitions ends with the reason, whether the relay is alone or would wait for another.
func TestRelayWithoutSemaphores(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	client, err := pawl.New(t.Context(), permitless{memengine.New()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	r, err := d.table.Relay(client, d.db, publish(func(context.Context, outbox.Message) error { return nil }), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := r.Run(ctx); !errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(err.Error(), "the test says so") {
		t.Errorf("%v, and ctx: %v", err, ctx.Err())
	}
}
