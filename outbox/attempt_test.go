package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

// A broker goes away after it has confirmed another message. The first failure counts, and no failure after that does: nothing
// is confirmed between them.
func TestAnOutageCountsOnce(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	began, confirmed := make(chan struct{}), make(chan struct{})
	var tries atomic.Int64
	p := publish(func(_ context.Context, m outbox.Message) error {
		if m.ID == "other" {
			return nil
		}
		n := tries.Add(1)
		if n == 1 {
			close(began)
			<-confirmed
		}
		if n < 10 {
			return errors.New("the connection is lost")
		}
		return nil
	})
	d.enqueue(t, outbox.Message{ID: "lost", Topic: "t", Key: "a"})
	d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 2})
	next(t, "the message is under way", began)
	d.enqueue(t, outbox.Message{ID: "other", Topic: "t", Key: "b"})
	until(t, "the other message is confirmed", func() bool { return d.is(t, outbox.Confirmed, "other") })
	close(confirmed)
	until(t, "confirmed or dead", func() bool { return d.is(t, outbox.Confirmed, "lost") || d.is(t, outbox.Dead, "lost") })
	if e, err := d.table.Status(t.Context(), d.db, "lost"); err != nil || e.State != outbox.Confirmed || e.Attempt != 1 {
		t.Errorf("%v after %d attempts and %d tries, %v", e.State, e.Attempt, tries.Load(), err)
	}
}

// A message that fails each time, while the broker confirms others in between, ends dead.
func TestAMessageThatTheBrokerDropsIsDead(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	p := publish(func(_ context.Context, m outbox.Message) error {
		if m.ID == "bad" {
			return errors.New("the connection is lost")
		}
		return nil
	})
	d.enqueue(t, outbox.Message{ID: "bad", Topic: "t", Key: "a"})
	d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 5})
	until(t, "dead", func() bool { d.enqueue(t, outbox.Message{Topic: "t", Key: "b"}); return d.is(t, outbox.Dead, "bad") })
}
