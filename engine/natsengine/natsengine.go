// Package natsengine keeps locks in a key-value bucket of NATS JetStream. Package cas does the work:
// this package is the store below it.
//
//	nc, err := nats.Connect("nats://localhost", nats.MaxReconnects(-1))
//	...
//	eng, err := natsengine.New(ctx, nc, nil)
//
// # What is kept, and what may be lost
//
// A server confirms a write before the write is on the disk: nats-server flushes every two minutes.
// A server of 2.10 or later flushes at once with sync_interval: always. So a confirmed write survives
// the death of the server's process, and a power failure may lose it.
//
// Therefore a restarted server grants nothing for as long as earlier holders may trust their locks
// (restart grace). Tokens also start from the server's time at which it began to grant again. The
// same holds for a new bucket, because pawl cannot know that the bucket never existed.
// [cas.Engine.Init], which `pawl store init` calls, says that the store is new.
//
// In a cluster a bucket has 3 replicas, or 5. A majority of them confirms every write, and a change
// of the leader loses none. There a restart of one server needs no grace. All servers of the cluster
// have to be 2.11 or later; an older server is refused. Before 2.9.21 two clients that write at the
// same version both succeed (nats-server issue 4320). Before 2.11 a new leader may accept writes
// before it knows all writes of the old leader (pull request 6485).
//
// A power failure of the whole cluster within the flush interval may lose locks without anybody
// noticing. Use sync_interval: always on servers that share their power.
//
// # Sessions
//
// The server does not tell the time, and expires no single keys before 2.11. So sessions end by the
// observation of clients ([engine.ExpiryObserved]). A TryLock behind a dead holder is busy, until a
// client has observed that holder for a TTL. Programs that try once and exit observe nobody.
//
// # The bucket
//
// The engine makes a missing bucket. A bucket made by other means needs one value a key, without
// deny_delete, and with replicas also without allow_direct. With deny_delete a marker would stay for
// every name that was ever used, and allow_direct reads old values.
//
// A name is written unchanged where a key may have its characters, else as =XX. The payload that the
// server allows, 1 MB as shipped, bounds a name to [cas.MaxClaims] claims of some 400 bytes.
package natsengine

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/cas"
)

// Options say where the locks are kept. A nil *Options has every default.
type Options struct {
	// Bucket is the name of the key-value bucket: letters, digits, - and _. "": "pawl".
	Bucket string

	// Replicas is how many servers of a cluster keep a bucket that the engine makes: 1, 3 or 5. 0:
	// 3 in a cluster, else 1. A cluster refuses 1, because nobody would notice a restart of the one
	// server.
	Replicas int
}

// Engine is an [engine.Engine] on NATS JetStream, with versioned values and resizing.
type Engine struct {
	*keys
	store *store
}

// keys is the engine that makes locks of keys; its name is not for users.
type keys = cas.Engine

// Caps returns what [Engine] promises.
func Caps() engine.Caps { return cas.Caps(casOptions(0)) }

func casOptions(maxData int) cas.Options {
	return cas.Options{
		MaxData: maxData,
		Caps: engine.Caps{
			Name: "nats", Forgets: true, Failover: engine.FailoverSafe, Processes: engine.ReachNetwork, MinTTL: time.Second, LeaveTrip: 3, // a read, and a deletion in two
		},
	}
}

var bucketNames = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// headroom is the part of a message beside its data.
const headroom = 4 << 10

