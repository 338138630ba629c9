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

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// A key's message whose transaction was open for longer than Lag is sent before the later messages of its key. The producers
// serialise on the key: the later message is enqueued after the commit of the earlier one.
func TestALateCommitKeepsTheOrderOfItsKey(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == dialect.SQLite {
			return // whose file has one writer, so that no transaction overtakes another
		}
		var sent order
		relayed := publish(func(_ context.Context, m outbox.Message) error { sent.add(m.ID); return nil })
		_, stop := d.run(t, newClient(t), relayed, outbox.RelayOptions{Lag: time.Nanosecond, Rescan: time.Hour})
		for round := range 5 {
			tx, err := d.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			early, late := fmt.Sprint("k early ", round), fmt.Sprint("k late ", round)
			if _, err := d.table.Enqueue(t.Context(), tx, outbox.Message{ID: early, Topic: "t", Key: "k"}); err != nil {
				t.Fatal(err)
			}
			for i := range 10 { // whose numbers are larger, in the partition of the key
				ids := d.enqueue(t, outbox.Message{ID: fmt.Sprintf("other %d %d", round, i), Topic: "t", Key: sameAs("k")})
				until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			d.enqueue(t, outbox.Message{ID: late, Topic: "t", Key: "k"})
			until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, early, late) })
		}
		stop()
		of := slices.DeleteFunc(sent.all(), func(id string) bool { return !strings.HasPrefix(id, "k") })
		for i := 0; i < len(of); i += 2 {
			if !strings.HasPrefix(of[i], "k early") {
				t.Fatal("a later message of the key came first: ", of)
			}
		}
	})
}

// A publisher that panics or never returns costs attempts of its message, and neither the process nor other keys.
func TestAPublisherThatPanicsOrHangs(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	hangs := make(chan struct{})
	p := publish(func(_ context.Context, m outbox.Message) error {
		switch m.Key {
		case "panics":
			panic("a fault of the publisher")
		case "hangs":
			<-hangs
		}
		return nil
	})
	d.enqueue(t, outbox.Message{ID: "p", Topic: "t", Key: "panics"}, outbox.Message{ID: "h", Topic: "t", Key: "hangs"})
	_, stop := d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 2, Timeout: 100 * time.Millisecond})
	for i := 0; !d.is(t, outbox.Dead, "p", "h"); i++ {
		id := d.enqueue(t, outbox.Message{Topic: "t", Key: fmt.Sprint(i % 64)})
		until(t, "the others are confirmed", func() bool { return d.is(t, outbox.Confirmed, id...) })
	}
	stop() // which returns, though a call of the publisher does not
	close(hangs)
	for id, want := range map[string]string{"p": "a fault of the publisher", "h": "did not return"} {
		if e, err := d.table.Status(t.Context(), d.db, id); err != nil || !strings.Contains(e.Reason, want) {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// Messages that wait after a failure fill no memory that other keys need.
func TestFailingMessagesStopNoOtherKey(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.Topic == "broken" {
				return errors.New("no such exchange")
			}
			return nil
		})
		var broken []outbox.Message
		for i := range 300 {
			broken = append(broken, outbox.Message{Topic: "broken", Key: []string{"", sameAs("x"), sameAs("y")}[i%3]})
		}
		d.enqueue(t, broken...)
		opts := outbox.RelayOptions{Window: 2, Poll: 20 * time.Millisecond, Backoff: time.Hour, MaxBackoff: time.Hour}
		d.runAs(t, newClient(t), p, opts)
		var ids []string
		for i := range 32 {
			ids = append(ids, d.enqueue(t, outbox.Message{Topic: "t", Key: fmt.Sprint(i)})...)
		}
		until(t, "the others are confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
	})
}

// A broker that is away for long makes no message dead, because no sending reaches it. All is sent when the broker is back.
func TestABrokerThatIsAwayKillsNoMessage(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var away atomic.Bool
		var tries atomic.Int64
		away.Store(true)
		p := publish(func(context.Context, outbox.Message) error {
			if away.Load() {
				tries.Add(1)
				return errors.New("connection refused")
			}
			return nil
		})
		var ids []string
		for i := range 20 {
			ids = append(ids, d.enqueue(t, outbox.Message{Topic: "t", Key: fmt.Sprint(i % 10)})...)
		}
		d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 3})
		until(t, "many tries", func() bool { return tries.Load() > 300 })
		away.Store(false)
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
	})
}

