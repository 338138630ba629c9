package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/outbox"
)

// status returns a message, which has to be there.
func (d *database) status(t *testing.T, id string) outbox.Entry {
	t.Helper()
	e, err := d.table.Status(t.Context(), d.db, id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// complete marks messages as done.
func (d *database) complete(t *testing.T, ids ...string) {
	t.Helper()
	if err := d.table.Complete(t.Context(), d.db, ids...); err != nil {
		t.Error(err)
	}
}

// A consumer may reply before the relay has marked the confirm, and while a sending fails. The relay goes on with the
// key, and the message stays done.
func TestACompletionBeforeTheConfirm(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var calls atomic.Int64
		p := publish(func(_ context.Context, m outbox.Message) error {
			calls.Add(1)
			d.complete(t, m.ID)
			switch m.ID {
			case "lost":
				return errors.New("the confirm did not arrive")
			case "last":
				return fmt.Errorf("%w: but the consumer has it", outbox.ErrRefused)
			}
			return nil
		})
		ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "a"}, outbox.Message{ID: "lost", Topic: "t", Key: "a"}, outbox.Message{Topic: "t", Key: "a"},
			outbox.Message{ID: "last", Topic: "t", Key: "b"}, outbox.Message{Topic: "t", Key: "b"})
		relay, stop := d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 1, Rescan: time.Hour, OnError: func(err error) {
			if !strings.Contains(err.Error(), "confirm did not arrive") && !errors.Is(err, outbox.ErrRefused) {
				t.Error(err)
			}
		}})
		until(t, "all are done", func() bool { return d.is(t, outbox.Done, ids...) })
		stop()
		if calls.Load() != 5 || !d.is(t, outbox.Done, ids...) {
			t.Error(calls.Load(), "sendings")
		}
		if is := relay.Stats(); is.Dead != 0 {
			t.Errorf("%+v", is)
		}
	})
}

// Completions that are repeated, unknown or rolled back.
func TestComplete(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		ids := d.enqueue(t, outbox.Message{ID: "a", Topic: "t"}, outbox.Message{ID: "b", Topic: "t"}, outbox.Message{ID: "c", Topic: "t"})
		tx, err := d.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.table.Complete(t.Context(), tx, "a"); err != nil {
			t.Error(err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if !d.is(t, outbox.Pending, "a") {
			t.Error("a rolled back completion is there")
		}
		d.complete(t, "a")
		d.complete(t, "b", "a", "b")
		d.complete(t, "b", "a")
		if err := d.table.Complete(t.Context(), d.db, "c", "gone"); !errors.Is(err, outbox.ErrUnknown) || !strings.Contains(err.Error(), `"gone"`) {
			t.Error(err)
		}
		if !d.is(t, outbox.Done, ids...) {
			t.Error("not done")
		}
		if err := d.table.Requeue(t.Context(), d.db, "a"); !errors.Is(err, outbox.ErrNotDead) {
			t.Error(err)
		}
		for _, n := range []int{0, 1001} {
			if err := d.table.Complete(t.Context(), d.db, make([]string, n)...); !errors.Is(err, pawl.ErrInvalid) {
				t.Error(err)
			}
		}
		p := publish(func(context.Context, outbox.Message) error { return nil })
		for _, resend := range []time.Duration{-1, time.Millisecond, 10_000 * time.Hour} {
			if _, err := d.table.Relay(newClient(t), d.db, p, &outbox.RelayOptions{Resend: resend}); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "RelayOptions.Resend") {
				t.Error(err)
			}
		}
	})
}

// A dead message that the consumer has all the same is done, and its key goes on.
func TestACompletionOfADeadMessage(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.ID == "a1" {
				return outbox.ErrRefused
			}
			return nil
		})
		d.enqueue(t, outbox.Message{ID: "a1", Topic: "t", Key: "a"}, outbox.Message{ID: "a2", Topic: "t", Key: "a"})
		d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 1, Rescan: 50 * time.Millisecond})
		until(t, "dead", func() bool { return d.is(t, outbox.Dead, "a1") })
		d.complete(t, "a1")
		until(t, "the key goes on", func() bool { return d.is(t, outbox.Confirmed, "a2") })
		if !d.is(t, outbox.Done, "a1") {
			t.Error("not done")
		}
	})
}