// New returns an engine on a connection, which stays the caller's. The connection should reconnect
// for ever. New makes a missing bucket. With a ctx of [engine.Existing] it fails with
// [engine.ErrNoStore] instead. New fails with [engine.ErrUnsupported] where the bucket or the
// cluster differs from the documentation of the package.
func New(ctx context.Context, nc *nats.Conn, opts *Options) (*Engine, error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if o.Bucket == "" {
		o.Bucket = "pawl"
	}
	if !bucketNames.MatchString(o.Bucket) {
		return nil, fmt.Errorf("%w: Bucket %q: allowed are letters, digits, - and _", engine.ErrUnsupported, o.Bucket)
	}
	if o.Replicas < 0 || o.Replicas > 5 || o.Replicas == 2 || o.Replicas == 4 {
		return nil, fmt.Errorf("%w: Replicas is %d: 0, 1, 3 and 5 are allowed", engine.ErrUnsupported, o.Replicas)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	api, err := nc.JetStream()
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	s := &store{nc: nc, js: js, api: api, bucket: o.Bucket, replicas: o.Replicas, onlyReads: engine.CreatesNothing(ctx)}
	if _, err := s.bind(ctx); err != nil {
		return nil, err
	}
	most := int(nc.MaxPayload()) - headroom
	if most < engine.MaxValue {
		return nil, fmt.Errorf("%w: the server's max_payload is %d, and pawl needs %d", engine.ErrUnsupported, nc.MaxPayload(), engine.MaxValue+headroom)
	}
	return &Engine{cas.New(s, casOptions(most)), s}, nil
}

// config is that of a bucket of pawl. Reads go to the leader, and the marker of a deletion can be
// removed.
func (s *store) config() jetstream.StreamConfig {
	replicas := s.replicas
	if replicas == 0 {
		replicas = 1
		if s.nc.ConnectedClusterName() != "" {
			replicas = 3
		}
	}
	return jetstream.StreamConfig{
		Name: "KV_" + s.bucket, Description: "locks of pawl", Subjects: []string{s.subject(">")}, MaxMsgsPerSubject: 1,
		Storage: jetstream.FileStorage, Replicas: replicas, AllowRollup: true, Discard: jetstream.DiscardNew,
		MaxBytes: -1, MaxMsgSize: -1, MaxMsgs: -1, MaxConsumers: -1, Duplicates: time.Minute,
	}
}

// bound is the bucket as one connection found it.
type bound struct {
	connection string
	life       string
	stream     jetstream.Stream
	kv         jetstream.KeyValue
}

// connection names the connection to one run of a server.
func (s *store) connection() string {
	return fmt.Sprintf("%s %d", s.nc.ConnectedServerId(), s.nc.Stats().Reconnects)
}

// bind returns the bucket. bind asks the server once a connection, and again after [store.unbind].
func (s *store) bind(ctx context.Context) (*bound, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.connected(ctx); err != nil {
		return nil, err
	}
	connection := s.connection()
	s.mu.Lock()
	b := s.bound
	s.mu.Unlock()
	if b != nil && b.connection == connection {
		return b, nil
	}
	if err := s.suitable(); err != nil {
		return nil, err
	}
	stream, err := s.js.Stream(ctx, "KV_"+s.bucket)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if s.onlyReads {
			return nil, fmt.Errorf("bucket %q: %w", s.bucket, engine.ErrNoStore)
		}
		stream, err = s.js.CreateStream(ctx, s.config())
	}
	if err != nil {
		return nil, engine.Unavailable("bucket "+s.bucket, err)
	}
	info := stream.CachedInfo()
	if err := s.suits(info.Config); err != nil {
		return nil, err
	}
	kv, err := s.js.KeyValue(ctx, s.bucket)
	if err != nil {
		return nil, engine.Unavailable("bucket "+s.bucket, err)
	}
	b = &bound{connection: connection, stream: stream, kv: kv, life: info.Created.Format(time.RFC3339Nano)}
	if info.Config.Replicas == 1 {
		b.life += " " + s.nc.ConnectedServerId() // another id after each start
	}
	if s.connection() != connection {
		return nil, engine.Unavailable("nats", nats.ErrDisconnected)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound = b
	return b, nil
}

// reconnectWithin is how long a request waits for a connection that was lost.
const reconnectWithin = time.Second

// connected waits for a connection. Without one the client would keep a request for later, when
// nobody wants it any more.
func (s *store) connected(ctx context.Context) error {
	if s.nc.Status() == nats.CONNECTED {
		return nil
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for giveUp := time.After(reconnectWithin); ; {
		select {
		case <-tick.C:
			if s.nc.Status() == nats.CONNECTED {
				return nil
			}
		case <-giveUp:
			return engine.Unavailable("nats", nats.ErrDisconnected)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unbind makes the next request look for the bucket again.
func (s *store) unbind(b *bound) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bound == b {
		s.bound = nil
	}
}

// oldest is the oldest version of servers in a cluster whose writes at a version exclude one another.
var oldest = [2]int{2, 11}

// suitable refuses a server of a cluster that is too old.
func (s *store) suitable() error {
	version := s.nc.ConnectedServerVersion()
	if s.nc.ConnectedClusterName() == "" || !olderThan(version, oldest) {
		return nil
	}
	return fmt.Errorf("%w: nats-server %s in a cluster lets two clients write at the same version: every server of the cluster has to be %d.%d or later",
		engine.ErrUnsupported, version, oldest[0], oldest[1])
}

// olderThan reports whether a server is older than a version. A version that cannot be read is older.
func olderThan(version string, than [2]int) bool {
	var is [2]int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &is[0], &is[1]); err != nil {
		return true
	}
	return slices.Compare(is[:], than[:]) < 0
}

// suits refuses a bucket that would not keep the promises of this package.
func (s *store) suits(c jetstream.StreamConfig) error {
	why := ""
	switch {
	case c.MaxMsgsPerSubject != 1:
		why = "it keeps a history"
	case c.MaxAge != 0:
		why = "its values expire"
	case c.DenyDelete:
		why = "it has deny_delete"
	case c.AllowDirect && c.Replicas > 1:
		why = "it has allow_direct and replicas"
	case c.Replicas == 1 && s.nc.ConnectedClusterName() != "":
		why = "it has one replica in a cluster"
	default:
		return nil
	}
	return fmt.Errorf("%w: bucket %q: %s: let pawl make the bucket", engine.ErrUnsupported, s.bucket, why)
}
