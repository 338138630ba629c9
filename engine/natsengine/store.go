package natsengine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/cas"
)

// store is a [cas.Store] in a key-value bucket. Versions are the sequence numbers of the bucket's
// stream, so they grow across deletion.
type store struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	api       nats.JetStreamManager // makes the consumers of watches
	bucket    string
	replicas  int
	onlyReads bool

	mu    sync.Mutex
	bound *bound
}

var _ cas.Forgetful = (*store)(nil)

func (s *store) subject(key string) string { return "$KV." + s.bucket + "." + key }

// encode returns the key in NATS. The first part of a key becomes a part of the subject, which
// narrows a list.
func encode(key string) string {
	kind, name, named := strings.Cut(key, "/")
	if !named {
		return key
	}
	b := []byte(kind + ".")
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b = append(b, c)
		default:
			b = fmt.Appendf(b, "=%02X", c)
		}
	}
	return string(b)
}

// decode returns the key of a key in NATS.
func decode(key string) (string, error) {
	kind, name, named := strings.Cut(key, ".")
	if !named {
		return key, nil
	}
	b := []byte(kind + "/")
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '=' {
			if _, err := fmt.Sscanf(name[i:], "=%02X", &c); err != nil {
				return "", fmt.Errorf("%w: the bucket has the key %q, which is none of pawl: %w", engine.ErrUnsupported, key, err)
			}
			i += 2
		}
		b = append(b, c)
	}
	return string(b), nil
}

// failed returns the error of a request, with its class.
func (s *store) failed(b *bound, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrKeyExists), errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
		return engine.ErrConflict
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrNoStreamResponse),
		errors.Is(err, nats.ErrNoResponders):
		s.unbind(b) // the bucket may be gone
	}
	return engine.Unavailable("nats", err)
}

// Life implements [cas.Forgetful].
func (s *store) Life(ctx context.Context) (string, error) {
	b, err := s.bind(ctx)
	if err != nil {
		return "", err
	}
	return b.life, nil
}

// Load implements [cas.Store].
func (s *store) Load(ctx context.Context, key string) (cas.Item, error) {
	b, err := s.bind(ctx)
	if err != nil {
		return cas.Item{}, err
	}
	entry, err := b.kv.Get(ctx, encode(key))
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return cas.Item{}, nil
	case err != nil:
		return cas.Item{}, s.failed(b, err)
	}
	return item(entry), nil
}

func item(entry jetstream.KeyValueEntry) cas.Item {
	if entry.Operation() != jetstream.KeyValuePut {
		return cas.Item{}
	}
	return cas.Item{Data: entry.Value(), Version: entry.Revision(), Written: entry.Created().UnixMicro()}
}

// Swap implements [cas.Store].
func (s *store) Swap(ctx context.Context, key string, data []byte, version uint64) (written uint64, err error) {
	b, err := s.bind(ctx)
	if err != nil {
		return 0, err
	}
	return s.write(ctx, b, func() (uint64, error) {
		if version == 0 {
			return b.kv.Create(ctx, encode(key), data)
		}
		return b.kv.Update(ctx, encode(key), data, version)
	})
}

// errCodeInProcess says that a cluster has another write of the key under way, or a leader that does not know all writes
// yet. Nothing was written. The client has no name for the code, which is new in nats-server 2.11.
const errCodeInProcess jetstream.ErrorCode = 10164

// write retries a write while the cluster says that another write is under way.
func (s *store) write(ctx context.Context, b *bound, try func() (uint64, error)) (uint64, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 32*time.Millisecond) {
		written, err := try()
		var api *jetstream.APIError
		if err == nil {
			return written, nil
		}
		if !errors.As(err, &api) || api.ErrorCode != errCodeInProcess {
			return 0, s.failed(b, err)
		}
		select {
		case <-time.After(rand.N(pause)):
		case <-ctx.Done():
			return 0, engine.Unavailable("nats", ctx.Err())
		}
	}
}

// Delete implements [cas.Store]. A marker takes the place of the value, because a stream has no
// conditional deletion. After that nobody needs the marker.
func (s *store) Delete(ctx context.Context, key string, version uint64) error {
	if version == 0 {
		return engine.ErrConflict
	}
	b, err := s.bind(ctx)
	if err != nil {
		return err
	}
	marker := nats.NewMsg(s.subject(encode(key)))
	marker.Header.Set("KV-Operation", "DEL")
	deleted, err := s.write(ctx, b, func() (uint64, error) {
		ack, err := s.js.PublishMsg(ctx, marker, jetstream.WithExpectLastSequencePerSubject(version))
		if err != nil {
			return 0, err
		}
		return ack.Sequence, nil
	})
	if err != nil {
		return err
	}
	b.stream.DeleteMsg(ctx, deleted) //nolint:errcheck // a marker that stays costs a few bytes
	return nil
}

// info returns what the server says of the stream, with the subjects of these keys. info takes a handle of its own,
// because a handle is not safe for concurrent use.
func (s *store) info(ctx context.Context, keys string) (*jetstream.StreamInfo, error) {
	stream, err := s.js.Stream(ctx, "KV_"+s.bucket)
	if err != nil {
		return nil, err
	}
	return stream.Info(ctx, jetstream.WithSubjectFilter(s.subject(keys)))
}

// List implements [cas.Store]. The server lists the subjects of the stream: a consumer would wait for ever for the
// end of its messages when a marker goes meanwhile.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		b, err := s.bind(ctx)
		if err != nil {
			yield("", err)
			return
		}
		kind, _, _ := strings.Cut(prefix, "/")
		info, err := s.info(ctx, kind+".*")
		if err != nil {
			yield("", s.failed(b, err))
			return
		}
		for subject := range info.State.Subjects {
			key, err := decode(strings.TrimPrefix(subject, s.subject("")))
			if err != nil {
				yield("", err)
				return
			}
			if strings.HasPrefix(key, prefix) && !yield(key, nil) {
				return
			}
		}
	}
}
