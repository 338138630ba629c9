// Package natsjs publishes the messages of an outbox to streams of NATS JetStream.
//
//	nc, err := nats.Connect(url, nats.MaxReconnects(-1))
//	...
//	js, err := jetstream.New(nc)
//	...
//	relay, err := table.Relay(client, db, natsjs.New(nc, js), nil)
//
// Message.Topic is the subject, and a stream of the server has to take that subject. The payload is the data. The
// headers of the message are headers of NATS, beside those of this package:
//
//	Nats-Msg-Id  Message.ID: a stream drops repeats of an ID within its duplicate window
//	Pawl-Key     Message.Key, if there is one
//	Pawl-Time    Message.Time as RFC 3339
//
// # What is promised
//
//   - A confirmed message is in the stream. A stream with replicas confirms by a majority. A server confirms before its
//     disk has the message, so a power failure may lose it, unless the server has sync_interval: always.
//   - Confirms are pipelined on the caller's connection, which also reconnects by itself. The connection stays the caller's.
//   - The stream drops a repeat within its duplicate window, by default 2 minutes. Consumers still recognise later
//     repeats by the ID.
//   - An ID that any other message of the stream had within the duplicate window is confirmed and dropped. So tables that share a stream
//     must not share IDs.
//   - A stream with the retention policy interest confirms and drops a message for which there is no consumer. So create the consumers
//     before the first message, or take another policy.
//
// # Errors
//
// A message without a stream for its subject is refused, and so is a message that is too large. So is a message with a
// header that NATS cannot carry. So is a message without a payload and with the header Status. The client library of Go takes such a message for
// one of the server, and hands it out to nobody. A stream that is full and discards new messages blocks the publisher. A connection
// that is away or a server without JetStream does so too, and so does a missing right. Those messages wait, and nothing is lost.
//
// The user of the connection may publish to the subjects of the messages and to $JS.API.STREAM.NAMES, and may subscribe to _INBOX.>.
package natsjs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/internal/httpheader"
)

// The headers of this package.
const (
	HeaderID   = jetstream.MsgIDHeader
	HeaderKey  = "Pawl-Key"
	HeaderTime = "Pawl-Time"
)

// Publisher is an [outbox.Publisher]. A Publisher is safe for concurrent use. Create it with [New].
type Publisher struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	denials *denials
}

// New returns a publisher on a connection and its JetStream. The connection stays the caller's. Nothing is asked. New puts an
// error handler before that of the connection, because the server tells a missing right to that handler only. So set a
// handler of yours before the call of New, and make one publisher for a connection.
func New(nc *nats.Conn, js jetstream.JetStream) *Publisher {
	return &Publisher{nc, js, denialsOf(nc)}
}

// Publish implements [outbox.Publisher].
func (p *Publisher) Publish(ctx context.Context, m outbox.Message) error {
	if err := p.publish(ctx, m); err != nil {
		return fmt.Errorf("nats: publish to subject %q: %w", m.Topic, err)
	}
	return nil
}

func (p *Publisher) publish(ctx context.Context, m outbox.Message) error {
	msg, err := encode(m)
	if err != nil {
		return err
	}
	// A request on a lost connection would wait in a buffer, and the relay knows better when to send again.
	if !p.nc.IsConnected() {
		return fmt.Errorf("%w: the connection is %v", outbox.ErrBlocked, strings.ToLower(p.nc.Status().String()))
	}
	err = p.denials.during(ctx, "Publish to "+strconv.Quote(m.Topic), func(ctx context.Context) error {
		_, err := p.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
		return err
	})
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		return p.noStream(ctx, m.Topic)
	}
	return classify(err)
}

// noStream finds out why nobody has taken a message: no stream has the subject, or the server is not ready.
func (p *Publisher) noStream(ctx context.Context, subject string) error {
	var stream string
	err := p.denials.during(ctx, `.STREAM.NAMES"`, func(ctx context.Context) (err error) {
		stream, err = p.js.StreamNameBySubject(ctx, subject)
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: no stream takes this subject", outbox.ErrRefused)
	case errors.Is(err, outbox.ErrBlocked):
		return err
	case err != nil:
		return fmt.Errorf("%w: JetStream does not answer: %w", outbox.ErrBlocked, err)
	}
	return fmt.Errorf("%w: stream %q does not answer", outbox.ErrBlocked, stream)
}

// Codes of errors of nats-server that its client has no names for.
const (
	noResources     = 10023 // of the server or the account
	storageExceeded = 10047
	memoryExceeded  = 10028
	accountExceeded = 10002
	messageTooLarge = 10054
	storeFailed     = 10077 // such as a stream that is full, and a message that is too large for an old server
	streamSealed    = 10109
	notLeader       = 10008
)

func classify(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject):
		return fmt.Errorf("%w: %w", outbox.ErrRefused, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrConnectionReconnecting),
		errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w: %w", outbox.ErrBlocked, err)
	case !errors.As(err, &api):
		return err
	}
	switch api.ErrorCode {
	case messageTooLarge, streamSealed:
		return fmt.Errorf("%w: %w", outbox.ErrRefused, err)
	case noResources, storageExceeded, memoryExceeded, accountExceeded, storeFailed, notLeader:
		return fmt.Errorf("%w: %w", outbox.ErrBlocked, err)
	}
	return err
}

// encode makes the message of NATS, or refuses what NATS would change or drop.
func encode(m outbox.Message) (*nats.Msg, error) {
	if strings.ContainsAny(m.Topic, " \t\r\n*>") || slices.Contains(strings.Split(m.Topic, "."), "") {
		return nil, fmt.Errorf("%w: the subject has a space, a wildcard or an empty part", outbox.ErrRefused)
	}
	if len(m.Payload) == 0 && m.Headers["Status"] != "" {
		return nil, fmt.Errorf("%w: Go clients take a message without a payload and with the header \"Status\" for one of the server", outbox.ErrRefused)
	}
	msg := &nats.Msg{Subject: m.Topic, Header: make(nats.Header, len(m.Headers)+3), Data: m.Payload}
	for name, value := range m.Headers {
		if slices.ContainsFunc([]string{HeaderID, HeaderKey, HeaderTime}, func(own string) bool { return strings.EqualFold(own, name) }) {
			return nil, fmt.Errorf("%w: header %q is of the outbox", outbox.ErrRefused, name)
		}
		msg.Header[name] = []string{value}
	}
	msg.Header[HeaderID] = []string{m.ID}
	msg.Header[HeaderTime] = []string{m.Time.UTC().Format(time.RFC3339)}
	if m.Key != "" {
		msg.Header[HeaderKey] = []string{m.Key}
	}
	for name, values := range msg.Header {
		if err := httpheader.Check(name, values[0]); err != nil {
			return nil, err
		}
	}
	return msg, nil
}
