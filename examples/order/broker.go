package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/inbox"
	inboxnats "github.com/pawl-go/pawl/inbox/natsjs"
	inboxredis "github.com/pawl-go/pawl/inbox/redisstream"
	inboxhook "github.com/pawl-go/pawl/inbox/webhook"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/natsjs"
	"github.com/pawl-go/pawl/outbox/redisstream"
	"github.com/pawl-go/pawl/outbox/webhook"
)

// secret signs webhooks. The secret of a program is in its settings.
var secret = []byte("a secret of the example, not yours")

// hold is after how long the broker gives the messages of a killed consumer to another.
const hold = time.Second

// connectNATS returns the JetStream of a server, and the stream. The stream drops repeats for a short time only. Else it would
// drop those of Resend, too.
func connectNATS(ctx context.Context, s *settings) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(s.Broker, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(100*time.Millisecond), nats.Timeout(time.Minute))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: s.Stream, Subjects: []string{s.Stream}, Duplicates: 500 * time.Millisecond})
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

// openPublisher returns the publisher of the broker, and its end.
func openPublisher(ctx context.Context, s *settings) (outbox.Publisher, func(), error) {
	scheme, _, _ := strings.Cut(s.Broker, ":")
	switch scheme {
	case "nats":
		nc, js, err := connectNATS(ctx, s)
		if err != nil {
			return nil, nil, err
		}
		return natsjs.New(nc, js), nc.Close, nil
	case "redis":
		client, err := open.OpenRedis(ctx, s.Broker)
		if err != nil {
			return nil, nil, err
		}
		publisher, err := redisstream.New(client, nil)
		return publisher, client.Close, err
	case "http":
		publisher, err := webhook.New(s.Broker, webhook.Options{Secret: secret})
		return publisher, func() {}, err
	}
	return nil, nil, errors.New("no such broker")
}

// openSource returns the source of the broker, and its end.
func openSource(ctx context.Context, s *settings) (inbox.Source, func(), error) {
	if addr, is := strings.CutPrefix(s.Broker, "http://"); is {
		source, err := inboxhook.New(&inboxhook.Options{Secrets: [][]byte{secret}, Wait: 2 * time.Second})
		if err != nil {
			return nil, nil, err
		}
		listener, err := listen(ctx, addr)
		if err != nil {
			return nil, nil, err
		}
		go serve(ctx, listener, source) //nolint:errcheck // the server ends with the process
		return source, func() {}, nil
	}
	if strings.HasPrefix(s.Broker, "nats:") {
		nc, js, err := connectNATS(ctx, s)
		if err != nil {
			return nil, nil, err
		}
		source, err := inboxnats.New(js, s.Stream, "stock", &inboxnats.Options{Hold: hold, Block: 100 * time.Millisecond})
		return source, nc.Close, err
	}
	client, err := open.OpenRedis(ctx, s.Broker)
	if err != nil {
		return nil, nil, err
	}
	source, err := inboxredis.New(client, s.Stream, "stock", &inboxredis.Options{Hold: hold, Block: 100 * time.Millisecond})
	return source, client.Close, err
}
