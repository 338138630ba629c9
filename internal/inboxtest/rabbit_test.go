package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/rabbit"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	publisher "github.com/pawl-go/pawl/outbox/rabbit"
)

// rabbitBroker has a classic queue, or a quorum queue with a single active consumer.
type rabbitBroker struct {
	dial      rabbit.DialFunc
	publisher *publisher.Publisher
	queue     string
	quorum    bool
	server    *testservers.Server // nil in a worker process
}

var singleActive = amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}

func connectClassic(addr, name string) (broker, error) { return connectRabbit(addr, name, nil) }

func connectQuorum(addr, name string) (broker, error) {
	return connectRabbit(addr, name, singleActive)
}

func connectRabbit(addr, name string, args amqp.Table) (broker, error) {
	b := &rabbitBroker{dial: rabbit.Dial(testservers.RabbitMQURL(addr), amqp.Config{Heartbeat: 5 * time.Second}), queue: name, quorum: args != nil}
	err := b.with(context.Background(), func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
	if err == nil {
		b.publisher, err = publisher.New(b.dial, nil)
	}
	return b, err
}

// with calls fn with a channel of its own.
func (b *rabbitBroker) with(ctx context.Context, fn func(*amqp.Channel) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := b.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(10 * time.Second)) //nolint:errcheck // what counts has been answered
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return fn(ch)
}

func (b *rabbitBroker) source() (inbox.Source, error) {
	return rabbit.New(b.dial, b.queue, nil)
}

func (b *rabbitBroker) outbox() (outbox.Publisher, error) { return b.publisher, nil }

func (b *rabbitBroker) publish(ctx context.Context, messages ...inbox.Message) error {
	for _, m := range messages {
		out := outbox.Message{ID: m.ID, Topic: b.queue, Key: m.Key, Headers: m.Headers, Payload: m.Payload, Time: m.Time}
		err := b.publishOnce(ctx, out)
		for err != nil && !errors.Is(err, outbox.ErrRefused) && ctx.Err() == nil { // as the relay does
			time.Sleep(20 * time.Millisecond)
			err = b.publishOnce(ctx, out)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// publishOnce is bounded, because a quorum queue without a leader drops messages without a word.
func (b *rabbitBroker) publishOnce(ctx context.Context, m outbox.Message) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return b.publisher.Publish(ctx, m)
}

func (b *rabbitBroker) dead(ctx context.Context) (map[string]string, error) {
	all := make(map[string]string)
	err := b.with(ctx, func(ch *amqp.Channel) error {
		for {
			d, ok, err := ch.Get(b.queue+".dead", false)
			if err != nil || !ok {
				return err
			}
			all[d.MessageId], _ = d.Headers["Pawl-Dead-Reason"].(string)
		}
	})
	return all, err
}

// unsettled leaves out what consumers hold, if this is a worker process. Then the effects say whether that has run.
func (b *rabbitBroker) unsettled(ctx context.Context) (n int, err error) {
	if b.server != nil {
		return testservers.RabbitMQUnsettled(b.server, b.queue)
	}
	err = b.with(ctx, func(ch *amqp.Channel) error {
		is, err := ch.QueueDeclarePassive(b.queue, true, false, false, false, nil)
		n = is.Messages
		return err
	})
	return n, err
}

// elect lets a quorum queue elect its leader, as an operator would. The only member of such a queue may stay a follower for ever after
// RabbitMQ 3.10 was killed. Until an election the queue takes no message and no consumer.
func (b *rabbitBroker) elect(t *testing.T) {
	t.Helper()
	if b.quorum {
		testservers.RabbitMQControl(t, b.server, "eval", fmt.Sprintf("ra:trigger_election({list_to_atom(%q), node()}).", "%2F_"+b.queue))
	}
}

func (b *rabbitBroker) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b.publisher.Close(ctx) //nolint:errcheck // what counts was confirmed
}
