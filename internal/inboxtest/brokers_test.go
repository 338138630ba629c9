package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/natsjs"
	"github.com/pawl-go/pawl/inbox/redisstream"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	outboxnats "github.com/pawl-go/pawl/outbox/natsjs"
	outboxredis "github.com/pawl-go/pawl/outbox/redisstream"
)

// hold is how long a broker leaves a delivery to a process that died.
const hold = time.Second

// broker makes sources and messages of one broker.
type broker interface {
	// source returns the source of a stream.
	source() (inbox.Source, error)
	// outbox returns a publisher for an outbox.
	outbox() (outbox.Publisher, error)
	// publish puts messages into the stream, in their order.
	publish(ctx context.Context, messages ...inbox.Message) error
	// dead returns the reasons of the dead letters by ID.
	dead(ctx context.Context) (map[string]string, error)
	// unsettled is how many messages nobody has settled.
	unsettled(ctx context.Context) (int, error)
	// close ends the client.
	close()
}

const quorum = "rabbitmq quorum"

// brokers are all kinds. Connect makes a client of a server, with a stream of this name.
var brokers = map[string]struct {
	connect func(addr, name string) (broker, error)
	shared  func(t testing.TB) *testservers.Server
	own     func(t testing.TB, args ...string) *testservers.Server
	durable []string // arguments of a server that keeps its data
}{
	"redis":            {connectRedis, testservers.SharedRedis, testservers.Redis, []string{"--appendonly", "yes", "--appendfsync", "always"}},
	"nats":             {connectNATS, testservers.SharedNATS, testservers.NATS, nil},
	"rabbitmq classic": {connectClassic, testservers.SharedRabbitMQ, testservers.RabbitMQ, nil},
	quorum:             {connectQuorum, testservers.SharedRabbitMQ, testservers.RabbitMQ, nil},
}

type redisBroker struct {
	client rueidis.Client
	stream string
}

func connectRedis(addr, name string) (broker, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	return &redisBroker{client, name}, err
}

func (b *redisBroker) source() (inbox.Source, error) {
	return redisstream.New(b.client, b.stream, "g", &redisstream.Options{Hold: hold, Block: 200 * time.Millisecond, Dead: b.stream + ":dead"})
}

func (b *redisBroker) outbox() (outbox.Publisher, error) {
	return outboxredis.New(b.client, &outboxredis.Options{MaxLen: 10 * wholeAhead})
}

func (b *redisBroker) publish(ctx context.Context, messages ...inbox.Message) error {
	var all rueidis.Commands
	for _, m := range messages {
		fields := []string{"*", "id", m.ID, "key", m.Key, "time", m.Time.UTC().Format(time.RFC3339), "payload", rueidis.BinaryString(m.Payload)}
		for name, value := range m.Headers {
			fields = append(fields, "header:"+name, value)
		}
		all = append(all, b.client.B().Arbitrary("XADD").Keys(b.stream).Args(fields...).Build())
	}
	for _, r := range b.client.DoMulti(ctx, all...) {
		if err := r.Error(); err != nil {
			return err
		}
	}
	return nil
}

func (b *redisBroker) dead(ctx context.Context) (map[string]string, error) {
	entries, err := b.client.Do(ctx, b.client.B().Xrange().Key(b.stream+":dead").Start("-").End("+").Build()).AsXRange()
	all := make(map[string]string)
	for _, e := range entries {
		all[e.FieldValues["id"]] = e.FieldValues["dead:reason"]
	}
	return all, err
}

func (b *redisBroker) unsettled(ctx context.Context) (int, error) {
	groups, err := b.client.Do(ctx, b.client.B().XinfoGroups().Key(b.stream).Build()).ToArray()
	if err != nil || len(groups) == 0 {
		return -1, errors.Join(err, errors.New("no group"))
	}
	is, err := groups[0].AsMap()
	if err != nil {
		return 0, err
	}
	pending, lag := is["pending"], is["lag"]
	n, _ := pending.AsInt64()
	more, _ := lag.AsInt64()
	return int(n + more), nil
}

func (b *redisBroker) close() { b.client.Close() }

type natsBroker struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	name string
}

func connectNATS(addr, name string) (broker, error) {
	nc, err := nats.Connect(addr, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
		nc.Close()
		return nil, err
	}
	return &natsBroker{nc, js, name}, nil
}

func (b *natsBroker) source() (inbox.Source, error) {
	return natsjs.New(b.js, b.name, "g", &natsjs.Options{Hold: hold, Block: 200 * time.Millisecond})
}

func (b *natsBroker) outbox() (outbox.Publisher, error) { return outboxnats.New(b.nc, b.js), nil }

func (b *natsBroker) publish(ctx context.Context, messages ...inbox.Message) error {
	for _, m := range messages {
		msg := &nats.Msg{Subject: b.name, Data: m.Payload, Header: nats.Header{"Pawl-Key": {m.Key}, "Pawl-Time": {m.Time.UTC().Format(time.RFC3339)}}}
		if m.ID != "" {
			msg.Header["Nats-Msg-Id"] = []string{m.ID}
		}
		for name, value := range m.Headers {
			msg.Header[name] = []string{value}
		}
		if _, err := b.js.PublishMsg(ctx, msg); err != nil {
			return err
		}
	}
	return nil
}

func (b *natsBroker) dead(ctx context.Context) (map[string]string, error) {
	all := make(map[string]string)
	stream, err := b.js.Stream(ctx, b.name+"_dead")
	if err != nil {
		return nil, err
	}
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		msg, err := stream.GetMsg(ctx, seq)
		if err != nil {
			return nil, fmt.Errorf("dead letter %d: %w", seq, err)
		}
		all[msg.Header.Get("Pawl-ID")] = msg.Header.Get("Pawl-Dead-Reason")
	}
	return all, nil
}

func (b *natsBroker) unsettled(ctx context.Context) (int, error) {
	c, err := b.js.Consumer(ctx, b.name, "g")
	if err != nil {
		return 0, err
	}
	is := c.CachedInfo()
	return is.NumAckPending + int(is.NumPending), nil
}

func (b *natsBroker) close() { b.nc.Close() }
