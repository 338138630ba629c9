// Package natsjs takes messages from a stream of NATS JetStream, as a source of package inbox. A durable pull consumer of
// the server delivers them.
//
//	source, err := natsjs.New(js, "ORDERS", "billing", nil)
//	...
//	consumer, err := box.Consumer(db, store, source, handle, nil)
//
// The messages are in the format of the outbox. The header Nats-Msg-Id is the ID, Pawl-Key the key, and Pawl-Time the
// time as RFC 3339. All other headers are those of the user. A message without an ID is a dead letter.
//
// # What is promised
//
//   - A message is acknowledged, and the server has confirmed that, after the message took effect. A consumer that
//     dies leaves its messages to others, after AckWait of the durable consumer.
//   - A dead letter is published on the subject Options.Dead before the message ends. The letter has the headers of the
//     message, and Pawl-Dead-Reason, Pawl-Dead-Sequence and Pawl-ID. A header of the message that the server would obey has
//     another name there: Nats-Rollup is Pawl-Dead-Nats-Rollup, and so are all that begin so. Status is Pawl-Dead-Status. A crash or a lost connection in between may
//     publish the letter twice, and the message runs again.
//   - A process may have a message for AckWait without an extension, as after a freeze or without a connection, or when the machine slept. Such a process makes
//     no dead letter of the message. AckWait counts from the request that the message answers, because the message may come late. The server gives the
//     message to a process again, and the attempts are counted anew. So AckWait is several times the time of an answer.
//     After a restart of the server or a change of its leader, the server may give a message again earlier than AckWait. That happens before the first
//     extension of the message. Then a dead letter may be made of a message that another process runs.
//   - A process learns of a shorter AckWait by its next extension, which comes in a third of the former one. The feed is then opened again, and the server gives
//     the messages in hand again after the new AckWait. With Single the reader waits for that. A longer AckWait counts when the feed is opened next.
//     Until then a lost message may come later than the feed's Hold says.
//   - A dead letter that is too large for its stream becomes 2 to 64 letters with a part of the payload each. Pawl-Dead-Part is 1/2 in the
//     first of two. Pawl-Dead-Sequence is the same in all of them. A message of which nothing fits is tried again, and its key waits.
//   - With inbox.ConsumerOptions.Single, a process that starts waits for AckWait, until the server gives it all messages that the last
//     one had. The same follows a delivery that was lost on the way. Else newer messages would overtake those.
//   - A message that is parked behind a failing one stays in this process, and the server gets all messages back at the end. So NumDelivered, which
//     inbox.ConsumerOptions.MaxDeliveries bounds, counts one for each process that had the message, and for each feed that failed.
//
// # How many messages are under way
//
// The server hands out up to MaxAckPending messages of a durable consumer that are not acknowledged, to all processes together. A parked
// message counts as well. So a key that fails with as many messages stops all other keys. Open makes durable
// consumers with Options.MaxAckPending. The setting stays where the durable consumer exists: change that with nats consumer edit.
// An inbox.ConsumerOptions.Window that is larger is never full.
// Several processes share the number, so have room for the windows of all, and for the messages that wait behind failures. Processes that ask for
// more than the server may hand out wait for each other, up to 50 ms a pull.
//
// A pull asks for twice as many messages at most as the largest full pull since the last slow one. After a slow pull, the next asks for half of
// the messages that came. So large messages on a slow network arrive within
// AckWait. When messages become much larger at once, one pull may take too long, and the server gives these messages again.
//
// # What is not promised
//
// nats-server before 2.9.16 gives no answer to a pull whose wait ends while a message is handed out. The source then waits another second, or the feed is opened
// again. nats-server before 2.10.14 may also throw a message away then that it was about to give again, and gives that message after AckWait only. So have
// nats-server 2.9.16 or later, and 2.10.14 or later with inbox.ConsumerOptions.Single.
//
// The client library takes a message without a payload and with the header Status for one of the server. So no consumer gets that message, and the
// outbox refuses such a message. After one of another producer, a reader with inbox.ConsumerOptions.Single stands still and tells
// OnError why. Without Single the server delivers the message again and again. In both cases messages behind it count deliveries that do not
// run, and become dead letters by inbox.ConsumerOptions.MaxDeliveries. With Single each wait for such a message is twice as long as the last, up to
// 128 times AckWait. So at an AckWait of 30 s, 100 deliveries take more than a day. Without Single they may take 100 times AckWait.
// Remove such a message from the stream. The reader goes on soon after that.
//
// The client library gives a pull up a second after its end. When an answer takes longer, the source pulls one message at a time, and has patience. The
// wait for that message is a third of AckWait, and between 200 ms and 9 s, and another second. Receive then returns that long after the end of its ctx. This patience ends with an
// answer in less than half a second, also with the answer that there is no message. The late message can come again after AckWait.
// From half a second before, until a pull behind that time has ended, the source has patience whatever the answers are. A message that is on its way for longer than that never arrives.
//
// A stream with limits drops messages that nobody has read. A crash may leave some parts of a dead letter twice, or beside a letter
// in another number of parts.
package natsjs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
)

