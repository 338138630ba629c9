package inbox

import (
	"context"
	"time"
)

// Source is a broker's queue, stream or subscription from which a [Consumer] takes messages. A Source is safe for
// concurrent use.
type Source interface {
	// Open begins to read. Single says that no other process reads until Close. The feed then begins with the messages that
	// earlier readers have not acknowledged, in the order of the broker. New messages follow.
	Open(ctx context.Context, single bool) (Feed, error)
}

// Feed is a source that is read. Receive is for one goroutine at a time. All other methods may be called meanwhile.
type Feed interface {
	// Receive waits until there is a message or ctx ends, and returns at most so many deliveries. A feed that may
	// have missed a delivery returns an error; the consumer then closes the feed and opens another. The consumer keeps deliveries of
	// a key that fails, so the source bounds how many are not settled.
	Receive(ctx context.Context, most int) ([]Delivery, error)
	// Hold is how long the broker leaves a delivery to this feed without Extend. 0 is for ever.
	Hold() time.Duration
	// Extend keeps all deliveries of the feed that are not settled for another Hold.
	Extend(ctx context.Context) error
	// Close ends the feed. The broker gives deliveries that are not settled to others, after Hold at the latest.
	Close(ctx context.Context) error
}

// Delivery is a message in the hands of the consumer. One of Ack, Nack and Dead settles the delivery. Each may be called
// again after an error. Each may be called after the feed has closed or lost the delivery to another process, and then may do
// nothing.
type Delivery interface {
	// Message returns the message. The ID is empty if the broker has something that is no message
	// of this package.
	Message() Message
	// Count is how often the broker has delivered the message, with this delivery: 1 or more. Where the broker lets the source do so, deliveries that
	// ended in a Nack are left out, because the consumer outlived them. A broker that does not count says 1.
	Count() int
	// Unload says that the message does not run soon. The source may free the memory of Headers and Payload. The delivery stays with
	// the feed.
	Unload()
	// Load returns the message with its content, also after Unload. The error matches ErrGone if the broker does not have the
	// message any more.
	Load(ctx context.Context) (Message, error)
	// Ack tells the broker that the message took effect.
	Ack(ctx context.Context) error
	// Nack gives the message back, because this process ends. The broker delivers the message again.
	Nack(ctx context.Context) error
	// Dead moves the message to the dead letters of the source, with the reason. The error matches ErrTaken if the delivery is not with its feed
	// any more. The consumer is then done with the delivery. A consumer with ConsumerOptions.Single waits until the message comes again,
	// at most 5 min and twice Hold, and the wait before the next attempt.
	Dead(ctx context.Context, reason string) error
}
