package natsjs

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/internal/testservers"
)

// publishedMore makes a stream of so many messages, and returns its name.
func publishedMore(t *testing.T, n int) string {
	t.Helper()
	stream, js := published(t), testservers.JetStream(t, testservers.SharedNATS(t).Addr)
	for i := 2; i <= n; i++ {
		if _, err := js.Publish(t.Context(), stream, []byte("y"), jetstream.WithMsgID(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	return stream
}

// answers is a durable consumer whose pulls have answers of a test.
type answers struct {
	jetstream.Consumer
	next [][]jetstream.Msg
}

func (a *answers) Fetch(int, ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	batch := make(answer, 8)
	for _, m := range a.next[0] {
		batch <- m
	}
	close(batch)
	a.next = a.next[1:]
	return batch, nil
}

// answer is that of one pull.
type answer chan jetstream.Msg

func (a answer) Messages() <-chan jetstream.Msg { return a }
func (a answer) Error() error                   { return nil }

// given is a message that was given again.
type given struct {
	jetstream.Msg
	is jetstream.MsgMetadata
}

func (g *given) Metadata() (*jetstream.MsgMetadata, error) { return &g.is, nil }

// TestRepeatsInRecovery: a server before 2.10.14 may give the last message of the stream twice, and then an earlier one much later. The new process waits for the
// earlier one, and hands each out once.
func TestRepeatsInRecovery(t *testing.T) {
	const all = 5
	stream := publishedMore(t, all)
	last := open(t, testservers.SharedNATS(t).Addr, stream, time.Hour)
	var msgs []jetstream.Msg
	for range all {
		msgs = append(msgs, awaited(t, last).(*delivery).msg)
	}
	f := open(t, testservers.SharedNATS(t).Addr, stream, time.Hour).(*feed)
	f.single, f.missing, f.last = true, all, all
	again := func(sequence, count uint64) jetstream.Msg {
		g := &given{Msg: msgs[sequence-1]}
		f.seen++ // is put back below
		g.is.Sequence.Stream, g.is.Sequence.Consumer, g.is.NumDelivered = sequence, f.seen, count
		return g
	}
	seen := f.seen
	f.consumer = &answers{next: [][]jetstream.Msg{{again(1, 2), again(2, 2), again(3, 2)}, {again(5, 1), again(5, 2), again(5, 1)}, {}, {again(4, 2)}}}
	f.seen = seen
	got, err := f.Receive(t.Context(), 8)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, d := range got {
		ids = append(ids, d.Message().ID)
	}
	if !slices.Equal(ids, []string{"1", "2", "3", "4", "5"}) || len(f.mine) != all || got[all-1].Count() != 2 {
		t.Errorf("%q came, and %d are in hand", ids, len(f.mine))
	}
}
