package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/publishertest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/rabbit"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// newPublisher returns a publisher whose topics are "queue" or "exchange/routing key".
func newPublisher(t *testing.T, heartbeat time.Duration) *rabbit.Publisher {
	t.Helper()
	url := testservers.RabbitMQURL(testservers.SharedRabbitMQ(t).Addr)
	p, err := rabbit.New(rabbit.Dial(url, amqp.Config{Heartbeat: heartbeat}), &rabbit.Options{Route: func(m outbox.Message) (exchange, key string) {
		if exchange, key, found := strings.Cut(m.Topic, "/"); found {
			return exchange, key
		}
		return "", m.Topic
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

// channel returns a channel of the test, which reads and declares.
func channel(t *testing.T) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(testservers.RabbitMQURL(testservers.SharedRabbitMQ(t).Addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseDeadline(time.Now().Add(time.Second)) }) //nolint:errcheck // the broker may be away
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// declare makes an empty durable queue.
func declare(t *testing.T, queue string, args amqp.Table) *amqp.Channel {
	t.Helper()
	ch := channel(t)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueuePurge(queue, false); err != nil {
		t.Fatal(err)
	}
	return ch
}

// kept reads all messages of a queue, and leaves them there.
func kept(t *testing.T, queue string) (all []outbox.Message) {
	t.Helper()
	asks, ch := channel(t), channel(t)
	count := func() int {
		is, err := asks.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return is.Messages
	}
	n := count()
	defer func() {
		if err := ch.Close(); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(time.Minute); count() < n; { // they go back later
			if time.Now().After(deadline) {
				t.Fatal("the messages have not gone back")
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for len(all) < n {
		d, ok := <-deliveries
		if !ok {
			t.Fatal("the broker has closed the channel")
		}
		if d.DeliveryMode != amqp.Persistent {
			t.Errorf("message %s is not persistent", d.MessageId)
		}
		m := outbox.Message{ID: d.MessageId, Topic: d.RoutingKey, Payload: d.Body, Time: d.Timestamp, Headers: map[string]string{}}
		for name, value := range d.Headers {
			m.Headers[name] = value.(string)
		}
		m.Key = m.Headers[rabbit.HeaderKey]
		delete(m.Headers, rabbit.HeaderKey)
		if d.ContentType != "" {
			m.Headers["Content-Type"] = d.ContentType
		}
		all = append(all, m)
	}
	return all
}

// tooLarge is more than the broker takes.
func tooLarge() []byte {
	if testservers.AsShipped() {
		return make([]byte, 129<<20)
	}
	return make([]byte, 3<<20)
}

func TestPublisher(t *testing.T) {
	declare(t, "orders", nil)
	ch := channel(t)
	if err := ch.ExchangeDeclare("inside", "fanout", true, false, true, false, nil); err != nil {
		t.Fatal(err)
	}
	server := testservers.SharedRabbitMQ(t)
	long := strings.Repeat("x", 256)
	publishertest.Run(t, publishertest.Broker{
		Publisher: newPublisher(t, 0), Topic: "orders",
		Kept: func(t *testing.T) []outbox.Message { return kept(t, "orders") },
		Kill: server.Kill, Restart: server.Restart, Pause: server.Pause, Resume: server.Resume,
		Refused: map[string]outbox.Message{
			"no queue":                   {Topic: "nobody"},
			"no binding":                 {Topic: "amq.direct/nobody"},
			"no exchange":                {Topic: "missing/orders"},
			"an internal exchange":       {Topic: "inside/orders"},
			"too large":                  {Payload: tooLarge()},
			"a header with another type": {Headers: map[string]string{"CC": "orders"}},
			"a header of the outbox":     {Headers: map[string]string{"pawl-key": "other"}},
			"a header with a long name":  {Headers: map[string]string{long: "x"}},
			"a header of the broker":     {Headers: map[string]string{"x-delivery-count": "7"}},
			"a long type of content":     {Headers: map[string]string{"Content-Type": long}},
			"a long routing key":         {Topic: long},
		},
	})
}

// each publishes messages at once, and returns the error of each.
func each(t *testing.T, p *rabbit.Publisher, messages []outbox.Message) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errs := make([]error, len(messages))
	var all sync.WaitGroup
	for i, m := range messages {
		all.Go(func() { errs[i] = p.Publish(ctx, m) })
	}
	all.Wait()
	return errs
}

// TestOneOfMany: of a window of messages the bad ones are refused, and all others are confirmed.
func TestOneOfMany(t *testing.T) {
	declare(t, "many", nil)
	p := newPublisher(t, 0)
	for name, bad := range map[string]outbox.Message{"unroutable": {Topic: "nobody"}, "exchange": {Topic: "missing/x"}, "header": {Topic: "many", Headers: map[string]string{"BCC": "x"}}} {
		t.Run(name, func(t *testing.T) {
			rounds, every := 20, 2
			if name != "unroutable" { // each costs a channel, and sends all in flight alone
				rounds, every = 2, 64
			}
			for round := range rounds {
				messages := make([]outbox.Message, 256)
				for i := range messages {
					if messages[i] = (outbox.Message{Topic: "many"}); i%every == 1 {
						messages[i] = bad
					}
					messages[i].ID = fmt.Sprintf("%s-%d-%d", name, round, i)
				}
				for i, err := range each(t, p, messages) {
					if is := errors.Is(err, outbox.ErrRefused); is != (i%every == 1) || !is && err != nil {
						t.Fatalf("message %d: %v", i, err)
					}
				}
			}
		})
	}
	is := make(map[string]bool)
	for _, m := range kept(t, "many") {
		is[m.ID] = true
	}
	if len(is) != 20*128+2*2*252 {
		t.Errorf("the broker keeps %d messages", len(is))
	}
}

// TestProperties: a type of content is a property, and messages that nobody takes are confirmed if the options say so.
func TestProperties(t *testing.T) {
	declare(t, "properties", nil)
	p, err := rabbit.New(rabbit.Dial(testservers.RabbitMQURL(testservers.SharedRabbitMQ(t).Addr), amqp.Config{}), &rabbit.Options{AllowUnroutable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	for _, topic := range []string{"nobody", "properties"} {
		if err := p.Publish(t.Context(), outbox.Message{ID: "1", Topic: topic, Headers: map[string]string{"Content-Type": "text/plain", "content-length": "0"}}); err != nil {
			t.Error(err)
		}
	}
	if all := kept(t, "properties"); len(all) != 1 || !maps.Equal(all[0].Headers, map[string]string{"Content-Type": "text/plain", "content-length": "0"}) {
		t.Errorf("%+v", all)
	}
}

// TestSpellings: each header arrives with the name and the value that it was enqueued with, whatever its upper and lower case.
func TestSpellings(t *testing.T) {
	declare(t, "spellings", nil)
	p := newPublisher(t, 0)
	sent := []map[string]string{
		{"Content-Type": "text/plain", "content-type": "application/json", "CONTENT-TYPE": ""},
		{"content-type": "text/plain", "Trace": "1", "trace": "2"},
		{"Content-Type": ""},
	}
	for i, headers := range sent {
		if err := p.Publish(t.Context(), outbox.Message{ID: fmt.Sprint(i), Topic: "spellings", Headers: headers}); err != nil {
			t.Fatal(err)
		}
	}
	all := kept(t, "spellings")
	if len(all) != len(sent) {
		t.Fatalf("%d messages", len(all))
	}
	for i, got := range all {
		if !maps.Equal(got.Headers, sent[i]) {
			t.Errorf("%q arrived as %q", sent[i], got.Headers)
		}
	}
}

// TestFullQueue: a queue that rejects messages blocks, and only its own messages.
func TestFullQueue(t *testing.T) {
	declare(t, "other", nil)
	ch := declare(t, "full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	p := newPublisher(t, 0)
	errs := each(t, p, []outbox.Message{{ID: "1", Topic: "full"}})
	for errs[0] == nil { // the queue counts late
		errs = each(t, p, []outbox.Message{{ID: "2", Topic: "full"}, {ID: "3", Topic: "other"}})
		if errs[1] != nil {
			t.Fatal(errs[1])
		}
	}
	if !errors.Is(errs[0], outbox.ErrBlocked) {
		t.Error(errs[0])
	}
	if _, err := ch.QueuePurge("full", false); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), outbox.Message{ID: "2", Topic: "full"}); err != nil {
		t.Error(err)
	}
}

// TestAlarm: a broker without memory blocks publishers, and goes on when it has memory.
func TestAlarm(t *testing.T) {
	server := testservers.SharedRabbitMQ(t)
	declare(t, "alarm", nil)
	p := newPublisher(t, 0)
	if err := p.Publish(t.Context(), outbox.Message{ID: "before", Topic: "alarm"}); err != nil {
		t.Fatal(err)
	}
	testservers.RabbitMQControl(t, server, "set_vm_memory_high_watermark", "0.00001")
	blocked := error(nil)
	for n := 0; !errors.Is(blocked, outbox.ErrBlocked); n++ { // the broker reads until it notices
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		blocked = p.Publish(ctx, outbox.Message{ID: fmt.Sprint("alarm-", n), Topic: "alarm"})
		cancel()
		if blocked != nil && !errors.Is(blocked, outbox.ErrBlocked) || n > 10000 {
			t.Fatalf("message %d: %v", n, blocked)
		}
	}
	t.Log(blocked)
	start := time.Now()
	if err := p.Publish(t.Context(), outbox.Message{ID: "during", Topic: "alarm"}); !errors.Is(err, outbox.ErrBlocked) || !strings.Contains(err.Error(), "memory") {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	testservers.RabbitMQControl(t, server, "set_vm_memory_high_watermark", "absolute", "512MB")
	send(t, p, outbox.Message{ID: "after", Topic: "alarm"})
}

// send repeats a message until it is confirmed.
func send(t *testing.T, p *rabbit.Publisher, m outbox.Message) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := p.Publish(ctx, m)
		cancel()
		if err == nil {
			return
		}
		if errors.Is(err, outbox.ErrRefused) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestStuckWrite: a frozen broker whose buffers are full holds up no call, and the publisher goes on with another connection.
func TestStuckWrite(t *testing.T) {
	server := testservers.SharedRabbitMQ(t)
	declare(t, "stuck", nil)
	p := newPublisher(t, time.Second)
	send(t, p, outbox.Message{ID: "before", Topic: "stuck"})
	server.Pause()
	resumed := sync.OnceFunc(server.Resume)
	defer resumed()
	for n := 0; ; n++ { // until the client has given up the connection, and waits for another
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		err := p.Publish(ctx, outbox.Message{ID: fmt.Sprint("stuck-", n), Topic: "stuck", Payload: make([]byte, 1<<20)})
		cancel()
		if took := time.Since(start); took > 20*time.Second {
			t.Fatalf("a call took %v", took)
		}
		if err == nil || n > 1000 {
			t.Fatalf("message %d: %v", n, err)
		}
		if strings.Contains(err.Error(), "not yet connected") {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	other := newPublisher(t, 0)
	if err := other.Publish(ctx, outbox.Message{ID: "1", Topic: "stuck"}); !errors.Is(err, outbox.ErrBlocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	resumed()
	send(t, p, outbox.Message{ID: "after", Topic: "stuck"})
}

// TestClose: Close waits for calls in flight, but not beyond its ctx.
func TestClose(t *testing.T) {
	server := testservers.SharedRabbitMQ(t)
	declare(t, "close", nil)
	p := newPublisher(t, 0)
	if err := p.Publish(t.Context(), outbox.Message{ID: "before", Topic: "close"}); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	defer server.Resume()
	flying := make(chan error)
	started := make(chan struct{})
	go func() {
		close(started)
		flying <- p.Publish(context.Background(), outbox.Message{ID: "flying", Topic: "close"})
	}()
	<-started
	for pending := true; pending; { // the call is in flight when others fail with their ctx
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		pending = !errors.Is(p.Publish(ctx, outbox.Message{ID: "probe", Topic: "close"}), context.DeadlineExceeded)
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("frozen: %v", err)
	}
	if err := <-flying; !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("in flight: %v", err)
	}
	if err := p.Publish(t.Context(), outbox.Message{ID: "late", Topic: "close"}); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("later: %v", err)
	}
}

// TestSecrets: no error has a password, and a broker that lets nobody in blocks.
func TestSecrets(t *testing.T) {
	addr := testservers.SharedRabbitMQ(t).Addr
	for _, url := range []string{"amqp://guest:s3cret@" + addr, "amqp://guest:s3cret/@" + addr, "http://guest:s3cret@" + addr, "amqp://guest:s3cret@127.0.0.1:1/"} {
		p, err := rabbit.New(rabbit.Dial(url, amqp.Config{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := p.Publish(t.Context(), outbox.Message{ID: "1", Topic: "x"}); !errors.Is(err, outbox.ErrBlocked) || strings.Contains(err.Error(), "s3cret") {
				t.Error(err)
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestOptions(t *testing.T) {
	dial := rabbit.Dial("amqp://127.0.0.1", amqp.Config{})
	for field, opts := range map[string]rabbit.Options{
		"Options.Exchange": {Exchange: strings.Repeat("x", 256)},
		"Options.Route":    {Exchange: "x", Route: func(outbox.Message) (string, string) { return "", "" }},
	} {
		if _, err := rabbit.New(dial, &opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Error(err)
		}
	}
	if _, err := rabbit.New(nil, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}
