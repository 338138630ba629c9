package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/outbox"
	publisher "github.com/pawl-go/pawl/outbox/rabbit"
)

// The headers of a dead letter besides those of the message.
const (
	headerReason = "Pawl-Dead-Reason"
	headerQueue  = "Pawl-Dead-Queue"
	headerMoved  = "Pawl-Dead-" // before the name of a header by which the broker would route the letter
)

const headerCount = "x-delivery-count" // of a quorum queue: deliveries before this one

const contentType = "Content-Type"

// message reads a message of AMQP. The ID is empty and the time is zero if there is none.
func message(queue string, d amqp.Delivery) inbox.Message {
	m := inbox.Message{ID: d.MessageId, Topic: queue, Payload: d.Body, Time: d.Timestamp}
	set := func(name, value string) {
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[name] = value
	}
	if d.ContentType != "" {
		set(contentType, d.ContentType)
	}
	for name, value := range d.Headers {
		switch {
		case name == publisher.HeaderKey:
			m.Key = fmt.Sprint(value)
		case name != headerCount:
			set(name, fmt.Sprint(value))
		}
	}
	return m
}

// count is how often the broker has delivered a message, as far as the queue knows.
func count(d amqp.Delivery) int {
	switch before := d.Headers[headerCount].(type) {
	case int64:
		return int(before) + 1
	case int32:
		return int(before) + 1
	}
	if d.Redelivered {
		return 2
	}
	return 1
}

// Dead implements [inbox.Delivery]. After the feed has ended, the error matches inbox.ErrTaken, because the broker delivers the message again. After
// the broker has confirmed the letter, no error follows. A message whose acknowledgement is lost is delivered again, and an error would publish
// the letter again and again.
func (d *delivery) Dead(ctx context.Context, reason string) error {
	f := d.feed
	select {
	case <-f.ended:
		return f.failed("publish the dead letter", inbox.ErrTaken)
	default:
	}
	err := f.bury(ctx, d.letter(reason))
	if errors.Is(err, outbox.ErrRefused) && f.makesDead { // the queue may be gone
		again := f.connected(ctx, func(conn *amqp.Connection) error {
			if err := f.declareDead(conn); err != nil {
				return err
			}
			return conn.Close()
		})
		if again == nil {
			err = f.bury(ctx, d.letter(reason))
		}
	}
	if err != nil {
		return f.failed("publish the dead letter", err)
	}
	d.Ack(ctx) //nolint:errcheck // see above
	return nil
}

// bury publishes a dead letter.
func (s *Source) bury(ctx context.Context, letter outbox.Message) error {
	p, leave := s.publisher()
	defer leave(ctx) //nolint:errcheck // confirmed is what counts
	return p.Publish(ctx, letter)
}

// publisher returns the publisher of dead letters, until leave is called. The last to leave closes the publisher.
func (s *Source) publisher() (p *publisher.Publisher, leave func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.users == 1 {
		s.letters, _ = publisher.New(s.dial, nil) //nolint:errcheck // New of the source has looked at dial
	}
	p = s.letters
	return p, func(ctx context.Context) error {
		s.mu.Lock()
		s.users--
		last := s.users == 0
		s.mu.Unlock()
		if !last {
			return nil
		}
		return p.Close(ctx)
	}
}

// letter is the dead letter of a message.
func (d *delivery) letter(reason string) outbox.Message {
	letter := outbox.Message{ID: d.m.ID, Topic: d.feed.opts.Dead, Key: d.m.Key, Payload: d.m.Payload, Time: d.m.Time, Headers: make(map[string]string)}
	for name, value := range d.m.Headers {
		if !strings.EqualFold(name, publisher.HeaderKey) { // of another spelling, which the publisher refuses
			letter.Headers[name] = value
		}
	}
	for _, name := range []string{"CC", "BCC"} { // the broker refuses text in these, and the letter is for one queue
		if value, has := letter.Headers[name]; has {
			delete(letter.Headers, name)
			letter.Headers[headerMoved+name] = value
		}
	}
	for name, value := range map[string]string{"correlation_id": d.raw.CorrelationId, "reply_to": d.raw.ReplyTo, "type": d.raw.Type, "app_id": d.raw.AppId} {
		if value != "" {
			letter.Headers[name] = value
		}
	}
	letter.Headers[headerReason], letter.Headers[headerQueue] = plain(reason), d.feed.queue
	return letter
}

// plain makes one line of a text, of 1,000 bytes at most.
func plain(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), 1000)], "")
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, text))
}