// The headers of a message, and those of a dead letter besides.
const (
	headerKey      = "Pawl-Key"
	headerTime     = "Pawl-Time"
	headerID       = "Pawl-ID"
	headerReason   = "Pawl-Dead-Reason"
	headerSequence = "Pawl-Dead-Sequence"
	headerPart     = "Pawl-Dead-Part"
	headerMoved    = "Pawl-Dead-" // before the name of a header that is for the server or the client library
	headerStatus   = "Status"     // without a payload, the client library takes the message for one of the server
)

// Options are the settings of [New].
type Options struct {
	// Hold is AckWait of the durable consumer if Open makes it: 100 ms to 24 h. Default 30 s.
	Hold time.Duration
	// Block is how long one read waits for a message: 10 ms to 1 min. Default 1 s. A turn at the server has 200 ms, or a quarter of AckWait if that
	// is shorter. A wait with patience may be longer, see the package.
	Block time.Duration
	// MaxAckPending is that of the durable consumer if Open makes it: 1 to 1,000,000. Default 1,000. See the package.
	MaxAckPending int
	// Filter is the subject that the durable consumer delivers if Open makes it. Default all of the stream.
	Filter string
	// Dead is the subject of dead letters. By default it is "dead.", the stream, a dot and the durable consumer. If no stream
	// takes that default, Open makes one with the name of the stream and "_dead". If the source stream takes the subject, the durable
	// consumer needs filters that leave the subject out.
	Dead string
}

// Source is an [inbox.Source]. A Source is safe for concurrent use. Create it with [New].
type Source struct {
	js              jetstream.JetStream
	stream, durable string
	opts            Options
	makesDead       bool
	givenUp         atomic.Int32           // recoveries in a row, each by a feed of its own
	waitedFor       atomic.Int64           // messages of the last such recovery
	slow            atomic.Bool            // the client library has given a pull up
	again           atomic.Pointer[window] // the message of that pull comes again then
}

var _ inbox.Source = (*Source)(nil)

// New returns the source of a stream for a durable consumer, which Open makes if it is missing. The connection of js stays the
// caller's, and should reconnect for ever. Nothing is asked yet. Nil opts are the defaults. The error of New matches pawl.ErrInvalid.
func New(js jetstream.JetStream, stream, durable string, opts *Options) (*Source, error) {
	s := &Source{js: js, stream: stream, durable: durable}
	if opts != nil {
		s.opts = *opts
	}
	for _, f := range []struct {
		name              string
		value             *time.Duration
		usual, least, max time.Duration
	}{{"Hold", &s.opts.Hold, 30 * time.Second, 100 * time.Millisecond, 24 * time.Hour}, {"Block", &s.opts.Block, time.Second, 10 * time.Millisecond, time.Minute}} {
		if *f.value == 0 {
			*f.value = f.usual
		}
		if *f.value < f.least || *f.value > f.max {
			return nil, fmt.Errorf("nats: %w: Options.%s is %v: %v to %v are allowed", pawl.ErrInvalid, f.name, *f.value, f.least, f.max)
		}
	}
	if s.opts.MaxAckPending == 0 {
		s.opts.MaxAckPending = 1000
	}
	if n := s.opts.MaxAckPending; n < 1 || n > 1_000_000 {
		return nil, fmt.Errorf("nats: %w: Options.MaxAckPending is %d: 1 to 1,000,000 are allowed", pawl.ErrInvalid, n)
	}
	for name, value := range map[string]string{"stream": stream, "durable": durable} {
		if value == "" || strings.ContainsAny(value, ".*> \t\r\n/\\") {
			return nil, fmt.Errorf("nats: %w: %s is %q: text without dots, stars, slashes and spaces is allowed", pawl.ErrInvalid, name, value)
		}
	}
	if js == nil {
		return nil, fmt.Errorf("nats: %w: js is nil", pawl.ErrInvalid)
	}
	if s.makesDead = s.opts.Dead == ""; s.makesDead {
		s.opts.Dead = "dead." + stream + "." + durable
	}
	return s, nil
}

