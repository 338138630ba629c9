package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/outbox"
)

// Messages of every state that Purge takes are purged while relays run. Every message is sent or was dead, the first sendings of a key
// are in order, and nothing stops.
func TestPurgeBesideRelays(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		const keys, rounds = 24, 40
		var sent order
		var refused atomic.Int64
		p := publish(func(_ context.Context, m outbox.Message) error {
			n, err := strconv.Atoi(string(m.Payload))
			if err != nil {
				return err
			}
			switch {
			case n%10 == 7: // it ends dead, and its key waits for the purge
				refused.Add(1)
				return outbox.ErrRefused
			case n%10 == 3 && m.Attempt == 1:
				return fmt.Errorf("once: %w", outbox.ErrRefused)
			}
			sent.add(m.ID)
			return nil
		})
		eng := memengine.New()
		for range 2 {
			client, err := pawl.New(t.Context(), eng, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // nothing is lost
			d.run(t, client, p, outbox.RelayOptions{MaxAttempts: 2, Hold: 8, Window: 8, Rescan: 50 * time.Millisecond})
		}
		purged := d.purges(t)
		var all []string
		for n := range rounds {
			var batch []outbox.Message
			for key := range keys {
				batch = append(batch, outbox.Message{ID: fmt.Sprintf("%d-%d", key, n), Topic: "t", Key: strconv.Itoa(key), Payload: []byte(strconv.Itoa(n))})
			}
			all = append(all, d.enqueue(t, batch...)...)
		}
		until(t, "all is purged", func() bool {
			var left int
			err := d.db.QueryRow("SELECT COUNT(*) FROM " + d.name).Scan(&left)
			return err == nil && left == 0
		})
		if n := purged(); n != keys*rounds {
			t.Errorf("%d of %d messages are purged", n, keys*rounds)
		}
		if refused.Load() < 2*keys*rounds/10 {
			t.Errorf("%d refusals", refused.Load())
		}
		inTurn(t, sent.all(), slices.DeleteFunc(all, func(id string) bool { return strings.HasSuffix(id, "7") }))
	})
}

// Purge ends, although a relay confirms the next message with each look.
func TestPurgeEnds(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	for i := range 20 {
		d.enqueue(t, outbox.Message{ID: strconv.Itoa(i), Topic: "t"})
	}
	for _, s := range []string{"CREATE TRIGGER relay AFTER DELETE ON " + d.name + " BEGIN UPDATE " + d.name + " SET state = 2 WHERE seq = OLD.seq + 1; END",
		"UPDATE " + d.name + " SET state = 2 WHERE id = '0'"} {
		if err := d.exec(t.Context(), d.db, s); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := d.table.Purge(t.Context(), d.db, 0, outbox.Confirmed); err != nil || n != 1 {
		t.Errorf("%d are purged, %v", n, err)
	}
}

// Purge ends where the database deletes none of the first 1,000 messages, and says no error. Those behind are deleted.
func TestPurgeEndsWhereNothingIsDeleted(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	for range 2 {
		d.enqueue(t, slices.Repeat([]outbox.Message{{Topic: "t"}}, 1000)...)
	}
	for _, s := range []string{"UPDATE " + d.name + " SET state = 2",
		"CREATE TRIGGER keeps BEFORE DELETE ON " + d.name + " WHEN OLD.seq <= 1000 BEGIN SELECT RAISE(IGNORE); END"} {
		if err := d.exec(t.Context(), d.db, s); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	if n, err := d.table.Purge(ctx, d.db, 0, outbox.Confirmed); err != nil || n != 1000 {
		t.Errorf("%d are purged, %v", n, err)
	}
}

// Purge of a small table waits for no transaction that has enqueued a message, and that may be in doubt.
func TestPurgeBesideAnOpenTransaction(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == dialect.SQLite {
			return // whose file has one writer
		}
		for i := range 50 {
			d.enqueue(t, outbox.Message{Topic: "t", Key: strconv.Itoa(i)})
		}
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = 2"); err != nil {
			t.Fatal(err)
		}
		tx, err := d.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // nothing is to be kept
		if _, err := d.table.Enqueue(t.Context(), tx, outbox.Message{Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		if n, err := d.table.Purge(ctx, d.db, 0, outbox.Confirmed); err != nil || n != 50 {
			t.Errorf("%d are purged, %v", n, err)
		}
	})
}

// purges purges again and again. The function that purges returns ends that, and tells how many messages were deleted.
func (d *database) purges(t *testing.T) (purged func() int64) {
	ctx, stop := context.WithCancel(t.Context())
	deleted := make(chan int64)
	go func() {
		sum := int64(0)
		for ctx.Err() == nil {
			n, err := d.table.Purge(context.WithoutCancel(ctx), d.db, 0, outbox.Confirmed, outbox.Done, outbox.Dead)
			if sum += n; err != nil {
				t.Error(err)
				break
			}
			<-time.After(2 * time.Millisecond) // the relays need the database, too
		}
		deleted <- sum
	}()
	purged = sync.OnceValue(func() int64 { stop(); return <-deleted })
	t.Cleanup(func() { purged() })
	return purged
}

// inTurn fails the test unless all messages are there, and those of a key first in their order.
func inTurn(t *testing.T, got, ids []string) {
	t.Helper()
	last, seen := make(map[int]int), make(map[string]bool)
	for _, id := range got {
		var key, n int
		if _, err := fmt.Sscanf(id, "%d-%d", &key, &n); err != nil {
			t.Fatal(err)
		}
		if !seen[id] && n < last[key] {
			t.Errorf("%s came after message %d", id, last[key])
		}
		seen[id], last[key] = true, max(last[key], n)
	}
	for _, id := range ids {
		if !seen[id] {
			t.Errorf("%s is lost", id)
		}
	}
}
