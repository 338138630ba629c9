package natsjs_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/internal/publishertest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/natsjs"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

func dial(t *testing.T, addr string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect("nats://"+addr, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// kept reads a stream from its first message.
func kept(t *testing.T, js jetstream.JetStream, stream string) (all []outbox.Message) {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); {
		s, err = js.Stream(t.Context(), stream)
	}
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		t.Fatal(err)
	}
	for left := s.CachedInfo().State.Msgs; left > 0; {
		batch, err := consumer.FetchNoWait(500)
		if err != nil {
			t.Fatal(err)
		}
		for msg := range batch.Messages() {
			left--
			h := maps.Clone(msg.Headers())
			m := outbox.Message{ID: h.Get(natsjs.HeaderID), Topic: msg.Subject(), Key: h.Get(natsjs.HeaderKey), Payload: msg.Data(), Headers: map[string]string{}}
			if m.Time, err = time.Parse(time.RFC3339, h.Get(natsjs.HeaderTime)); err != nil {
				t.Fatal(err)
			}
			for name := range h {
				if name != natsjs.HeaderID && name != natsjs.HeaderKey && name != natsjs.HeaderTime {
					m.Headers[name] = h.Get(name)
				}
			}
			all = append(all, m)
		}
		if err := batch.Error(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestPublisher(t *testing.T) {
	server := testservers.NATS(t)
	nc, js := dial(t, server.Addr)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxMsgSize: 4096}); err != nil {
		t.Fatal(err)
	}
	publishertest.Run(t, publishertest.Broker{
		Publisher: natsjs.New(nc, js), Topic: "orders.new",
		Kept: func(t *testing.T) []outbox.Message { return kept(t, js, "ORDERS") },
		Kill: server.Kill, Restart: server.Restart, Pause: server.Pause, Resume: server.Resume,
		Refused: map[string]outbox.Message{
			"no stream":                {Topic: "invoices.new"},
			"a wildcard":               {Topic: "orders.*"},
			"all subjects":             {Topic: "orders.>"},
			"an empty part":            {Topic: "orders..new"},
			"a space":                  {Topic: "orders new"},
			"too large for the stream": {Payload: make([]byte, 5000)},
			"too large for the server": {Payload: make([]byte, 2<<20)},
			"a header of the outbox":   {Headers: map[string]string{"nats-msg-id": "other"}},
			"a header with a space":    {Headers: map[string]string{"a b": "c"}},
			"a header of two lines":    {Headers: map[string]string{"a": "b\nc"}},
			"a header with space":      {Headers: map[string]string{"a": " b"}},
			"a key of two lines":       {Key: "a\nb"},
		},
	})
}

// TestRepeat: a stream drops a repeat of an ID, and confirms it.
func TestRepeat(t *testing.T) {
	nc, js := dial(t, testservers.SharedNATS(t).Addr)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "REPEAT", Subjects: []string{"repeat"}}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := natsjs.New(nc, js).Publish(t.Context(), outbox.Message{ID: "one", Topic: "repeat"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(kept(t, js, "REPEAT")); n != 1 {
		t.Errorf("%d messages", n)
	}
}

// TestStatus: clients take a message without a payload for one of the server if the header Status says so. The publisher refuses that one alone.
func TestStatus(t *testing.T) {
	nc, js := dial(t, testservers.SharedNATS(t).Addr)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "STATUS", Subjects: []string{"status"}}); err != nil {
		t.Fatal(err)
	}
	p := natsjs.New(nc, js)
	for _, value := range []string{"404", "paid"} {
		m := outbox.Message{ID: value, Topic: "status", Headers: map[string]string{"Status": value}}
		if err := p.Publish(t.Context(), m); !errors.Is(err, outbox.ErrRefused) {
			t.Fatalf("%s: %v", value, err)
		}
	}
	for i, m := range []outbox.Message{{Headers: map[string]string{"Status": "404"}, Payload: []byte("x")}, {Headers: map[string]string{"status": "404"}}, {Headers: map[string]string{"Status": ""}}} {
		m.ID, m.Topic = strconv.Itoa(i), "status"
		if err := p.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if all := kept(t, js, "STATUS"); len(all) != 3 {
		t.Error(all)
	}
}

// TestFull: a stream that discards new messages blocks the publisher until it has room.
func TestFull(t *testing.T) {
	nc, js := dial(t, testservers.SharedNATS(t).Addr)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	if err != nil {
		t.Fatal(err)
	}
	p := natsjs.New(nc, js)
	if err := p.Publish(t.Context(), outbox.Message{ID: "1", Topic: "full"}); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), outbox.Message{ID: "2", Topic: "full"}); !errors.Is(err, outbox.ErrBlocked) || !strings.Contains(err.Error(), "maximum messages exceeded") {
		t.Error(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), outbox.Message{ID: "2", Topic: "full"}); err != nil {
		t.Error(err)
	}
}

// TestDenied: a server tells a missing right to the error handler of the connection, and answers nothing. The publisher tells the
// right that is missing, does not wait for its time to end, and no message dies of the missing right.
func TestDenied(t *testing.T) {
	server := testservers.NATSUsers(t, `
		{ user: admin, password: a },
		{ user: app, password: a, permissions: { publish: { allow: ["open", "nowhere"] }, subscribe: { allow: ["_INBOX.>"] } } },
		{ user: deaf, password: a, permissions: { subscribe: { deny: ["_INBOX.>"] } } }`)
	_, admin := dial(t, "admin:a@"+server.Addr)
	if _, err := admin.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ALL", Subjects: []string{"open", "closed", "closed.too"}}); err != nil {
		t.Fatal(err)
	}
	nc, js := dial(t, "app:a@"+server.Addr)
	told := make(chan error, 100)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { told <- err })
	app := natsjs.New(nc, js)
	results := make(map[string]chan error)
	for _, subject := range []string{"open", "closed", "closed.too", "nowhere"} {
		result := make(chan error, 1)
		results[subject] = result
		go func() { result <- app.Publish(t.Context(), outbox.Message{ID: subject, Topic: subject}) }()
	}
	if err := <-results["open"]; err != nil {
		t.Error(err)
	}
	denied := func(err error, says string) {
		t.Helper()
		t.Log(err)
		if !errors.Is(err, outbox.ErrBlocked) || !strings.Contains(err.Error(), "permission denied") || !strings.Contains(err.Error(), says) {
			t.Error(err)
		}
	}
	denied(<-results["closed"], `Publish to "closed"`)
	denied(<-results["closed.too"], `Publish to "closed.too"`)
	denied(<-results["nowhere"], `Publish to "$JS.API.STREAM.NAMES"`)
	for range 3 {
		<-told // the program's own handler hears them too
	}
	nc, js = dial(t, "deaf:a@"+server.Addr)
	deaf := natsjs.New(nc, js)
	for range 2 { // the server says so only once for a connection
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		denied(deaf.Publish(ctx, outbox.Message{ID: "deaf", Topic: "open"}), `Subscription to "_INBOX.`)
		stop()
	}
}
