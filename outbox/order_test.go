package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

// A transaction stays open for long, and the next page after its commit has no message of its key. The next message of the key waits for
// that transaction's message all the same. Another key of the partition is halted, with more messages than a look takes.
func TestALongTransactionKeepsTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	for kind, is := range map[dialect.Dialect]struct{ lag, open time.Duration }{
		dialect.PostgreSQL: {50 * time.Millisecond, 500 * time.Millisecond},
		dialect.MySQL:      {time.Hour, 3 * time.Second}, // so that the floor is lifted
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			key, bad := "k", sameAs("k")
			other := sameAs(bad)
			var sent order
			p := publish(func(_ context.Context, m outbox.Message) error {
				if m.ID == "bad" {
					return outbox.ErrRefused
				}
				if m.Key == key {
					sent.add(m.ID)
				}
				return nil
			})
			d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 1, Lag: is.lag, Rescan: time.Hour})
			ids := d.enqueue(t, outbox.Message{ID: "bad", Topic: "t", Key: bad})
			until(t, "a key is halted", func() bool { return d.is(t, outbox.Dead, ids...) })
			for range 5 {
				d.enqueue(t, slices.Repeat([]outbox.Message{{Topic: "t", Key: bad}}, 1000)...)
			}
			tx, err := d.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
			if _, err := d.table.Enqueue(t.Context(), tx, outbox.Message{ID: "first", Topic: "t", Key: key}, outbox.Message{ID: "alone", Topic: "t"}); err != nil {
				t.Fatal(err)
			}
			next := func() {
				t.Helper()
				ids := d.enqueue(t, outbox.Message{Topic: "t", Key: other})
				until(t, "a further message is confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
			}
			for began := time.Now(); time.Since(began) < is.open; {
				next()
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				next()
			}
			last := d.enqueue(t, outbox.Message{ID: "last", Topic: "t", Key: key})
			until(t, "the last message is confirmed", func() bool { return d.is(t, outbox.Confirmed, last...) })
			if got := fmt.Sprint(sent.all()); got != "[first last]" {
				t.Error(got)
			}
			if kind == dialect.MySQL { // the transaction was open for less than Lag
				until(t, "a message without a key is confirmed", func() bool { return d.is(t, outbox.Confirmed, "alone") })
			}
		})
	}
}

// A relay that never comes to the end of its backlog still reads all pending messages once in Rescan. So a requeued message is sent.
func TestRescanInABacklog(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var refuses atomic.Bool
		refuses.Store(true)
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.ID == "requeued" {
				if refuses.Load() {
					return outbox.ErrRefused
				}
				return nil
			}
			<-time.After(time.Millisecond) // a slow broker, so that there is a backlog
			return nil
		})
		d.enqueue(t, outbox.Message{ID: "requeued", Topic: "t", Key: "k"})
		d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 1, Window: 1, Rescan: 50 * time.Millisecond})
		until(t, "dead", func() bool { return d.is(t, outbox.Dead, "requeued") })
		var keys []string
		for i := 0; len(keys) < 400; i++ {
			if key := fmt.Sprint(i); partition(key) == partition("k") {
				keys = append(keys, key)
			}
		}
		behind := func() (n int) {
			if err := d.db.QueryRow("SELECT COUNT(*) FROM " + d.name + " WHERE state = 0").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		requeued := false
		until(t, "the requeued message is sent", func() bool {
			for behind() < 200 {
				batch := make([]outbox.Message, len(keys))
				for i, key := range keys {
					batch[i] = outbox.Message{Topic: "t", Key: key}
				}
				d.enqueue(t, batch...)
			}
			if !requeued {
				refuses.Store(false)
				if err := d.table.Requeue(t.Context(), d.db, "requeued"); err != nil {
					t.Fatal(err)
				}
				requeued = true
			}
			return d.is(t, outbox.Confirmed, "requeued")
		})
	})
}

// A transaction in doubt has completed more messages than a relay can try to mark in its time. The relay stays in its run, and
// sends the messages of others. That is so for confirmed and for refused repeats, and for messages that are refused at first.
func TestManyCompletionsInDoubt(t *testing.T) {
	t.Parallel()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			d := doubtful(t, kind)
			t.Run("confirmed repeats", func(t *testing.T) { manyInDoubt(t, d, outbox.Confirmed, nil) })
			t.Run("refused repeats", func(t *testing.T) { manyInDoubt(t, d, outbox.Confirmed, outbox.ErrRefused) })
			t.Run("refused", func(t *testing.T) { manyInDoubt(t, d, outbox.Pending, outbox.ErrRefused) })
		})
	}
}

// manyInDoubt completes messages of a state in a transaction in doubt. The broker says of each the same.
func manyInDoubt(t *testing.T, d *database, state outbox.State, says error) {
	t.Parallel()
	d = newDatabaseAt(t, d.dialect, d.source)
	var ids []string
	key := "k"
	for i := range 12 {
		ids = append(ids, fmt.Sprint("locked ", i))
		d.enqueue(t, outbox.Message{ID: ids[i], Topic: "t", Key: key})
		key = sameAs(key)
	}
	d.enqueue(t, outbox.Message{ID: "other", Topic: "t", Key: key})
	if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = ?, changed = changed - 100000000", int(state)); err != nil {
		t.Fatal(err)
	}
	end := d.doubt(t, "many", func(tx dialect.DB) error { return d.table.Complete(t.Context(), tx, ids...) })
	var others, tries atomic.Int64
	p := publish(func(_ context.Context, m outbox.Message) error {
		if m.ID == "other" {
			others.Add(1)
			return nil
		}
		tries.Add(1)
		return says
	})
	defer end()
	_, stop := d.run(t, newClient(t), p, outbox.RelayOptions{Resend: time.Second, Window: 32, Timeout: 2 * time.Second, OnError: func(err error) {
		if strings.Contains(err.Error(), "write results") {
			t.Error(err)
		}
	}})
	until(t, "another message is repeated", func() bool { return others.Load() > 1 && tries.Load() >= int64(2*len(ids)) })
	stop()
}
