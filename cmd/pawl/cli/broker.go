package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/natsjs"
	"github.com/pawl-go/pawl/outbox/rabbit"
	"github.com/pawl-go/pawl/outbox/redisstream"
	"github.com/pawl-go/pawl/outbox/webhook"
)

// brokerOptions are the user's choices for a broker. An option of another kind of broker is refused.
type brokerOptions struct {
	url      string // of --to, or else of PAWL_TO
	exchange string // of RabbitMQ
	source   string // of webhooks
	maxLen   int64  // of Redis streams
}

// broker is a publisher with its connection.
type broker struct {
	outbox.Publisher
	close func(context.Context) error
}

// location is the URL of the broker.
func (o brokerOptions) location() string { return cmp.Or(o.url, os.Getenv("PAWL_TO")) }

func nothing(context.Context) error { return nil }

// open makes the publisher. The broker may be away: that is said, and the publisher connects later.
func (o brokerOptions) open(ctx context.Context) (broker, error) {
	location := o.location()
	scheme, _, _ := strings.Cut(location, ":")
	kind := brokerKinds[scheme]
	switch {
	case location == "":
		return broker{}, usageError("--to is missing: the URL of the broker, or put it into PAWL_TO")
	case kind == nil:
		return broker{}, usageError("--to has no scheme of a broker: allowed are amqp, amqps, http, https, nats, redis, rediss, redis+cluster, redis+sentinel") // not quoted: it may be a password
	case o.exchange != "" && !strings.HasPrefix(scheme, "amqp"):
		return broker{}, usageError("--exchange is not for a broker of %s", scheme)
	case o.source != "" && !strings.HasPrefix(scheme, "http"):
		return broker{}, usageError("--source is not for a broker of %s", scheme)
	case o.maxLen != 0 && !strings.HasPrefix(scheme, "redis"):
		return broker{}, usageError("--maxlen is not for a broker of %s", scheme)
	}
	o.url = location
	b, err := kind(ctx, o)
	if err != nil {
		err = fmt.Errorf("--to: %w", err)
	}
	return b, err
}

// brokerKinds make a publisher for a scheme.
var brokerKinds = map[string]func(context.Context, brokerOptions) (broker, error){
	"amqp": openRabbit, "amqps": openRabbit, "http": openWebhook, "https": openWebhook, "nats": openJetStream,
	"redis": openRedis, "rediss": openRedis, "redis+cluster": openRedis, "redis+sentinel": openRedis,
}

func openRabbit(_ context.Context, o brokerOptions) (broker, error) {
	if _, err := amqp.ParseURI(o.url); err != nil { // whose text may have the password
		return broker{}, usageError("--to is no URL of AMQP: the form is amqp://USER:PASSWORD@HOST:PORT/VHOST")
	}
	p, err := rabbit.New(rabbit.Dial(o.url, amqp.Config{}), &rabbit.Options{Exchange: o.exchange}) // which dials later
	if err != nil {
		return broker{}, err
	}
	return broker{p, p.Close}, nil
}

func openWebhook(_ context.Context, o brokerOptions) (broker, error) {
	opts := webhook.Options{Source: o.source}
	if text := os.Getenv("PAWL_WEBHOOK_SECRET"); text != "" {
		var err error
		if opts.Secret, err = webhook.ParseSecret(text); err != nil {
			return broker{}, fmt.Errorf("PAWL_WEBHOOK_SECRET: %w", err)
		}
	}
	p, err := webhook.New(o.url, opts)
	return broker{p, nothing}, err
}

func openJetStream(ctx context.Context, o brokerOptions) (broker, error) {
	return later(ctx, func(ctx context.Context) (broker, error) {
		nc, err := open.OpenNATS(ctx, o.url)
		if err != nil {
			return broker{}, err
		}
		js, err := jetstream.New(nc)
		if err != nil {
			nc.Close()
			return broker{}, err
		}
		return broker{natsjs.New(nc, js), func(context.Context) error { nc.Close(); return nil }}, nil
	})
}

func openRedis(ctx context.Context, o brokerOptions) (broker, error) {
	return later(ctx, func(ctx context.Context) (broker, error) {
		client, err := open.OpenRedis(ctx, o.url)
		if err != nil {
			return broker{}, err
		}
		p, err := redisstream.New(client, &redisstream.Options{MaxLen: o.maxLen})
		return broker{p, func(context.Context) error { client.Close(); return nil }}, err
	})
}

// laterPublisher is a publisher whose first connection may take several tries. The client keeps
// it afterwards.
type laterPublisher struct {
	connect func(context.Context) (broker, error)
	turn    chan struct{} // held by the call that connects, and by each look at the fields below
	made    *broker
	failure error // of the last try
	next    time.Time
}

// later connects, or says that it connects later. An error of later is one of the URL.
func later(ctx context.Context, connect func(context.Context) (broker, error)) (broker, error) {
	p := &laterPublisher{connect: connect, turn: make(chan struct{}, 1)}
	_, err := p.publisher(ctx)
	if errors.Is(err, open.ErrURL) {
		return broker{}, err
	}
	if err != nil {
		complain(fmt.Errorf("%w; the relay tries again", err))
	}
	return broker{p, p.close}, nil
}

// take waits for the turn, or until ctx ends. The caller gives the turn back.
func (p *laterPublisher) take(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *laterPublisher) give() { <-p.turn }

// publisher returns the publisher, and connects at most once a second.
func (p *laterPublisher) publisher(ctx context.Context) (outbox.Publisher, error) {
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	defer p.give()
	if p.made == nil && !time.Now().Before(p.next) {
		made, err := p.connect(ctx)
		if err == nil {
			p.made = &made
		}
		p.failure, p.next = err, time.Now().Add(time.Second)
	}
	if p.made == nil {
		return nil, p.failure
	}
	return p.made, nil
}

// Publish implements [outbox.Publisher].
func (p *laterPublisher) Publish(ctx context.Context, m outbox.Message) error {
	made, err := p.publisher(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", outbox.ErrBlocked, err)
	}
	return made.Publish(ctx, m)
}

func (p *laterPublisher) close(ctx context.Context) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.give()
	if p.made == nil {
		return nil
	}
	return p.made.close(ctx)
}
