package outbox

import "context"

// Publisher sends messages to a broker. A Publisher is safe for concurrent use.
type Publisher interface {
	// Publish sends a message and returns nil once the broker has confirmed that it keeps the message.
	// The relay calls Publish for a window of messages at once, so implementations pipeline confirms.
	//
	// An error that matches [ErrRefused] says that the broker will never take this message. An error that matches
	// [ErrBlocked] says that the broker takes no message now; the attempt does not count. Every other error
	// says that the outcome is unknown: the relay sends the message again. Publish returns when ctx ends.
	Publish(ctx context.Context, m Message) error
}
