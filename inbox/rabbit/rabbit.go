package rabbit

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
	publisher "github.com/pawl-go/pawl/outbox/rabbit"
)

const (
	maxShort    = 255              // bytes of a short string of AMQP
	openWithin  = 30 * time.Second // for a dial and what a feed asks first
	closeWithin = 5 * time.Second
)

// DialFunc makes a connection, as that of package outbox/rabbit does.
type DialFunc = publisher.DialFunc

// Dial returns a function that connects to the broker at an AMQP URL, as that of package outbox/rabbit does.
func Dial(brokerURL string, config amqp.Config) DialFunc { return publisher.Dial(brokerURL, config) }

// Options are the settings of [New].
type Options struct {
	// Prefetch is how many messages that are not settled the broker leaves to this process: 1 to 65,535. Default 1000. Prefetch has to
	// be larger than inbox.ConsumerOptions.Window, so that a key that fails does not stop the others.
	Prefetch int
	// Dead is the queue of dead letters: 1 to 255 bytes. Default is the queue and ".dead", which Open declares as a durable
	// queue if it is missing.
	Dead string
}

// Source is an [inbox.Source]. A Source is safe for concurrent use. Create it with [New].
type Source struct {
	dial      DialFunc
	queue     string
	opts      Options
	makesDead bool

	mu      sync.Mutex
	users   int // feeds that are open, and dead letters under way
	letters *publisher.Publisher
}

var _ inbox.Source = (*Source)(nil)

// New returns the source of a queue, which has to be there when the consumer opens it. Each feed has a connection of its own, and
// dead letters have another. Nothing is dialled yet. Nil opts are the defaults. The error of New matches pawl.ErrInvalid.
func New(dial DialFunc, queue string, opts *Options) (*Source, error) {
	s := &Source{dial: dial, queue: queue}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Prefetch == 0 {
		s.opts.Prefetch = 1000
	}
	if s.makesDead = s.opts.Dead == ""; s.makesDead {
		s.opts.Dead = queue + ".dead"
	}
	const most = 65_535
	switch {
	case dial == nil:
		return nil, fmt.Errorf("rabbitmq: %w: dial is nil", pawl.ErrInvalid)
	case queue == "" || len(queue) > maxShort:
		return nil, fmt.Errorf("rabbitmq: %w: queue has %d bytes: 1 to %d are allowed", pawl.ErrInvalid, len(queue), maxShort)
	case len(s.opts.Dead) > maxShort || s.opts.Dead == queue:
		return nil, fmt.Errorf("rabbitmq: %w: Options.Dead has %d bytes: another queue of 1 to %d is allowed", pawl.ErrInvalid, len(s.opts.Dead), maxShort)
	case s.opts.Prefetch < 1 || s.opts.Prefetch > most:
		return nil, fmt.Errorf("rabbitmq: %w: Options.Prefetch is %d: 1 to %d are allowed", pawl.ErrInvalid, s.opts.Prefetch, most)
	}
	return s, nil
}

// errBusy says that the last reader's connection is still there, and with it messages that have to come first.
var errBusy = errors.New("another consumer reads the queue")

// Open implements [inbox.Source].
func (s *Source) Open(ctx context.Context, single bool) (inbox.Feed, error) {
	f := &feed{Source: s, acks: make(chan ack), ended: make(chan struct{})}
	err := s.connected(ctx, func(conn *amqp.Connection) error {
		f.conn = conn
		return f.consume(single)
	})
	if err != nil {
		return nil, s.failed("read", redact(err))
	}
	_, f.leave = s.publisher()
	go f.watch()
	go f.write()
	return f, nil
}

// connected dials, and calls fn with the connection. The connection stays open if fn succeeds. The client library heeds no ctx, so
// the connection is closed when ctx ends.
func (s *Source) connected(ctx context.Context, fn func(*amqp.Connection) error) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.CloseDeadline(time.Now()) }) //nolint:errcheck // it is given up
	if conn.IsRecoveryEnabled() {
		err = errors.New("the connection has the recovery of the client library, which loses deliveries")
	} else {
		err = fn(conn)
	}
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		conn.CloseDeadline(time.Now().Add(closeWithin)) //nolint:errcheck // nothing was received
	}
	return err
}

// consume begins to read the queue.
func (f *feed) consume(single bool) error {
	if err := f.declareDead(f.conn); err != nil {
		return fmt.Errorf("queue of dead letters %q: %w", f.opts.Dead, err)
	}
	ch, err := f.conn.Channel()
	if err != nil {
		return err
	}
	is, err := ch.QueueDeclarePassive(f.queue, true, false, false, false, nil)
	if err == nil && single && is.Consumers > 0 {
		err = errBusy
	}
	if err == nil {
		err = ch.Qos(f.opts.Prefetch, 0, false)
	}
	if err != nil {
		return err
	}
	f.ch = ch
	f.closed, f.canceled = ch.NotifyClose(make(chan *amqp.Error, 1)), ch.NotifyCancel(make(chan string, 1))
	f.deliveries, err = ch.Consume(f.queue, "", false, false, false, false, nil)
	return err
}

// declareDead looks for the queue of dead letters, and declares the default one if it is missing.
func (s *Source) declareDead(conn *amqp.Connection) error {
	for _, declare := range []bool{false, true} {
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		if declare {
			_, err = ch.QueueDeclare(s.opts.Dead, true, false, false, false, nil)
		} else {
			_, err = ch.QueueDeclarePassive(s.opts.Dead, true, false, false, false, nil)
		}
		if is := new(amqp.Error); !declare && s.makesDead && errors.As(err, &is) && is.Code == amqp.NotFound {
			continue // the broker has closed the channel
		}
		if err == nil {
			err = ch.Close()
		}
		return err
	}
	return nil
}

// redact hides URLs, which may have a password.
func redact(err error) error {
	if errors.As(err, new(*url.Error)) {
		return errors.New("the URL of the broker is not valid")
	}
	return err
}

func (s *Source) failed(what string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("rabbitmq: queue %q: %s: %w", s.queue, what, err)
}
