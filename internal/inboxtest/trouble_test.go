package inboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/internal/runtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// world is a database, a broker and a consumer in this process.
type world struct {
	*database
	broker
	opts inbox.ConsumerOptions
	mu   sync.Mutex
	said []string // by OnError
	ran  map[string]int
	fail func(m inbox.Message, run int) error
}

// each runs a test with every broker, on PostgreSQL.
func each(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for kind, is := range brokers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, kind, is.shared(t)))
		})
	}
}

// newWorld makes a stream, or a queue, in a server of a kind of brokers.
func newWorld(t *testing.T, kind string, server *testservers.Server) *world {
	t.Helper()
	w := &world{database: newDatabase(t, dialect.PostgreSQL), ran: make(map[string]int), fail: func(inbox.Message, int) error { return nil }}
	w.opts = inbox.ConsumerOptions{Backoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond, MaxAttempts: 4, OnError: func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.said = append(w.said, err.Error())
	}}
	var err error
	if w.broker, err = brokers[kind].connect(server.Addr, w.name); err != nil {
		t.Fatal(err)
	}
	if r, ok := w.broker.(*rabbitBroker); ok {
		r.server = server
	}
	t.Cleanup(w.close)
	return w
}

// told waits until the consumer has told an error with a text.
func (w *world) told(t *testing.T, text string) {
	t.Helper()
	until(t, "the consumer tells of "+text, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.said, func(one string) bool { return strings.Contains(one, text) })
	})
}

// run runs the consumer until the test calls stop, or ends.
func (w *world) run(t *testing.T) (stop func()) {
	t.Helper()
	box, err := inbox.New("test", &inbox.Options{Retention: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	source, err := w.source()
	if err != nil {
		t.Fatal(err)
	}
	c, err := box.Consumer(w.db, w.store, source, func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
		w.mu.Lock()
		w.ran[m.ID]++
		run := w.ran[m.ID]
		w.mu.Unlock()
		return errors.Join(w.effect(ctx, tx, m), w.fail(m, run))
	}, &w.opts)
	if err != nil {
		t.Fatal(err)
	}
	return runtest.Start(t, c.Run)
}

func (w *world) send(t *testing.T, messages ...inbox.Message) {
	t.Helper()
	if err := w.publish(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
}

// took waits until so many messages took effect, and returns them.
func (w *world) took(t *testing.T, n int) []string {
	t.Helper()
	var all []string
	until(t, fmt.Sprintf("%d effects", n), func() bool {
		var err error
		if all, err = w.effects(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(all) >= n
	})
	return all
}

// idle waits until all messages are settled.
func (w *world) idle(t *testing.T) {
	t.Helper()
	until(t, "all are settled", func() bool { n, err := w.unsettled(t.Context()); return err == nil && n == 0 })
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// The producer gets a reply to each message, also to one whose consumer died between the commit and the reply. A reply that fails is told,
// and keeps no message.
func TestReply(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		replies := make(map[string]int)
		w.opts.Reply = func(_ context.Context, m inbox.Message) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if replies[m.ID]++; m.ID == "k-2" {
				return errors.New("the producer is away")
			}
			return nil
		}
		box, err := inbox.New("test", &inbox.Options{Retention: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := w.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
		committed := message("k", 1)
		_, err = box.Do(t.Context(), w.store.In(tx), committed, func(ctx context.Context) error { return w.effect(ctx, tx, committed) })
		if err := errors.Join(err, tx.Commit()); err != nil { // and then the process dies
			t.Fatal(err)
		}
		w.send(t, committed, message("k", 2), message("k", 3))
		w.run(t)
		w.took(t, 3)
		w.idle(t)
		w.mu.Lock()
		defer w.mu.Unlock()
		if replies["k-1"] < 1 || replies["k-2"] < 1 || replies["k-3"] < 1 || w.ran["k-1"] > 0 {
			t.Errorf("replies %v, runs %v", replies, w.ran)
		}
		if !strings.Contains(strings.Join(w.said, "\n"), `reply to message "k-2": the producer is away`) {
			t.Error(w.said)
		}
	})
}

// Poison becomes a dead letter with its reason, and so does a message that is too old, refused, or without an ID. Other keys go on, and a key
// goes on behind its dead letter.
func TestDeadLetters(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.fail = func(m inbox.Message, run int) error {
			switch {
			case m.ID == "a-1":
				return errors.New("poison\nin the payload")
			case m.ID == "b-1":
				return fmt.Errorf("no such order: %w", inbox.ErrRefused)
			case m.ID == "c-1" && run < 4:
				return errors.New("bad luck")
			}
			return nil
		}
		w.run(t)
		old, nameless := message("d", 1), message("e", 1)
		old.Time, nameless.ID = time.Now().Add(-2*time.Hour), ""
		w.send(t, message("a", 1), message("b", 1), message("c", 1), old, nameless, message("a", 2), message("b", 2), message("c", 2), message("d", 2), message("e", 2))
		all := w.took(t, 6)
		w.idle(t)
		if f := slices.Index(all, "c-1") > slices.Index(all, "c-2"); f || len(all) != 6 {
			t.Errorf("effects: %v", all)
		}
		dead, err := w.dead(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for id, why := range map[string]string{"a-1": "failed 4 times", "b-1": "no such order", "d-1": "older than the retention", "": "Message.ID"} {
			if !strings.Contains(dead[id], why) {
				t.Errorf("%q is dead because of %q, want %q", id, dead[id], why)
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(dead) != 4 || w.ran["a-1"] != 4 || w.ran["b-1"] != 1 || w.ran["d-1"] != 0 || w.ran[""] != 0 {
			t.Errorf("dead letters %v, runs %v", dead, w.ran)
		}
	})
}

// A key that fails for long fills the window with its messages. The others go on, and the key is in order at last.
func TestPoisonKey(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		open := make(chan struct{})
		w.opts.Window, w.opts.Workers, w.opts.MaxAttempts = 8, 2, 1_000_000
		w.fail = func(m inbox.Message, _ int) error {
			select {
			case <-open:
				return nil
			default:
				if m.Key == "a" {
					return errors.New("bad luck")
				}
				return nil
			}
		}
		w.run(t)
		for n := 1; n <= 20; n++ {
			w.send(t, message("a", n))
		}
		for n := 1; n <= 20; n++ {
			w.send(t, message("b", n))
		}
		if f := check(w.took(t, 20), 1, 20); f != (faults{}) {
			t.Errorf("others: %+v", f)
		}
		close(open)
		if f := check(w.took(t, 40), 2, 20); f != (faults{}) {
			t.Errorf("at last: %+v", f)
		}
		w.idle(t)
	})
}

// More keys fail than the window has room for. The others go on, and all are in order at last.
func TestManyPoisonKeys(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		open := make(chan struct{})
		w.opts.Window, w.opts.Workers, w.opts.MaxAttempts, w.opts.Backoff, w.opts.MaxBackoff = 8, 2, 1_000_000, 2*time.Second, 2*time.Second
		w.fail = func(m inbox.Message, _ int) error {
			select {
			case <-open:
				return nil
			default:
				if m.Key != "good" {
					return errors.New("bad luck")
				}
				return nil
			}
		}
		w.run(t)
		for n := 1; n <= 2; n++ {
			for key := range 12 {
				w.send(t, message(fmt.Sprint(key), n))
			}
		}
		for n := 1; n <= 20; n++ {
			w.send(t, message("good", n))
		}
		if f := check(w.took(t, 20), 1, 20); f != (faults{}) {
			t.Errorf("others: %+v", f)
		}
		close(open)
		if f := check(w.took(t, 44), 2, 22); f != (faults{}) {
			t.Errorf("at last: %+v", f)
		}
		w.idle(t)
	})
}

