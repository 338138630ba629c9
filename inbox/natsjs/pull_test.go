package natsjs

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/inbox"
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

// TestRecovery: a server before 2.10.14 may give the last message of the stream twice, and then an earlier one much later. The new process waits for the
// earlier one, and hands each out once. A later server may count a message as new that was on its way to a process that had gone. The new process asks for
// nothing more when all have come.
func TestRecovery(t *testing.T) {
	for name, pulls := range map[string][][]again{
		"the last comes twice": {{{1, 2}, {2, 2}, {3, 2}}, {{5, 1}, {5, 2}, {5, 1}}, {}, {{4, 2}}},
		"one counts as new":    {{{1, 2}, {2, 2}, {3, 2}, {4, 2}}, {{5, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			const all = 5
			stream := publishedMore(t, all)
			last := open(t, testservers.SharedNATS(t).Addr, stream, time.Hour)
			var msgs []jetstream.Msg
			for range all {
				msgs = append(msgs, awaited(t, last).(*delivery).msg)
			}
			f := open(t, testservers.SharedNATS(t).Addr, stream, time.Hour).(*feed)
			f.single, f.missing, f.last = true, all, all
			number, answers := f.seen, &answers{}
			for _, pull := range pulls {
				var answer []jetstream.Msg
				for _, a := range pull {
					number++
					g := &given{Msg: msgs[a.sequence-1]}
					g.is.Sequence.Stream, g.is.Sequence.Consumer, g.is.NumDelivered = a.sequence, number, a.count
					answer = append(answer, g)
				}
				answers.next = append(answers.next, answer)
			}
			f.consumer = answers
			got, err := f.Receive(t.Context(), 8)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, d := range got {
				ids = append(ids, d.Message().ID)
			}
			if !slices.Equal(ids, []string{"1", "2", "3", "4", "5"}) || len(f.mine) != all || len(answers.next) > 0 {
				t.Errorf("%q came, %d are in hand, %d pulls are left", ids, len(f.mine), len(answers.next))
			}
		})
	}
}

// again is a message that the server gives again, and the count of the delivery.
type again struct{ sequence, count uint64 }

// opened reads a stream, and waits long for a message.
func opened(t *testing.T, stream string, maxAckPending int, single bool) inbox.Feed {
	t.Helper()
	opts := &Options{Hold: time.Minute, Block: 20 * time.Second, MaxAckPending: maxAckPending}
	source, err := New(testservers.JetStream(t, testservers.SharedNATS(t).Addr), stream, "g", opts)
	if err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(t.Context(), single)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// wantPulls receives until so many messages have come, and compares how many each pull of the durable consumer asked for. A pull for several messages has a wait in which a
// busy server can hand them out.
func wantPulls(t *testing.T, f inbox.Feed, messages int, want ...int) {
	t.Helper()
	pulls := subscribed(t, "$JS.API.CONSUMER.MSG.NEXT."+f.(*feed).stream+".g")
	for messages > 0 {
		got, err := f.Receive(t.Context(), 8)
		if err != nil || len(got) == 0 {
			t.Fatal(got, err)
		}
		messages -= len(got)
	}
	var sizes []int
	for range want {
		msg, err := pulls.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(sizes, err)
		}
		var pull struct {
			Batch   int
			Expires time.Duration
		}
		if err := json.Unmarshal(msg.Data, &pull); err != nil {
			t.Fatal(err)
		}
		wait := map[bool]time.Duration{true: 200 * time.Millisecond, false: 50 * time.Millisecond}[f.(*feed).single]
		if sizes = append(sizes, pull.Batch); pull.Batch > 1 && pull.Expires != wait {
			t.Errorf("a pull for %d messages has %v", pull.Batch, pull.Expires)
		}
	}
	if !slices.Equal(sizes, want) {
		t.Errorf("pulls for %d messages, want %d", sizes, want)
	}
}

// TestPullOfABacklog: a pull asks for the messages of which the server told, and for no more than the server hands out. Else the first of them would wait for the last.
func TestPullOfABacklog(t *testing.T) {
	for _, single := range []bool{false, true} {
		wantPulls(t, opened(t, publishedMore(t, 9), 100, single), 9, 1, 2, 4, 2)
		wantPulls(t, opened(t, publishedMore(t, 9), 4, single), 4, 1, 2, 1)
	}
}

// TestMaxAckPending: a pull gets an answer also where as many messages are under way as the server hands out. The feed waits and does not fail.
func TestMaxAckPending(t *testing.T) {
	stream := publishedMore(t, 2)
	f := opened(t, stream, 1, false)
	d := awaited(t, f)
	short := open(t, testservers.SharedNATS(t).Addr, stream, time.Minute)
	for range 3 {
		if got, err := short.Receive(t.Context(), 8); len(got) > 0 || err != nil {
			t.Fatal(got, err)
		}
	}
	if s := short.(*feed); s.slow.Load() || s.again.Load() != nil {
		t.Error("a full durable consumer looks like a slow server")
	}
	if err := d.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := awaited(t, f); d.Message().ID != "2" {
		t.Error(d.Message().ID)
	}
}

// TestRaisedMaxAckPending: a feed uses the room that an operator has made.
func TestRaisedMaxAckPending(t *testing.T) {
	for name, limit := range map[string]int{"more": 100, "no limit": -1} {
		t.Run(name, func(t *testing.T) {
			stream := publishedMore(t, 22)
			f := opened(t, stream, 2, false)
			awaited(t, f)
			awaited(t, f)
			edit(t, stream, func(c *jetstream.ConsumerConfig) { c.MaxAckPending = limit })
			if err := f.Extend(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantPulls(t, f, 20, 2, 4, 8, 6)
		})
	}
}

// TestPullOfRedeliveries: messages that another process gave back come several at a time, though the server does not say how many there are.
func TestPullOfRedeliveries(t *testing.T) {
	stream := publishedMore(t, 10)
	last := opened(t, stream, 100, false)
	var all []inbox.Delivery
	for range 10 {
		all = append(all, awaited(t, last))
	}
	for _, d := range all[:9] {
		if err := d.Nack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := all[9].Ack(t.Context()); err != nil { // the answer shows that the server has read the others
		t.Fatal(err)
	}
	wantPulls(t, opened(t, stream, 100, false), 9, 1, 2, 4, 8)
}
