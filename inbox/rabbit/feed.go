package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
)

// feed is the queue as one channel reads it.
type feed struct {
	*Source
	conn       *amqp.Connection
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	closed     <-chan *amqp.Error
	canceled   <-chan string
	acks       chan ack
	leave      func(context.Context) error // the publisher of dead letters

	ended  chan struct{} // closed after err was set
	ending sync.Once
	err    error
}

// ack is an acknowledgement to be written.
type ack struct {
	tag  uint64
	done chan error
}

func (f *feed) end(err error) {
	f.ending.Do(func() { f.err = err; close(f.ended) })
}

// watch waits until the broker delivers no more.
func (f *feed) watch() {
	select {
	case tag := <-f.canceled:
		if tag != "" {
			f.end(errors.New("the broker has cancelled the consumer, as when the queue is deleted"))
			return
		}
		f.endWith(<-f.closed) // the channel has closed both
	case err := <-f.closed:
		f.endWith(err)
	}
}

// endWith ends the feed with the error of its channel, which may be nil.
func (f *feed) endWith(err *amqp.Error) {
	if err == nil {
		err = amqp.ErrClosed
	}
	f.end(err)
}

// write hands acknowledgements to the library, one at a time. The library blocks as long as the broker reads nothing, and
// then holds a lock without which the library cannot close the connection. So a write that takes too long ends the connection.
func (f *feed) write() {
	limit := openWithin
	if beat := f.conn.Config.Heartbeat; beat > 0 {
		limit = 2 * beat
	}
	stuck := time.AfterFunc(limit, func() {
		f.end(fmt.Errorf("the broker has read nothing for %v", limit))
		f.conn.CloseDeadline(time.Now()) //nolint:errcheck // it is given up
	})
	stuck.Stop()
	for {
		select {
		case a := <-f.acks:
			stuck.Reset(limit)
			err := f.ch.Ack(a.tag, false)
			stuck.Stop()
			a.done <- err
		case <-f.ended:
			return
		}
	}
}

// Hold implements [inbox.Feed]. The broker leaves a delivery to the channel for ever, or closes the channel.
func (f *feed) Hold() time.Duration { return 0 }

// Extend implements [inbox.Feed].
func (f *feed) Extend(context.Context) error { return nil }

// Receive implements [inbox.Feed].
func (f *feed) Receive(ctx context.Context, most int) (got []inbox.Delivery, _ error) {
	select {
	case <-f.ended:
		return nil, f.failed("read", f.err)
	default:
	}
	for deliveries := f.deliveries; len(got) == 0; {
		select {
		case d, open := <-deliveries:
			if open {
				got = append(got, f.hand(d))
			} else {
				deliveries = nil // the reason follows
			}
		case <-f.ended:
			return nil, f.failed("read", f.err)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for len(got) < most {
		select {
		case d, open := <-f.deliveries:
			if open {
				got = append(got, f.hand(d))
				continue
			}
		default:
		}
		break
	}
	return got, nil
}

// Close implements [inbox.Feed]. The broker gets all messages back that are not settled, each in its place.
func (f *feed) Close(ctx context.Context) error {
	f.end(fmt.Errorf("the feed is %w", pawl.ErrClosed))
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.conn.CloseDeadline(time.Now().Add(closeWithin)) //nolint:errcheck // the broker notices its end
	}()
	err := f.leave(ctx)
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
	}
	return f.failed("close", err)
}

// delivery is a message in the hands of the consumer.
type delivery struct {
	feed  *feed
	raw   amqp.Delivery
	m     inbox.Message
	count int
}

func (f *feed) hand(raw amqp.Delivery) *delivery {
	raw.Acknowledger = nil
	return &delivery{feed: f, raw: raw, m: message(f.queue, raw), count: count(raw)}
}

// Message implements [inbox.Delivery].
func (d *delivery) Message() inbox.Message { return d.m }

// Unload implements [inbox.Delivery]. The broker gives a message again only as a further delivery, so the content stays here.
func (d *delivery) Unload() {}

// Load implements [inbox.Delivery].
func (d *delivery) Load(context.Context) (inbox.Message, error) { return d.m, nil }

// Count implements [inbox.Delivery].
func (d *delivery) Count() int { return d.count }

// Ack implements [inbox.Delivery].
func (d *delivery) Ack(ctx context.Context) error {
	f := d.feed
	a := ack{d.raw.DeliveryTag, make(chan error, 1)}
	select {
	case f.acks <- a:
	case <-f.ended:
		return f.failed("acknowledge", f.err)
	case <-ctx.Done():
		return f.failed("acknowledge", ctx.Err())
	}
	select {
	case err := <-a.done:
		return f.failed("acknowledge", err)
	case <-f.ended:
		return f.failed("acknowledge", f.err)
	case <-ctx.Done():
		return f.failed("acknowledge", ctx.Err())
	}
}

// Nack implements [inbox.Delivery]. The broker gets the message back when the feed closes, because a message that is rejected may lose its place.
func (d *delivery) Nack(context.Context) error { return nil }
