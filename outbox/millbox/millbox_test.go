package millbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	millnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/publishertest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/millbox"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// classify tells the errors of NATS.
func classify(err error) error {
	var api *nats.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.As(err, &api) && (api.ErrorCode == 10054 || api.ErrorCode == 10077): // over the limit of the stream, also of an old server
		return fmt.Errorf("%w: %w", outbox.ErrRefused, err)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrNoStreamResponse):
		return fmt.Errorf("%w: %w", outbox.ErrBlocked, err)
	}
	return err
}

// newPublisher returns a publisher that waits for JetStream, over watermill-nats, and a stream.
func newPublisher(t *testing.T, addr, stream string) (*millbox.Publisher, nats.JetStreamContext) {
	t.Helper()
	nc, err := nats.Connect("nats://"+addr, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: stream, Subjects: []string{stream}, MaxMsgSize: 4096}); err != nil {
		t.Fatal(err)
	}
	mill, err := millnats.NewPublisherWithNatsConn(nc, millnats.PublisherPublishConfig{Marshaler: &millnats.NATSMarshaler{}, SubjectCalculator: millnats.DefaultSubjectCalculator,
		JetStream: millnats.JetStreamConfig{TrackMsgId: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := millbox.New(mill, &millbox.Options{Classify: classify})
	if err != nil {
		t.Fatal(err)
	}
	return p, js
}

// kept reads a stream from its first message, by the format of watermill-nats.
func kept(t *testing.T, js nats.JetStreamContext, stream string) (all []outbox.Message) {
	t.Helper()
	info, err := js.StreamInfo(stream)
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); {
		info, err = js.StreamInfo(stream)
	}
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs == 0 {
		return nil
	}
	sub, err := js.SubscribeSync(stream, nats.OrderedConsumer())
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends
	for range info.State.Msgs {
		raw, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := new(millnats.NATSMarshaler).Unmarshal(raw)
		if err != nil {
			t.Fatal(err)
		}
		m := outbox.Message{ID: msg.UUID, Topic: raw.Subject, Key: msg.Metadata[millbox.MetadataKey], Payload: msg.Payload, Headers: maps.Clone(msg.Metadata)}
		if m.Time, err = time.Parse(time.RFC3339, msg.Metadata[millbox.MetadataTime]); err != nil {
			t.Fatal(err)
		}
		delete(m.Headers, millbox.MetadataKey)
		delete(m.Headers, millbox.MetadataTime)
		all = append(all, m)
	}
	return all
}

func TestPublisher(t *testing.T) {
	server := testservers.NATS(t)
	p, js := newPublisher(t, server.Addr, "orders")
	publishertest.Run(t, publishertest.Broker{
		Publisher: p, Topic: "orders", Kept: func(t *testing.T) []outbox.Message { return kept(t, js, "orders") },
		Kill: server.Kill, Restart: server.Restart, Pause: server.Pause, Resume: server.Resume,
		Refused: map[string]outbox.Message{
			"too large for the stream": {Payload: make([]byte, 5000)},
			"too large for the server": {Payload: make([]byte, 2<<20)},
			"a header of the outbox":   {Headers: map[string]string{"pawl-key": "other"}},
		},
	})
}

// newTable makes a table in a database file.
func newTable(t *testing.T) (*sql.DB, *outbox.Table) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "app.db"))+"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	table, err := outbox.New(dialect.SQLite, nil)
	if err == nil {
		err = table.Migrate(t.Context(), db)
	}
	if err != nil {
		t.Fatal(err)
	}
	return db, table
}

// TestBothWays: messages of Watermill go through the outbox to Watermill, if their transaction is committed, and only then.
func TestBothWays(t *testing.T) {
	db, table := newTable(t)
	enqueue := func(commit bool, messages ...*message.Message) {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
		e, err := millbox.NewEnqueuer(table, tx, nil)
		if err == nil {
			err = e.Publish("both", messages...)
		}
		if err == nil {
			err = e.Close()
		}
		if err == nil && commit {
			err = tx.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	nameless := message.NewMessage("", []byte("third"))
	first := message.NewMessage("1", []byte("first"))
	first.Metadata = message.Metadata{millbox.MetadataKey: "order-7", millbox.MetadataTime: "long ago", "Trace": "t1"}
	enqueue(false, message.NewMessage("0", []byte("never")))
	enqueue(true, first, message.NewMessage("2", nil), nameless)
	enqueue(true)
	if nameless.UUID == "" {
		t.Error("a message has no UUID")
	}

	p, js := newPublisher(t, testservers.SharedNATS(t).Addr, "both")
	relayAll(t, db, table, p, func() bool {
		info, err := js.StreamInfo("both")
		return err == nil && info.State.Msgs >= 3
	})
	got := make(map[string]outbox.Message)
	for _, m := range kept(t, js, "both") {
		got[m.ID] = m
	}
	one := got["1"]
	if len(got) != 3 || one.Key != "order-7" || one.Headers["Trace"] != "t1" || len(one.Headers) != 1 || string(one.Payload) != "first" || time.Since(one.Time) > time.Hour {
		t.Errorf("%+v", got)
	}
	if string(got[nameless.UUID].Payload) != "third" {
		t.Errorf("the message without a UUID: %+v", got)
	}
}

// relayAll runs a relay until all messages are sent.
func relayAll(t *testing.T, db *sql.DB, table *outbox.Table, p outbox.Publisher, sent func() bool) {
	t.Helper()
	client, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background()) //nolint:errcheck // nothing is lost
	relay, err := table.Relay(client, db, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); !sent(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not all were sent")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// stuck is a publisher of Watermill that heeds no ctx.
type stuck struct{ open chan struct{} }

func (s stuck) Publish(string, ...*message.Message) error { <-s.open; return nil }
func (s stuck) Close() error                              { return nil }

// TestStuck: calls that hang are bounded in their number, and hold no caller beyond its ctx.
func TestStuck(t *testing.T) {
	mill := stuck{make(chan struct{})}
	defer close(mill.open)
	p, err := millbox.New(mill, &millbox.Options{Window: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := p.Publish(ctx, outbox.Message{ID: "1", Topic: "t"})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, outbox.ErrBlocked) != (i == 2) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// faulty is a publisher of Watermill with a defect.
type faulty struct{ defect func() }

func (f faulty) Publish(string, ...*message.Message) error { f.defect(); return nil }
func (f faulty) Close() error                              { return nil }

// TestDefects: a panic of Watermill's publisher becomes a panic of the caller. A call that ends its goroutine is no confirm.
func TestDefects(t *testing.T) {
	publish := func(defect func()) (fault any, err error) {
		p, err := millbox.New(faulty{defect}, &millbox.Options{Window: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { fault = recover() }()
		return nil, p.Publish(t.Context(), outbox.Message{ID: "1", Topic: "t"})
	}
	if fault, err := publish(func() { panic("a bad message") }); fault != "a bad message" || err != nil {
		t.Error(fault, err)
	}
	if fault, err := publish(runtime.Goexit); fault != nil || err == nil {
		t.Error(fault, err)
	}
}

func TestInvalid(t *testing.T) {
	if _, err := millbox.New(nil, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	if _, err := millbox.New(stuck{}, &millbox.Options{Window: -1}); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	if _, err := millbox.NewEnqueuer(nil, nil, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}
