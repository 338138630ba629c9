package bench

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/natsjs"
	"github.com/pawl-go/pawl/outbox/rabbit"
	"github.com/pawl-go/pawl/outbox/redisstream"
)

// topic is that of all messages.
const topic = "orders"

// outboxBroker is a broker of BenchmarkOutboxBroker.
type outboxBroker struct {
	name      string
	publisher outbox.Publisher
	bare      func(m outbox.Message) error // publishes by the broker's client, and returns when the broker has confirmed
	empty     func() error
}

// round publishes as many messages as a round of the relay has, with as many under way, and returns the time of a message.
func (o outboxBroker) round(b *testing.B) time.Duration {
	payload := make([]byte, 256)
	const clients = outWindow * outbox.Partitions
	var group sync.WaitGroup
	began := time.Now()
	for client := range clients {
		group.Go(func() {
			for i := client; i < relayed; i += clients {
				m := outbox.Message{ID: fmt.Sprintf("%032d", i), Topic: topic, Key: fmt.Sprint("order-", i%keys), Payload: payload, Time: began}
				if err := o.bare(m); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	took := time.Since(began)
	if err := o.empty(); err != nil {
		b.Error(err)
	}
	return took / relayed
}

func redisBroker(b *testing.B) outboxBroker {
	redis, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.Redis(b).Addr}, DisableCache: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(redis.Close)
	publisher, err := redisstream.New(redis, nil)
	if err != nil {
		b.Fatal(err)
	}
	return outboxBroker{name: "a Redis stream", publisher: publisher,
		bare: func(m outbox.Message) error {
			return redis.Do(ctx, redis.B().Xadd().Key(m.Topic).Id("*").FieldValue().FieldValue(redisstream.FieldID, m.ID).FieldValue(redisstream.FieldKey, m.Key).
				FieldValue(redisstream.FieldTime, m.Time.UTC().Format(time.RFC3339)).FieldValue(redisstream.FieldPayload, rueidis.BinaryString(m.Payload)).Build()).Error()
		},
		empty: func() error { return redis.Do(ctx, redis.B().Del().Key(topic).Build()).Error() }}
}

func natsBroker(b *testing.B) outboxBroker {
	nc, err := nats.Connect("nats://" + testservers.NATS(b).Addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "BENCH", Subjects: []string{topic}})
	if err != nil {
		b.Fatal(err)
	}
	return outboxBroker{name: "NATS JetStream", publisher: natsjs.New(nc, js),
		bare: func(m outbox.Message) error {
			_, err := js.PublishMsg(ctx, &nats.Msg{Subject: m.Topic, Data: m.Payload, Header: nats.Header{natsjs.HeaderID: {m.ID}, natsjs.HeaderKey: {m.Key},
				natsjs.HeaderTime: {m.Time.UTC().Format(time.RFC3339)}}})
			return err
		},
		empty: func() error { return stream.Purge(ctx) }}
}

func rabbitBroker(b *testing.B) outboxBroker {
	url := testservers.RabbitMQURL(testservers.RabbitMQ(b).Addr)
	publisher, err := rabbit.New(rabbit.Dial(url, amqp.Config{}), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { publisher.Close(ctx) }) //nolint:errcheck // all is confirmed
	conn, err := amqp.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() }) //nolint:errcheck // all is confirmed
	channel, err := conn.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err == nil {
		_, err = channel.QueueDeclare(topic, true, false, false, false, nil)
	}
	if err != nil {
		b.Fatal(err)
	}
	return outboxBroker{name: "a queue of RabbitMQ", publisher: publisher,
		bare: func(m outbox.Message) error {
			confirm, err := channel.PublishWithDeferredConfirm("", m.Topic, true, false, amqp.Publishing{MessageId: m.ID, Timestamp: m.Time, DeliveryMode: amqp.Persistent,
				Headers: amqp.Table{rabbit.HeaderKey: m.Key}, Body: m.Payload})
			if err == nil && !confirm.Wait() {
				err = errors.New("a message is not kept")
			}
			return err
		},
		empty: func() error { _, err := channel.QueuePurge(topic, false); return err }}
}