// A broker that is frozen, or killed and started again, stops the consumer only meanwhile.
func TestBrokerInTrouble(t *testing.T) {
	for kind, is := range brokers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := is.own(t, is.durable...)
			newWorld(t, kind, server).troubled(t, server)
		})
	}
}

func (w *world) troubled(t *testing.T, server *testservers.Server) {
	w.run(t)
	const rounds = 6
	for n := 1; n <= rounds; n++ {
		var batch []inbox.Message
		for _, key := range []string{"a", "b", "c"} {
			batch = append(batch, message(key, n))
		}
		w.send(t, batch...)
		switch n {
		case 2:
			server.Pause()
			timer := time.NewTimer(2 * hold)
			<-timer.C
			server.Resume()
		case 4:
			server.Kill()
			server.Restart()
			if r, ok := w.broker.(*rabbitBroker); ok {
				r.elect(t)
			}
			until(t, "the broker answers", func() bool { _, err := w.unsettled(t.Context()); return err == nil })
		}
	}
	all := w.took(t, 3*rounds)
	if f := check(all, 3, rounds); f.lost+f.twice > 0 {
		t.Errorf("%+v: %v", f, all)
	}
	w.idle(t)
}

// A consumer that ends gives its messages to another, and is bounded by Grace also if a handler hangs.
func TestShutdown(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		hangs := make(chan struct{})
		var first sync.Once
		w.opts.Grace = 100 * time.Millisecond
		w.fail = func(m inbox.Message, run int) error {
			if m.ID == "a-1" && run == 1 {
				first.Do(func() { close(hangs) })
				<-time.After(300 * time.Millisecond)
				return errors.New("stopped")
			}
			return nil
		}
		stop := w.run(t)
		w.send(t, message("a", 1), message("a", 2), message("b", 1))
		<-hangs
		stop()
		w.run(t)
		all := w.took(t, 3)
		w.idle(t)
		if f := check(all, 2, 2); f.lost != 1 || f.twice+f.disordered > 0 {
			t.Errorf("%+v: %v", f, all)
		}
	})
}

// TestGivenBackComesFirst: a message that a consumer gave back at its end runs before later messages.
func TestGivenBackComesFirst(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		runs := make(chan struct{})
		w.fail = func(_ inbox.Message, run int) error {
			if run == 1 {
				close(runs)
				return errors.New("stopped")
			}
			return nil
		}
		w.opts.Backoff, w.opts.MaxBackoff = time.Hour, time.Hour
		stop := w.run(t)
		w.send(t, message("a", 1))
		<-runs
		stop()
		w.fail = func(inbox.Message, int) error { return nil }
		w.send(t, message("a", 2))
		w.run(t)
		if all := w.took(t, 2); !slices.Equal(all, []string{"a-1", "a-2"}) {
			t.Error(all)
		}
		w.idle(t)
	})
}

// A database that is down counts no attempt.
func TestDatabaseDown(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		server := testservers.Postgres(t)
		d := newDatabaseAt(t, dialect.PostgreSQL, testservers.PostgresURL(server.Addr))
		w.database = d
		w.run(t)
		w.send(t, message("a", 1))
		w.took(t, 1)
		server.Kill()
		w.send(t, message("a", 2))
		until(t, "many runs failed", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.said) > 10 })
		server.Restart()
		if f := check(w.took(t, 2), 1, 2); f != (faults{}) {
			t.Errorf("%+v", f)
		}
		if dead, err := w.dead(t.Context()); err == nil && len(dead) > 0 {
			t.Errorf("dead letters: %v", dead)
		}
	})
}
