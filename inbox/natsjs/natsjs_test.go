package natsjs_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/natsjs"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// TestLargeDeadLetter: a dead letter whose reason makes it too large is the message as it was.
func TestLargeDeadLetter(t *testing.T) {
	nc, err := nats.Connect(testservers.NATS(t).Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream := made(t, js, jetstream.StreamConfig{Name: "LARGE", Subjects: []string{"large"}, Retention: jetstream.WorkQueuePolicy})
	dead := made(t, js, jetstream.StreamConfig{Name: "LARGE_letters", Subjects: []string{"letters"}, MaxMsgSize: 1100})
	sent := &nats.Msg{Subject: "large", Header: nats.Header{jetstream.MsgIDHeader: {"a"}, "Pawl-Key": {"k"}}, Data: []byte(strings.Repeat("x", 1000))}
	source, err := natsjs.New(js, "LARGE", "test", &natsjs.Options{Dead: "letters"})
	if err != nil {
		t.Fatal(err)
	}
	feed, err := source.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close(t.Context()) //nolint:errcheck // the end
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for n, reason := range []string{strings.Repeat("r", 500), ""} {
		if _, err := js.PublishMsg(t.Context(), sent, jetstream.WithRetryAttempts(0)); err != nil {
			t.Fatal(err)
		}
		sent.Header.Set(jetstream.MsgIDHeader, "b")
		sent.Data = sent.Data[:700]
		got := receive(ctx, t, feed)
		m := got.Message()
		if err := got.Dead(t.Context(), reason); err != nil {
			t.Fatal(err)
		}
		letter, err := dead.GetLastMsgForSubject(t.Context(), "letters")
		if err != nil {
			t.Fatal(err)
		}
		_, told := letter.Header["Pawl-Dead-Reason"]
		if string(letter.Data) != string(m.Payload) || letter.Header.Get("Pawl-Key") != "k" || told != (n == 1) {
			t.Errorf("letter %d: %d bytes, %v", n, len(letter.Data), letter.Header)
		}
		if id := letter.Header.Get(jetstream.MsgIDHeader); n == 0 && id != m.ID {
			t.Errorf("the letter has the ID %q, want %q", id, m.ID)
		}
	}
	for {
		info, err := stream.Info(ctx)
		if err != nil {
			t.Fatal("the messages are there still: ", err)
		}
		if info.State.Msgs == 0 {
			return
		}
	}
}

func made(t *testing.T, js jetstream.JetStream, config jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	stream, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// receive waits for a message.
func receive(ctx context.Context, t *testing.T, feed inbox.Feed) inbox.Delivery {
	t.Helper()
	for {
		got, err := feed.Receive(ctx, 1)
		if err != nil || ctx.Err() != nil {
			t.Fatal("no message: ", err)
		}
		if len(got) > 0 {
			return got[0]
		}
	}
}
