package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/outbox"
)

// An owner whose partition was taken over while a message was under way marks nothing.
func TestAStaleOwnerMarksNothing(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		stale := make(chan error, 1000)
		p := publish(func(ctx context.Context, m outbox.Message) error {
			return d.exec(ctx, d.db, "UPDATE "+d.name+"_parts SET token = 9007199254740991 WHERE part >= 0")
		})
		ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "a"}, outbox.Message{Topic: "t", Key: "a"})
		_, stop := d.run(t, newClient(t), p, outbox.RelayOptions{OnError: func(err error) {
			select {
			case stale <- err:
			default:
			}
		}})
		for !errors.Is(next(t, "the owner is stale", stale), fence.ErrStale) {
		}
		stop()
		if !d.is(t, outbox.Pending, ids...) {
			t.Error("a stale owner has marked a message")
		}
	})
}

// Relays whose locks are in different stores lock each partition twice. A relay counts only the partitions whose rows are its own. That
// holds also when a relay of the other store takes rows over while nothing is sent.
func TestAStaleOwnerIsNotCounted(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		idle := publish(func(context.Context, outbox.Message) error { return nil })
		first, _ := d.run(t, newClient(t), idle, outbox.RelayOptions{Rescan: 50 * time.Millisecond})
		until(t, "the first has all", func() bool { return first.Stats().Partitions == outbox.Partitions })
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+"_parts SET token = token + 1000000 WHERE part >= 0"); err != nil { // as a relay of another store does
			t.Fatal(err)
		}
		until(t, "the first counts none", func() bool { return first.Stats().Partitions == 0 })
		stale := make(chan error, 1000)
		second, _ := d.run(t, newClient(t), idle, outbox.RelayOptions{OnError: func(err error) {
			select {
			case stale <- err:
			default:
			}
		}})
		for range 5 * outbox.Partitions {
			if err := next(t, "the second is stale", stale); !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
			if n := second.Stats().Partitions; n != 0 {
				t.Fatalf("the second counts %d partitions", n)
			}
		}
	})
}

// A relay with other locks takes all rows, and ends. The relay that still has its locks gets larger tokens for them, and sends again.
func TestAStaleOwnerGetsALargerToken(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var stale atomic.Int64
		relay, _ := d.run(t, newClient(t), publish(func(context.Context, outbox.Message) error { return nil }),
			outbox.RelayOptions{Balance: 20 * time.Millisecond, Rescan: 50 * time.Millisecond, OnError: func(err error) {
				if errors.Is(err, fence.ErrStale) {
					stale.Add(1)
				}
			}})
		until(t, "the relay has all", func() bool { return relay.Stats().Partitions == outbox.Partitions })
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+"_parts SET token = token + 20 WHERE part >= 0"); err != nil {
			t.Fatal(err)
		}
		until(t, "the relay is stale", func() bool { return stale.Load() > 0 })
		ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "a"}, outbox.Message{Topic: "t", Key: "b"})
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
		until(t, "the relay has all again", func() bool { return relay.Stats().Partitions == outbox.Partitions })
	})
}
