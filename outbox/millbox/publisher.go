package millbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/outbox"
)

// The metadata of a message besides its headers.
const (
	MetadataKey  = "Pawl-Key"  // Message.Key; a message without a key lacks it
	MetadataTime = "Pawl-Time" // Message.Time as RFC 3339
)

// Options are the settings of [New].
type Options struct {
	// Classify says what an error of Watermill's publisher means. Classify returns an error that matches [outbox.ErrRefused] or
	// [outbox.ErrBlocked], or the error itself for an outcome that is unknown. Several goroutines call Classify. Default: unknown.
	Classify func(error) error
	// Window is how many calls of Watermill's publisher are under way at most: 1 to 100,000. Default 1000. More
	// calls wait, and are blocked when their ctx ends.
	Window int
}

// Publisher is an [outbox.Publisher]. A Publisher is safe for concurrent use. Create it with [New].
type Publisher struct {
	mill     message.Publisher
	classify func(error) error
	window   chan struct{}
}

var _ outbox.Publisher = (*Publisher)(nil)

// New returns a publisher that publishes by one of Watermill, which stays the caller's. Nil opts are the defaults. The error
// matches [pawl.ErrInvalid].
func New(mill message.Publisher, opts *Options) (*Publisher, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Window == 0 {
		o.Window = 1000
	}
	if o.Classify == nil {
		o.Classify = func(err error) error { return err }
	}
	const most = 100_000
	switch {
	case mill == nil:
		return nil, fmt.Errorf("watermill: %w: the publisher is nil", pawl.ErrInvalid)
	case o.Window < 1 || o.Window > most:
		return nil, fmt.Errorf("watermill: %w: Options.Window is %d: 1 to %d are allowed", pawl.ErrInvalid, o.Window, most)
	}
	return &Publisher{mill, o.Classify, make(chan struct{}, o.Window)}, nil
}

// Publish implements [outbox.Publisher].
func (p *Publisher) Publish(ctx context.Context, m outbox.Message) error {
	if err := p.publish(ctx, m); err != nil {
		return fmt.Errorf("watermill: publish to topic %q: %w", m.Topic, err)
	}
	return nil
}

func (p *Publisher) publish(ctx context.Context, m outbox.Message) error {
	msg, err := encode(ctx, m)
	if err != nil {
		return err
	}
	select {
	case p.window <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: %d calls are under way: %w", outbox.ErrBlocked, cap(p.window), ctx.Err())
	}
	done := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("the call has ended its goroutine")}
		defer func() {
			a.fault = recover()
			<-p.window
			done <- a
		}()
		a.err = p.mill.Publish(m.Topic, msg)
	}()
	select {
	case a := <-done:
		if a.fault != nil {
			panic(a.fault) // the relay takes this for a failure of the message
		}
		if a.err != nil {
			return p.classify(a.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
}

// answer is how a call of Watermill's publisher has ended.
type answer struct {
	err   error
	fault any // of a panic
}

// encode makes the message of Watermill. A publisher may change the metadata, and may read the payload after ctx has ended.
func encode(ctx context.Context, m outbox.Message) (*message.Message, error) {
	msg := message.NewMessage(m.ID, append([]byte{}, m.Payload...))
	msg.SetContext(ctx)
	for name, value := range m.Headers {
		if reserved(name) {
			return nil, fmt.Errorf("%w: header %q is of the outbox", outbox.ErrRefused, name)
		}
		msg.Metadata[name] = value
	}
	msg.Metadata[MetadataTime] = m.Time.UTC().Format(time.RFC3339Nano)
	if m.Key != "" {
		msg.Metadata[MetadataKey] = m.Key
	}
	return msg, nil
}

func reserved(name string) bool {
	return strings.EqualFold(name, MetadataKey) || strings.EqualFold(name, MetadataTime)
}
