package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

// Many keys wait after a failure, so that a read of all their messages takes longer than Rescan. The messages behind these are
// sent all the same. A full pass that is interrupted as soon as Rescan is over would read one of their pages each time.
func TestABacklogBehindManyFailingKeys(t *testing.T) {
	d := newDatabase(t, dialect.SQLite)
	const failing, others = 60, 1500
	var batch []outbox.Message
	for i := range failing {
		batch = append(batch, outbox.Message{Topic: "broken", Key: inPartition("k", i)})
	}
	for range 200 {
		d.enqueue(t, batch...)
	}
	batch = nil
	for i := range others {
		batch = append(batch, outbox.Message{Topic: "t", Key: inPartition("k", failing+i)})
	}
	d.enqueue(t, batch[:750]...)
	ids := d.enqueue(t, batch[750:]...)
	p := publish(func(_ context.Context, m outbox.Message) error {
		if m.Topic == "broken" {
			return errors.New("no such exchange")
		}
		return nil
	})
	opts := outbox.RelayOptions{Window: 1, Poll: 20 * time.Millisecond, Rescan: 50 * time.Millisecond, Backoff: time.Hour, MaxBackoff: time.Hour}
	_, stop := d.runAs(t, newClient(t), p, opts)
	until(t, "the last is confirmed", func() bool { return d.is(t, outbox.Confirmed, ids[len(ids)-1]) })
	stop()
}

// inPartition returns the key of a number in the partition of a key.
func inPartition(key string, number int) string {
	for i := 0; ; i++ {
		if other := fmt.Sprint(number, "'", i); partition(other) == partition(key) {
			return other
		}
	}
}
