package outbox_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

// Many keys wait after a failure, so that a read of all their messages takes longer than Rescan. The messages behind these are
// sent all the same. A full pass that is interrupted as soon as Rescan is over would read one of their pages each time.
func TestABacklogBehindManyFailingKeys(t *testing.T) {
	t.Parallel()
	alone, interrupted := behindFailingKeys(t, time.Hour), behindFailingKeys(t, 50*time.Millisecond)
	t.Logf("%d pages without a full pass between, %d with full passes", alone, interrupted)
	if interrupted > 10*alone {
		t.Errorf("full passes keep the relay from the end of a backlog: it reads %d pages, and %d without any", interrupted, alone)
	}
}

// behindFailingKeys says how many pages a relay reads until the last of these messages is sent.
func behindFailingKeys(t *testing.T, rescan time.Duration) (pages int64) {
	t.Helper()
	d, asked := tracedDatabase(t, "txid_current_snapshot()")
	const failing, others = 60, 300
	var batch []outbox.Message
	for i := range failing {
		batch = append(batch, outbox.Message{Topic: "broken", Key: inPartition("k", i)})
	}
	for range 100 {
		d.enqueue(t, batch...)
	}
	batch = nil
	for i := range others {
		batch = append(batch, outbox.Message{Topic: "t", Key: inPartition("k", failing+i)})
	}
	d.enqueue(t, batch[:others/2]...)
	ids := d.enqueue(t, batch[others/2:]...)
	p := publish(func(_ context.Context, m outbox.Message) error {
		if m.Topic == "broken" {
			return errors.New("no such exchange")
		}
		return nil
	})
	opts := outbox.RelayOptions{Window: 1, Poll: 20 * time.Millisecond, Rescan: rescan, Backoff: time.Hour, MaxBackoff: time.Hour}
	_, stop := d.runAs(t, newClient(t), p, opts)
	untilWithin(t, 10*time.Minute, "the last is confirmed", func() bool { return d.is(t, outbox.Confirmed, ids[len(ids)-1]) })
	pages = asked.Load()
	stop()
	return pages
}

// asked counts the statements that contain a text.
type asked struct {
	text string
	atomic.Int64
}

func (a *asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, a.text) {
		a.Add(1)
	}
	return ctx
}

func (a *asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// tracedDatabase is a database of PostgreSQL that counts such statements.
func tracedDatabase(t *testing.T, text string) (*database, *asked) {
	t.Helper()
	d := newDatabase(t, dialect.PostgreSQL)
	config, err := pgx.ParseConfig(d.source)
	if err != nil {
		t.Fatal(err)
	}
	asked := &asked{text: text}
	config.Tracer = asked
	traced := *d
	traced.db = stdlib.OpenDB(*config)
	t.Cleanup(func() { traced.db.Close() }) //nolint:errcheck // nothing is lost
	return &traced, asked
}

// A key that is left out has many messages, and an old transaction ends, of another partition. To ask for earlier messages of the other keys does not read
// the messages of that key, which would take a statement each few hundred.
func TestEarlierMessagesOfAHotKeyAreNotRead(t *testing.T) {
	d, asked := tracedDatabase(t, `SELECT seq, "key" FROM`)
	old, err := d.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Rollback() //nolint:errcheck // after the commit
	if _, err := d.table.Enqueue(t.Context(), old, outbox.Message{Topic: "t", Key: inPartition("another", 1)}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		batch := make([]outbox.Message, 1000)
		for i := range batch {
			batch[i] = outbox.Message{Topic: "t", Key: "k"}
		}
		d.enqueue(t, batch...)
	}
	var batch []outbox.Message
	for i := range 900 {
		batch = append(batch, outbox.Message{Topic: "t", Key: inPartition("k", 2+i)})
	}
	ids := d.enqueue(t, batch...)
	var others atomic.Int64
	held, all := make(chan struct{}), make(chan struct{})
	p := publish(func(_ context.Context, m outbox.Message) error {
		if m.Key == "k" {
			<-all
		} else if others.Add(1) > 200 {
			<-held
		}
		return nil
	})
	_, stop := d.run(t, newClient(t), p, outbox.RelayOptions{Rescan: time.Hour})
	until(t, "the pass is behind the hot key", func() bool { return others.Load() > 200 })
	before := asked.Load()
	if err := old.Commit(); err != nil {
		t.Fatal(err)
	}
	close(held)
	until(t, "the others are confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
	n := asked.Load() - before
	t.Logf("asked %d times", n)
	if n > 20 {
		t.Errorf("asked %d times for earlier messages", n)
	}
	close(all)
	stop()
}