// A message that is not done is sent again with longer and longer waits. A refused repeat is no attempt, and the later
// messages of the key wait for no completion. After the retention only messages that are done are deleted.
func TestResend(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var sent order
		var attempts atomic.Int64
		p := publish(func(_ context.Context, m outbox.Message) error {
			sent.add(m.ID)
			if m.ID == "a1" {
				attempts.Store(int64(m.Attempt))
				if m.Attempt > 1 {
					return fmt.Errorf("%w: it is there", outbox.ErrRefused)
				}
			}
			return nil
		})
		d.enqueue(t, outbox.Message{ID: "a1", Topic: "t", Key: "a"}, outbox.Message{ID: "a2", Topic: "t", Key: "a"}, outbox.Message{ID: "b", Topic: "t"})
		client := newClient(t)
		opts := outbox.RelayOptions{MaxAttempts: 1, Window: 4, Resend: time.Second}
		_, stop := d.run(t, client, p, opts)
		until(t, "confirmed", func() bool {
			return len(slices.Compact(slices.Sorted(slices.Values(sent.all())))) == 3 // some of them twice on a busy machine
		})
		d.complete(t, "b")
		until(t, "repeated twice", func() bool { return d.status(t, "a1").Repeats >= 2 && d.status(t, "a2").Repeats >= 2 })
		e, n := d.status(t, "a1"), attempts.Load() // a further repeat may begin, and not be counted yet
		if e.State != outbox.Confirmed || !strings.Contains(e.Reason, "it is there") || n != int64(e.Repeats)+1 && n != int64(e.Repeats)+2 {
			t.Errorf("%+v, %d attempts", e, n)
		}
		d.complete(t, "a1")
		stop()
		times := make(map[string]int)
		for _, id := range sent.all() {
			times[id]++
		}
		if times["b"] > 2 || times["a1"] < 3 || times["a1"] > 4 {
			t.Error(times)
		}
		before := len(sent.all())
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET changed = changed - 8 * 86400"); err != nil {
			t.Fatal(err)
		}
		d.run(t, client, p, opts)
		until(t, "those that are done are deleted", func() bool {
			_, a := d.table.Status(t.Context(), d.db, "a1")
			_, b := d.table.Status(t.Context(), d.db, "b")
			return errors.Is(a, outbox.ErrUnknown) && errors.Is(b, outbox.ErrUnknown)
		})
		until(t, "the other is sent again", func() bool { return len(sent.all()) > before })
		if again := slices.Compact(sent.all()[before:]); !slices.Equal(again, []string{"a2"}) { // twice on a busy machine
			t.Error(again)
		}
		d.complete(t, "a2")
	})
}

// A message that was dead and is pending again waits for its broker. The repeats of its key and of all others go on meanwhile.
func TestResendBesideARequeuedMessage(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.ID == "a1" {
				return fmt.Errorf("%w: it is full", outbox.ErrBlocked)
			}
			return nil
		})
		d.enqueue(t, outbox.Message{ID: "a1", Topic: "t", Key: "a"}, outbox.Message{ID: "a2", Topic: "t", Key: "a"}, outbox.Message{ID: "b", Topic: "t", Key: sameAs("a")})
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = 2, changed = changed - 1000 WHERE id <> 'a1'"); err != nil {
			t.Fatal(err)
		}
		d.run(t, newClient(t), p, outbox.RelayOptions{Resend: time.Second})
		until(t, "repeated twice", func() bool { return d.status(t, "a2").Repeats >= 2 && d.status(t, "b").Repeats >= 2 })
		if !d.is(t, outbox.Pending, "a1") {
			t.Error("the message does not wait")
		}
	})
}

// The broker takes no messages of one topic, and there are more repeats of that topic than the relay reads at once. The repeats of
// another topic go on.
func TestResendBesideBlockedRepeats(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.Topic == "full" {
				return fmt.Errorf("%w: it is full", outbox.ErrBlocked)
			}
			return nil
		})
		d.enqueue(t, outbox.Message{ID: "a", Topic: "full", Key: "a"}, outbox.Message{ID: "b", Topic: "full", Key: sameAs("a")},
			outbox.Message{ID: "c", Topic: "t", Key: sameAs(sameAs("a"))})
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = 2, changed = changed - 1000"); err != nil {
			t.Fatal(err)
		}
		d.run(t, newClient(t), p, outbox.RelayOptions{Resend: time.Second, Window: 4})
		until(t, "repeated twice", func() bool { return d.status(t, "c").Repeats >= 2 })
		for _, id := range []string{"a", "b"} {
			if e := d.status(t, id); e.State != outbox.Confirmed || e.Repeats != 0 {
				t.Errorf("a sending that the broker did not take was counted: %+v", e)
			}
		}
	})
}

// The repeats that are in memory are bounded by bytes, too.
func TestResendInABoundedMemory(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var under, most atomic.Int64
		p := publish(func(context.Context, outbox.Message) error {
			defer under.Add(-1)
			for n := under.Add(1); n > most.Load(); {
				most.Store(n)
			}
			<-time.After(50 * time.Millisecond) // so that all that were read at once are under way at once
			return nil
		})
		var ids []string
		for key := "k"; len(ids) < 12; key = sameAs(key) {
			ids = append(ids, d.enqueue(t, outbox.Message{Topic: "t", Key: key, Payload: make([]byte, 100)})...)
		}
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = 2, changed = changed - 100000"); err != nil {
			t.Fatal(err)
		}
		d.run(t, newClient(t), p, outbox.RelayOptions{Resend: time.Hour, WindowBytes: 1 << 10})
		until(t, "all are repeated", func() bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return d.status(t, id).Repeats == 0 })
		})
		if most := most.Load(); most < 2 || most > 3 {
			t.Errorf("%d messages at once in a quarter of 1 KiB", most)
		}
	})
}
