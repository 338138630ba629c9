package outbox_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

// A run ends while a message is under way. The broker confirms the message, and nobody can mark it: a transaction in doubt has completed
// the message. The next run marks the message, and does not send it again.
func TestALockedMessageIsNotSentAgainByTheNextRun(t *testing.T) {
	t.Parallel()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			d := doubtful(t, kind)
			rename := func(from, to string) {
				if err := d.exec(context.Background(), d.db, "ALTER TABLE "+from+" RENAME TO "+to); err != nil {
					t.Error(err)
				}
			}
			var sent, locked atomic.Int64
			ended := make(chan func(), 1)
			p := publish(func(ctx context.Context, m outbox.Message) error {
				if sent.Add(1) == 1 {
					<-ctx.Done() // the run has ended
					rename(d.name+"_away", d.name)
					ended <- d.doubt(t, "late", func(tx dialect.DB) error { return d.table.Complete(context.Background(), tx, m.ID) })
				}
				return nil
			})
			ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "k"})
			d.run(t, newClient(t), p, outbox.RelayOptions{Timeout: 2 * time.Second, OnError: func(err error) {
				if strings.Contains(err.Error(), "mark message") {
					locked.Add(1)
				}
			}})
			until(t, "the message is under way", func() bool { return sent.Load() == 1 })
			rename(d.name, d.name+"_away")
			end := sync.OnceFunc(<-ended)
			defer end()
			until(t, "the next run finds the message locked", func() bool { return locked.Load() > 0 })
			end()
			next := d.enqueue(t, outbox.Message{Topic: "t", Key: "k"})
			until(t, "the key goes on", func() bool { return d.is(t, outbox.Confirmed, next...) })
			if n := sent.Load(); n != 2 || !d.is(t, outbox.Done, ids...) {
				t.Errorf("%d sendings of 2 messages", n)
			}
		})
	}
}

// A database that takes a fifth of Timeout for each UPDATE is slow, and no transaction has locked anything.
func TestASlowUpdateIsNoLock(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.PostgreSQL)
	ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "k"}, outbox.Message{Topic: "t", Key: "k"})
	for _, query := range []string{
		"CREATE FUNCTION " + d.name + "_slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END'",
		"CREATE TRIGGER slow AFTER UPDATE ON " + d.name + " FOR EACH STATEMENT EXECUTE FUNCTION " + d.name + "_slow()",
	} {
		if _, err := d.db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	p := publish(func(context.Context, outbox.Message) error { return nil })
	d.run(t, newClient(t), p, outbox.RelayOptions{Timeout: time.Second})
	until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
}

// A failover of the database has lost the commit of a message that is under way, and another message has got its number. The other message is sent.
func TestANumberOfAnotherMessage(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		const first, second = `a "quoted" \ ID's {1}, with é`, "another"
		under, release := make(chan string, 10), make(chan struct{})
		p := publish(func(_ context.Context, m outbox.Message) error {
			under <- m.ID
			if m.ID == first {
				<-release
			}
			return nil
		})
		d.enqueue(t, outbox.Message{ID: first, Topic: "t", Key: "k"})
		d.run(t, newClient(t), p, outbox.RelayOptions{})
		if id := next(t, "the message is under way", under); id != first {
			t.Fatal(id)
		}
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET id = ? WHERE id = ?", second, first); err != nil {
			t.Fatal(err)
		}
		close(release)
		if id := next(t, "the other message is sent", under); id != second {
			t.Fatal(id)
		}
		last := d.enqueue(t, outbox.Message{ID: first, Topic: "t", Key: "k"})
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, second) && d.is(t, outbox.Confirmed, last...) })
	})
}
