package inboxtest_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/natsjs"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestLargeDeadLetter: a message that fits a stream or the server, and whose dead letter does not, is parted. The key of the message goes on.
func TestLargeDeadLetter(t *testing.T) {
	for name, is := range map[string]struct {
		size  int // of the payload
		limit int32
	}{"for the server": {1<<20 - 120, 0}, "for the stream": {20_000, 4096}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "nats", testservers.SharedNATS(t))
			js := w.broker.(*natsBroker).js
			if is.limit > 0 {
				config := jetstream.StreamConfig{Name: w.name + "_dead", Subjects: []string{"dead." + w.name + ".>"}, MaxMsgSize: is.limit}
				if _, err := js.CreateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
			}
			w.fail = func(m inbox.Message, _ int) error {
				if m.ID == "a-1" {
					return fmt.Errorf("no such order: %w", inbox.ErrRefused)
				}
				return nil
			}
			w.run(t)
			large := message("a", 1)
			large.Payload = make([]byte, is.size)
			for i := range large.Payload {
				large.Payload[i] = byte(i % 251)
			}
			w.send(t, large, message("a", 2))
			w.took(t, 1)
			w.idle(t)
			stream, err := js.Stream(t.Context(), w.name+"_dead")
			if err != nil {
				t.Fatal(err)
			}
			var whole []byte
			parts := stream.CachedInfo().State.LastSeq
			for seq := uint64(1); seq <= parts; seq++ {
				msg, err := stream.GetMsg(t.Context(), seq)
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("%d/%d", seq, parts); msg.Header.Get("Pawl-Dead-Part") != want || msg.Header.Get("Pawl-ID") != "a-1" {
					t.Errorf("letter %d: %v, want part %s", seq, msg.Header, want)
				}
				whole = append(whole, msg.Data...)
			}
			if parts < 2 || !bytes.Equal(whole, large.Payload) {
				t.Errorf("%d letters with %d bytes of %d", parts, len(whole), len(large.Payload))
			}
		})
	}
}

// TestDeadLetterWithOrdersForTheServer: headers by which a sender told the server what to do with a message do nothing to its dead letter, nor
// to earlier letters. Headers for the client library do nothing either.
func TestDeadLetterWithOrdersForTheServer(t *testing.T) {
	w := newWorld(t, "nats", testservers.SharedNATS(t))
	js := w.broker.(*natsBroker).js
	for _, config := range []jetstream.StreamConfig{{Name: w.name, Subjects: []string{w.name}, AllowRollup: true},
		{Name: w.name + "_dead", Subjects: []string{"dead." + w.name + ".>"}, AllowRollup: true}} {
		if _, err := js.CreateOrUpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	w.fail = func(m inbox.Message, _ int) error { return fmt.Errorf("no such order: %w", inbox.ErrRefused) }
	w.run(t)
	orders := []map[string]string{{"Nats-Expected-Stream": w.name, "Trace": "t"}, {jetstream.MsgRollup: "sub", "Trace": "t"}, {"Status": "404", "Trace": "t"}}
	for i, headers := range orders {
		m := message("a", i+1)
		m.Headers = headers
		w.send(t, m)
		w.idle(t)
	}
	stream, err := js.Stream(t.Context(), w.name+"_dead")
	if err != nil {
		t.Fatal(err)
	}
	for i, headers := range orders {
		letter, err := stream.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatalf("letter %d: %v", i+1, err)
		}
		if letter.Header.Get("Pawl-ID") != fmt.Sprint("a-", i+1) || letter.Header.Get("Trace") != "t" {
			t.Error(letter.Header)
		}
		for name, value := range headers {
			if name != "Trace" && (letter.Header.Get(name) != "" || letter.Header.Get("Pawl-Dead-"+name) != value) {
				t.Errorf("%s: %v", name, letter.Header)
			}
		}
	}
}

// TestDeadLettersOfSeveralStreams: no dead letter is dropped as a repeat of one from another stream, though both messages have the same number in their
// streams. A stream that is made again counts as another one.
func TestDeadLettersOfSeveralStreams(t *testing.T) {
	one, other := newNATS(t), newNATS(t)
	letters, err := one.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: one.name + "_dead", Subjects: []string{"dead." + one.name}})
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range []*natsBroker{one, other, one} {
		if i == 2 {
			if err := b.js.DeleteStream(t.Context(), b.name); err != nil {
				t.Fatal(err)
			}
			if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: b.name, Subjects: []string{b.name}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.publish(t.Context(), message("a", i)); err != nil {
			t.Fatal(err)
		}
		got, err := b.open(t, false, &natsjs.Options{Dead: "dead." + one.name}).Receive(t.Context(), 1)
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		for range 2 { // the second is a repeat
			if err := got[0].Dead(t.Context(), "a reason"); err != nil {
				t.Fatal(err)
			}
		}
		is, err := letters.Info(t.Context())
		if err != nil || is.State.LastSeq != uint64(i+1) {
			t.Errorf("%d letters, %v: want %d", is.State.LastSeq, err, i+1)
		}
	}
}

// cut is JetStream on a connection that ends after a message was published.
type cut struct {
	*natsBroker
	jetstream.JetStream
}

func (c cut) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	defer c.nc.Close()
	return c.JetStream.PublishMsg(ctx, m, opts...)
}

// TestDeadLetterAndThenNoConnection: once the stream has the dead letter, no error lets the message run again here.
func TestDeadLetterAndThenNoConnection(t *testing.T) {
	b := newNATS(t)
	if err := b.publish(t.Context(), message("a", 1)); err != nil {
		t.Fatal(err)
	}
	b.js = cut{b, b.js}
	got, err := b.open(t, false, nil).Receive(t.Context(), 1)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if err := got[0].Dead(t.Context(), "a reason"); err != nil {
		t.Error(err)
	}
}