// asking bounds one request to the server.
const asking = 5 * time.Second

// Open implements [inbox.Source].
func (s *Source) Open(ctx context.Context, single bool) (inbox.Feed, error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	dead, err := s.deadStream(ctx)
	if err != nil {
		return nil, s.failed("find a stream for dead letters", err)
	}
	consumer, err := s.find(ctx, dead)
	if err != nil {
		return nil, s.failed("find the durable consumer", err)
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, s.failed("ask for the durable consumer", err)
	}
	if c := info.Config; c.AckPolicy != jetstream.AckExplicitPolicy || c.MaxDeliver > 0 || len(c.BackOff) > 0 {
		return nil, s.failed("check the durable consumer", fmt.Errorf("%w: it needs explicit acks, deliveries without end and no backoff", pawl.ErrMismatch))
	}
	f := &feed{Source: s, consumer: consumer, hold: info.Config.AckWait, single: single, seen: info.Delivered.Consumer, most: 1, room: info.Config.MaxAckPending,
		mine: make(map[*delivery]bool)}
	if info.NumAckPending < int(s.waitedFor.Load()) { // acknowledged or removed meanwhile
		s.givenUp.Store(0)
	}
	if single && info.NumAckPending > 0 {
		f.missing, f.last, f.ready = info.NumAckPending, info.Delivered.Stream, time.Now().Add(f.hold+slack)
	}
	return f, nil
}

// deadStream returns the stream of dead letters, and makes the default one if no stream takes them.
func (s *Source) deadStream(ctx context.Context) (name string, _ error) {
	name, err := s.js.StreamNameBySubject(ctx, s.opts.Dead)
	if errors.Is(err, jetstream.ErrStreamNotFound) && s.makesDead {
		name = s.stream + "_dead"
		_, err = s.js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{"dead." + s.stream + ".>"}})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			err = nil
		}
	}
	return name, err
}

// find returns the durable consumer, and makes one if there is none. A consumer that would get its own dead letters would make dead letters of those.
func (s *Source) find(ctx context.Context, deadStream string) (jetstream.Consumer, error) {
	config := jetstream.ConsumerConfig{Durable: s.durable, FilterSubject: s.opts.Filter, AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.opts.Hold,
		MaxDeliver: -1, MaxAckPending: s.opts.MaxAckPending}
	consumer, err := s.js.Consumer(ctx, s.stream, s.durable)
	missing := errors.Is(err, jetstream.ErrConsumerNotFound)
	switch {
	case err == nil:
		config = consumer.CachedInfo().Config
	case !missing:
		return nil, err
	}
	if deadStream == s.stream && delivers(config, s.opts.Dead) {
		return nil, fmt.Errorf("%w: it would get its own dead letters, because stream %q takes subject %q", pawl.ErrMismatch, s.stream, s.opts.Dead)
	}
	if missing {
		return s.js.CreateOrUpdateConsumer(ctx, s.stream, config)
	}
	return consumer, nil
}

// delivers reports whether a consumer gets messages of a subject.
func delivers(config jetstream.ConsumerConfig, subject string) bool {
	filters := append(slices.Clone(config.FilterSubjects), config.FilterSubject)
	filters = slices.DeleteFunc(filters, func(filter string) bool { return filter == "" })
	return len(filters) == 0 || slices.ContainsFunc(filters, func(filter string) bool { return matches(filter, subject) })
}

// matches reports whether a filter with wildcards means a subject.
func matches(filter, subject string) bool {
	want, is := strings.Split(filter, "."), strings.Split(subject, ".")
	for i, part := range want {
		switch {
		case i == len(is):
			return false
		case part == ">":
			return true
		case part != "*" && part != is[i]:
			return false
		}
	}
	return len(want) == len(is)
}

func (s *Source) failed(what string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("nats: consumer %q of stream %q: %s: %w", s.durable, s.stream, what, err)
}

// message reads a message of NATS. The ID is empty if there is none.
func message(msg jetstream.Msg, sent time.Time) inbox.Message {
	h := msg.Headers()
	m := inbox.Message{ID: h.Get(jetstream.MsgIDHeader), Topic: msg.Subject(), Key: h.Get(headerKey), Payload: msg.Data(), Time: sent}
	if at, err := time.Parse(time.RFC3339Nano, h.Get(headerTime)); err == nil {
		m.Time = at
	}
	for name, values := range h {
		if name == jetstream.MsgIDHeader || name == headerKey || name == headerTime || len(values) == 0 {
			continue
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[name] = values[0]
	}
	return m
}
