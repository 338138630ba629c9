// Package redisstream publishes the messages of an outbox to Redis Streams.
//
//	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
//	...
//	publisher, err := redisstream.New(client, nil)
//	...
//	relay, err := table.Relay(client, db, publisher, nil)
//
// Message.Topic is the key of the stream. An entry has these fields: id, key, time (RFC 3339), payload, and
// header:NAME for each header.
//
// # What is promised
//
//   - A confirmed message is in the stream. Commands are pipelined on the caller's client, which reconnects by itself
//     and stays the caller's. The client may be one of a cluster: each stream is one key, and so in one slot.
//   - The entries of a stream have the order of the confirms.
//   - Options.MaxLen bounds a stream. A consumer that is too late then misses the oldest entries.
//
// # What is not promised
//
// Redis may forget a confirmed entry: in a restart without appendfsync always, and in a failover to a replica that lags.
// A stream keeps repeats. Consumers recognise them by the field id.
//
// # Errors
//
// A key that is no stream refuses the message. These block the publisher, and the messages wait:
//
//   - a full memory (OOM), and a disk that fails (MISCONF)
//   - too few replicas, a server that loads its data, a replica that was a master
//   - missing rights
//   - a server that takes no connection
package redisstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/outbox"
)

// The fields of an entry.
const (
	FieldID      = "id"
	FieldKey     = "key"
	FieldTime    = "time"
	FieldPayload = "payload"
	HeaderPrefix = "header:" // before the name of a header
)

// Options are the settings of [New].
type Options struct {
	// MaxLen is about how many entries a stream keeps, 1 or more. 0 keeps all, and is the default.
	MaxLen int64
}

// Publisher is an [outbox.Publisher]. A Publisher is safe for concurrent use. Create it with [New].
type Publisher struct {
	client rueidis.Client
	maxLen int64
}

// New returns a publisher on a client, which stays the caller's. Nothing is asked. Nil opts are the defaults. The error
// of New matches pawl.ErrInvalid.
func New(client rueidis.Client, opts *Options) (*Publisher, error) {
	if opts == nil {
		opts = &Options{}
	}
	if client == nil {
		return nil, fmt.Errorf("redis: %w: the client is nil", pawl.ErrInvalid)
	}
	if opts.MaxLen < 0 {
		return nil, fmt.Errorf("redis: %w: Options.MaxLen is %d: 0 or more are allowed", pawl.ErrInvalid, opts.MaxLen)
	}
	return &Publisher{client, opts.MaxLen}, nil
}

// Publish implements [outbox.Publisher].
func (p *Publisher) Publish(ctx context.Context, m outbox.Message) error {
	err := p.client.Do(ctx, p.add(m)).Error()
	if err != nil {
		return fmt.Errorf("redis: add to stream %q: %w", m.Topic, classify(err))
	}
	return nil
}

// add is the command for a message. The client library does not repeat a command that writes: the relay does.
func (p *Publisher) add(m outbox.Message) rueidis.Completed {
	cmd := p.client.B().Arbitrary("XADD").Keys(m.Topic)
	if p.maxLen > 0 {
		cmd = cmd.Args("MAXLEN", "~", strconv.FormatInt(p.maxLen, 10))
	}
	cmd = cmd.Args("*", FieldID, m.ID, FieldKey, m.Key, FieldTime, m.Time.UTC().Format(time.RFC3339), FieldPayload, rueidis.BinaryString(m.Payload))
	names := make([]string, 0, len(m.Headers))
	for name := range m.Headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		cmd = cmd.Args(HeaderPrefix+name, m.Headers[name])
	}
	return cmd.Build()
}

// blocking begin the errors of a server that takes no entries now.
var blocking = []string{"OOM", "MISCONF", "NOREPLICAS", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "NOPERM", "NOAUTH", "WRONGPASS", "BUSY", "TRYAGAIN"}

func classify(err error) error {
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return fmt.Errorf("%w: %w", outbox.ErrBlocked, err) // nothing was sent
	}
	said, ok := rueidis.IsRedisErr(err)
	if !ok {
		return err
	}
	word, _, _ := strings.Cut(said.Error(), " ")
	switch {
	case word == "WRONGTYPE":
		return fmt.Errorf("%w: %w", outbox.ErrRefused, err)
	case slices.Contains(blocking, word):
		return fmt.Errorf("%w: %w", outbox.ErrBlocked, err)
	}
	return err
}
