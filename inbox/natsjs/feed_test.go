package natsjs

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// published makes a stream of one message, and returns its name.
func published(t *testing.T) string {
	t.Helper()
	name, js := rand.Text(), testservers.JetStream(t, testservers.SharedNATS(t).Addr)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), name, []byte("x"), jetstream.WithMsgID("1")); err != nil {
		t.Fatal(err)
	}
	return name
}

// open reads a stream.
func open(t *testing.T, addr, stream string, hold time.Duration) inbox.Feed {
	t.Helper()
	source, err := New(testservers.JetStream(t, addr), stream, "g", &Options{Hold: hold, Block: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// awaited waits for a delivery, over a network on which answers may come too late.
func awaited(t *testing.T, f inbox.Feed) inbox.Delivery {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if got, err := f.Receive(t.Context(), 1); len(got) == 1 {
			return got[0]
		} else if err != nil && !errors.Is(err, errSlow) && !strings.Contains(err.Error(), "timeout") {
			t.Fatal(err)
		}
	}
	t.Fatal("no delivery")
	return nil
}

// subscribed reads what clients send to a subject.
func subscribed(t *testing.T, subject string) *nats.Subscription {
	t.Helper()
	nc, err := nats.Connect(testservers.SharedNATS(t).Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	all, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return all
}

// wantTaken makes a dead letter of a delivery that another process may have.
func wantTaken(t *testing.T, stream string, d inbox.Delivery) {
	t.Helper()
	if err := d.Dead(t.Context(), "a reason"); !errors.Is(err, inbox.ErrTaken) {
		t.Errorf("%v, want that another process may have it", err)
	}
	dead, err := testservers.JetStream(t, testservers.SharedNATS(t).Addr).Stream(t.Context(), stream+"_dead")
	if err != nil || dead.CachedInfo().State.Msgs > 0 {
		t.Errorf("dead letters: %+v, %v", dead, err)
	}
}

// TestSleep: a machine slept for longer than AckWait. A process of that machine makes no dead letter of a message that the process had. An
// extension brings nothing back.
func TestSleep(t *testing.T) {
	stream := published(t)
	f := open(t, testservers.SharedNATS(t).Addr, stream, time.Hour)
	d := awaited(t, f)
	awake := timeOfDay
	defer func() { timeOfDay = awake }()
	timeOfDay = func() time.Time { return awake().Add(2 * time.Hour) }
	if err := f.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantTaken(t, stream, d)
}

// TestLateMessage: a message was on its way for most of its AckWait. Soon after its arrival another process has the message, and the first
// process makes no dead letter.
func TestLateMessage(t *testing.T) {
	stream := published(t)
	addr := testservers.SharedNATS(t).Addr
	network := proxy.New(t, addr)
	slow, other := open(t, network.Addr, stream, 3*time.Second), open(t, addr, stream, 3*time.Second)
	network.Delay(800 * time.Millisecond) // in each direction
	defer network.Thaw()
	late := awaited(t, slow)
	awaited(t, other)
	network.Delay(0)
	wantTaken(t, stream, late)
}

// TestLargeMessage: a message is on its way for longer than the client library waits for a message, and other answers are quick. The message arrives when the
// server sends the message again. So it does behind a small message, in a process that follows another.
func TestLargeMessage(t *testing.T) {
	for name, single := range map[string]bool{"one of many": false, "single": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const bytes, rate = 225_000, 150_000
			stream, direct := published(t), testservers.JetStream(t, testservers.SharedNATS(t).Addr)
			if _, err := direct.Publish(t.Context(), stream, make([]byte, bytes), jetstream.WithMsgID("2")); err != nil {
				t.Fatal(err)
			}
			opts := &Options{Hold: 9 * time.Second, Block: 10 * time.Millisecond}
			if single { // the last process had both
				last := open(t, testservers.SharedNATS(t).Addr, stream, opts.Hold)
				awaited(t, last)
				awaited(t, last)
			}
			source, err := New(testservers.JetStream(t, slowLink(t, testservers.SharedNATS(t).Addr, rate)), stream, "g", opts)
			if err != nil {
				t.Fatal(err)
			}
			receivesAll(t, source, single, 2)
		})
	}
}

// TestManyLargeMessages: all of them together are on their way for longer than AckWait. Each arrives in time.
func TestManyLargeMessages(t *testing.T) {
	const bytes, rate, more = 37_500, 150_000, 20
	stream, direct := published(t), testservers.JetStream(t, testservers.SharedNATS(t).Addr)
	for i := range more {
		if _, err := direct.Publish(t.Context(), stream, make([]byte, bytes), jetstream.WithMsgID(strconv.Itoa(i+2))); err != nil {
			t.Fatal(err)
		}
	}
	source, err := New(testservers.JetStream(t, slowLink(t, testservers.SharedNATS(t).Addr, rate)), stream, "g", &Options{Hold: 3 * time.Second, Block: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	receivesAll(t, source, false, 1+more)
}

// receivesAll opens a source again and again until so many messages have come.
func receivesAll(t *testing.T, source *Source, single bool, want int) {
	t.Helper()
	var failed error
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); {
		f, err := source.Open(t.Context(), single)
		for err == nil && time.Now().Before(deadline) {
			var got []inbox.Delivery
			got, err = f.Receive(t.Context(), 64)
			if slices.ContainsFunc(got, func(d inbox.Delivery) bool { return d.(*delivery).lost() }) {
				t.Errorf("%d messages came, and AckWait of some was over", len(got))
			}
			for _, d := range got {
				if err := d.Ack(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if want -= len(got); want <= 0 {
				return
			}
		}
		failed = err
	}
	t.Fatalf("%d messages have not come, %v", want, failed)
}

// TestLossesOneAfterAnother: the window of the first loss stays when another follows, and is open until a pull with patience has begun behind it.
func TestLossesOneAfterAnother(t *testing.T) {
	f := open(t, testservers.SharedNATS(t).Addr, published(t), time.Second).(*feed)
	awaited(t, f)
	first, began := time.Now().Add(-3*time.Second), time.Now()
	f.comesAgain(window{first, began.Add(-2 * time.Second)})
	f.comesAgain(window{began.Add(time.Hour), began.Add(-time.Second)})
	if w := f.again.Load(); !w.from.Equal(first) || !f.patient() {
		t.Errorf("%+v", w)
	}
	if _, err := f.fetch(1, f.turn()); err != nil {
		t.Fatal(err)
	}
	if f.again.Load() != nil {
		t.Error("the window is open behind a pull with patience")
	}
}

// TestLossesOfTwoFeeds: the window of one feed does not cut that of another short.
func TestLossesOfTwoFeeds(t *testing.T) {
	var s Source
	now, all := time.Now(), sync.WaitGroup{}
	for i := range 100 {
		all.Go(func() {
			(&feed{Source: &s}).comesAgain(window{now.Add(-time.Duration(i)), now.Add(time.Hour - time.Duration(i))})
		})
	}
	all.Wait()
	if w := s.again.Load(); !w.from.Equal(now.Add(-99)) || !w.to.Equal(now.Add(time.Hour)) {
		t.Errorf("%+v", w)
	}
}

// edit changes the durable consumer.
func edit(t *testing.T, stream string, change func(*jetstream.ConsumerConfig)) {
	t.Helper()
	js := testservers.JetStream(t, testservers.SharedNATS(t).Addr)
	c, err := js.Consumer(t.Context(), stream, "g")
	if err != nil {
		t.Fatal(err)
	}
	config := c.CachedInfo().Config
	change(&config)
	if _, err := js.UpdateConsumer(t.Context(), stream, config); err != nil {
		t.Fatal(err)
	}
}

// TestShorterAckWait: a feed fails when an operator has made AckWait shorter, so that the next feed knows the new one. Meanwhile the messages in hand are extended.
func TestShorterAckWait(t *testing.T) {
	stream := published(t)
	f := open(t, testservers.SharedNATS(t).Addr, stream, time.Minute)
	d := awaited(t, f)
	edit(t, stream, func(c *jetstream.ConsumerConfig) { c.AckWait = 10 * time.Second })
	extensions := subscribed(t, "$JS.ACK."+stream+".g.>")
	awake := timeOfDay
	defer func() { timeOfDay = awake }()
	for i := range 3 {
		timeOfDay = func() time.Time { return awake().Add(time.Duration(i) * 40 * time.Second) }
		if err := f.Extend(t.Context()); !errors.Is(err, errEdited) {
			t.Error(err)
		}
		if _, err := extensions.NextMsg(time.Minute); err != nil {
			t.Error("no extension", err)
		}
	}
	if got, err := f.Receive(t.Context(), 1); len(got) > 0 || !errors.Is(err, errEdited) {
		t.Error(got, err)
	}
	wantTaken(t, stream, d)
}

// TestLongerAckWait: a feed goes on when an operator has made AckWait longer, because extensions for the shorter one are early enough.
func TestLongerAckWait(t *testing.T) {
	stream := published(t)
	f := open(t, testservers.SharedNATS(t).Addr, stream, time.Minute)
	d := awaited(t, f)
	edit(t, stream, func(c *jetstream.ConsumerConfig) { c.AckWait = time.Hour })
	if err := f.Extend(t.Context()); err != nil {
		t.Error(err)
	}
	if is := f.(*feed); is.tooLong(time.Now().Add(-119*time.Minute)) || !is.tooLong(time.Now().Add(-121*time.Minute)) {
		t.Error("the recovery does not wait for twice the longer AckWait")
	}
	if got, err := f.Receive(t.Context(), 1); len(got) > 0 || err != nil {
		t.Error(got, err)
	}
	if err := d.Dead(t.Context(), "a reason"); err != nil {
		t.Error(err)
	}
}

// TestEndedContext: a feed whose ctx has ended takes no message.
func TestEndedContext(t *testing.T) {
	f := open(t, testservers.SharedNATS(t).Addr, published(t), time.Hour).(*feed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := f.Receive(ctx, 1); len(got) > 0 || err != nil {
		t.Error(got, err)
	}
	f.missing, f.last = 2, 9
	if _, err := f.Receive(ctx, 1); !errors.Is(err, context.Canceled) || len(f.found) > 0 {
		t.Error(err, len(f.found))
	}
	if n, err := f.pending(t.Context()); n > 0 || err != nil {
		t.Errorf("%d messages are taken, %v", n, err)
	}
}

// slowLink makes a way to a server on which the answers have a rate in bytes a second.
func slowLink(t *testing.T, addr string, rate int) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { listener.Close(); stop(); all.Wait() }) //nolint:errcheck // nothing is lost
	carry := func(client net.Conn) {
		defer client.Close() //nolint:errcheck // as above
		server, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		defer server.Close() //nolint:errcheck // as above
		defer context.AfterFunc(ctx, func() { client.Close(); server.Close() })()
		all.Go(func() {
			io.Copy(server, client) //nolint:errcheck // one side has ended
			server.Close()          //nolint:errcheck // as above
		})
		tick := time.NewTicker(time.Second / 100)
		defer tick.Stop()
		for part := int64(rate / 100); err == nil; <-tick.C {
			_, err = io.CopyN(client, server, part)
		}
	}
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { carry(client) })
		}
	})
	return listener.Addr().String()
}
