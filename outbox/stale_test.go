package outbox_test

import (
	"context"
	"errors"
	"testing"

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
		for err := range stale {
			if errors.Is(err, fence.ErrStale) {
				break
			}
		}
		stop()
		if !d.is(t, outbox.Pending, ids...) {
			t.Error("a stale owner has marked a message")
		}
	})
}
