package natsengine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/cas"
)

const (
	// lookEvery is how often a watch looks whether its connection is another connection. The consumer
	// may have been lost with the first.
	lookEvery = 200 * time.Millisecond
	// heartbeat is how often the server says that a consumer is alive. The server of a consumer may die while the
	// connection, which is to another server of the cluster, lives on.
	heartbeat = 5 * time.Second
	// makes is how long the server may take to make a consumer. The client library sets no bound, as it does for other requests.
	makes = 5 * time.Second
	// silence is after how long without a message a watch ends.
	silence = 3 * heartbeat
)

var errGap = errors.New("the last message of the watch is missing")

// watch is a consumer of one key. The ordered consumer of the client library is not used here. A reset of it, while a
// slow server still makes it, can end the whole process (nil pointer in resetOrderedConsumer, nats.go 1.37 to 1.55).
type watch struct {
	sub      *nats.Subscription
	messages chan *nats.Msg
	seen     uint64 // number of the last message of the consumer
	exists   bool   // the key had a value, or a marker, when the consumer was made
}

// watch makes a consumer, which the server removes when nobody has listened for 5 seconds.
func (s *store) watch(ctx context.Context, b *bound, key string) (*watch, error) {
	w := &watch{messages: make(chan *nats.Msg, 1024)}
	inbox := s.nc.NewInbox()
	sub, err := s.nc.ChanSubscribe(inbox, w.messages)
	if err != nil {
		return nil, s.failed(b, err)
	}
	w.sub = sub
	brief, cancel := context.WithTimeout(ctx, makes)
	defer cancel()
	made, err := s.api.AddConsumer("KV_"+s.bucket, &nats.ConsumerConfig{
		DeliverSubject: inbox, DeliverPolicy: nats.DeliverLastPerSubjectPolicy, FilterSubject: s.subject(key),
		AckPolicy: nats.AckNonePolicy, Heartbeat: heartbeat, MemoryStorage: true, Replicas: 1,
	}, nats.Context(brief))
	if err != nil {
		w.stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, s.failed(b, err)
	}
	w.exists = made.NumPending > 0 || made.Delivered.Consumer > 0
	return w, nil
}

func (w *watch) stop() { w.sub.Unsubscribe() } //nolint:errcheck // the subscription ends with the connection

// take returns the item of a message, or false for a heartbeat.
func (w *watch) take(m *nats.Msg) (i cas.Item, ok bool, err error) {
	if m.Header.Get("Status") != "" && len(m.Data) == 0 && m.Reply == "" {
		last := m.Header.Get("Nats-Last-Consumer")
		if n, err := strconv.ParseUint(last, 10, 64); last != "" && (err != nil || n > w.seen) {
			return i, false, fmt.Errorf("%w: the server has sent %s, and %d has come", errGap, last, w.seen)
		}
		return i, false, nil
	}
	meta, err := m.Metadata()
	if err != nil {
		return i, false, err
	}
	w.seen = meta.Sequence.Consumer // some before may be lost: the last one counts
	if m.Header.Get("KV-Operation") != "" || m.Header.Get("Nats-Marker-Reason") != "" {
		return cas.Item{}, true, nil
	}
	return cas.Item{Data: m.Data, Version: meta.Sequence.Stream, Written: meta.Timestamp.UnixMicro()}, true, nil
}

// Watch implements [cas.Store].
func (s *store) Watch(ctx context.Context, key string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		if err := s.follow(ctx, encode(key), func(i cas.Item) bool { return yield(i, nil) }); err != nil {
			yield(cas.Item{}, err)
		}
	}
}

// follow calls use for every item of a key, also for its absence, until use returns false.
func (s *store) follow(ctx context.Context, key string, use func(cas.Item) bool) error {
	b, err := s.bind(ctx)
	if err != nil {
		return err
	}
	w, err := s.watch(ctx, b, key)
	if err != nil {
		return err
	}
	defer w.stop()
	if !w.exists && !use(cas.Item{}) {
		return nil
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for quiet := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			quiet++ // ticks, so that a machine that stood still ends no watch
			if s.connection() != b.connection || time.Duration(quiet)*lookEvery > silence {
				return engine.Unavailable("watch", nats.ErrDisconnected)
			}
		case m, open := <-w.messages:
			if !open {
				return engine.Unavailable("watch", nats.ErrConnectionClosed)
			}
			quiet = 0
			i, ok, err := w.take(m)
			if err != nil {
				return engine.Unavailable("watch", err)
			}
			if ok && !use(i) {
				return nil
			}
		}
	}
}