// A row that no version of Enqueue wrote ends dead, and its partition goes on.
func TestARowOfAnotherProgram(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "k"}, outbox.Message{Topic: "t", Key: sameAs("k")})
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET headers = ? WHERE id = ?", []byte("no JSON"), ids[0]); err != nil {
			t.Fatal(err)
		}
		d.run(t, newClient(t), publish(func(context.Context, outbox.Message) error { return nil }), outbox.RelayOptions{MaxAttempts: 2})
		until(t, "the other is confirmed", func() bool { return d.is(t, outbox.Confirmed, ids[1]) })
		until(t, "dead", func() bool { return d.is(t, outbox.Dead, ids[0]) })
		dead, err := d.table.DeadMessages(t.Context(), d.db, 10)
		if err != nil || len(dead) != 1 || !strings.Contains(dead[0].Reason, "headers") {
			t.Errorf("%+v, %v", dead, err)
		}
	})
}

// The database cannot keep the reason why the broker refuses a message, because the encoding lacks a character. The message ends dead all the same.
func TestAReasonThatTheDatabaseCannotKeep(t *testing.T) {
	t.Parallel()
	for encoding, url := range testservers.PostgresEncodedURLs(t) {
		t.Run(encoding, func(t *testing.T) {
			d := newDatabaseAt(t, dialect.PostgreSQL, url)
			ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "k"}, outbox.Message{Topic: "t", Key: "k"})
			p := publish(func(_ context.Context, m outbox.Message) error {
				return fmt.Errorf("%w: %s, \"é\"", outbox.ErrRefused, map[bool]string{true: "5 €", false: "5 £"}[m.ID == ids[0]])
			})
			d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 2, ContinueKeys: true})
			for i, want := range []string{`5 \u20ac, \"\u00e9\"`, `5 £, "é"`} {
				until(t, "dead", func() bool { return d.is(t, outbox.Dead, ids[i]) })
				if e, err := d.table.Status(t.Context(), d.db, ids[i]); err != nil || !strings.Contains(e.Reason, want) {
					t.Errorf("%+v, %v", e, err)
				}
			}
		})
	}
}

// A row whose ID another program has emptied is sent as well.
func TestARowWithoutAnID(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		id := d.enqueue(t, outbox.Message{Topic: "t"})[0]
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET id = ? WHERE id = ?", "", id); err != nil {
			t.Fatal(err)
		}
		var sent atomic.Int64
		d.run(t, newClient(t), publish(func(context.Context, outbox.Message) error { sent.Add(1); return nil }), outbox.RelayOptions{})
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, "") })
		if n := sent.Load(); n != 1 {
			t.Errorf("sent %d times", n)
		}
	})
}

// One queue of a broker is full, and the broker confirms messages for others. The broker fails until the queue takes its message, however
// seldom that message is tried.
func TestABrokerThatFailsForOneQueue(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	var free atomic.Bool
	p := publish(func(_ context.Context, m outbox.Message) error {
		if m.Topic == "full" && !free.Load() {
			return outbox.ErrBlocked
		}
		return nil
	})
	r, _ := d.runAs(t, newClient(t), p, outbox.RelayOptions{Poll: 10 * time.Millisecond, Backoff: 100 * time.Millisecond, MaxBackoff: 400 * time.Millisecond})
	confirmed := func(topic string) {
		t.Helper()
		ids := d.enqueue(t, outbox.Message{Topic: topic, Key: topic})
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
	}
	confirmed("free")
	if r.Stats().Failing {
		t.Error("the broker fails from the start")
	}
	d.enqueue(t, outbox.Message{Topic: "full", Key: "full"})
	until(t, "the queue is full", func() bool { return r.Stats().Blocked > 0 })
	for r.Stats().Blocked < 5 {
		confirmed("free")
		if !r.Stats().Failing {
			t.Fatal("the queue is still full")
		}
	}
	free.Store(true)
	confirmed("full")
	until(t, "the broker has recovered", func() bool { return !r.Stats().Failing })
}
