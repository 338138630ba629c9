// Package etcdengine keeps claims in etcd, 3.4 or newer.
//
// # The recipe
//
// A session is a lease. A claim is a key with that lease, so it vanishes with
// its session:
//
//	<prefix>c/<name>/<spec>/q/<lease>.<slot>   the queue, in order of create revision
//	<prefix>c/<name>/<spec>/g/<lease>.<slot>   grants out of that order
//	<prefix>w/<lease>.<slot>                   a claim that waits for permits
//	<prefix>x/<lease>.<slot>                   a claim that must not come in any more, for a TTL
//	<prefix>v/<key>                            a value; its version is the mod revision
//	<prefix>format                             the format of all this
//
// First in, first out: grants are not stored. Enter puts its key if nobody is there; else it
// appends the key and reads the claims ahead in the same transaction. The claim holds iff their
// weight and its own fit in the capacity, and its token is its create revision. A waiter watches
// the last claim ahead that has to go first, and nothing else. So a release wakes one client, or
// all readers behind a writer. Where no single claim has to go, as in a semaphore, the next
// waiter watches the deletions of the resource. Each other waiter watches the key under w of the
// waiter before it, which deletes that key when it holds. Re-entries and upgrades have keys under
// g; a re-entry stores the token that it shares, also when its first claim leaves first.
//
// Barging: keys under g hold, keys under q wait. A newcomer puts a key under g
// if no key was added there since it looked. The first waiter watches deletions under
// g and tries; each other waiter watches the one before it.
//
// Every release is a deletion, which a full store takes, too.
//
// The spec (kind, capacity, discipline) is a part of the key. So the same transaction compares
// that nobody uses the name as something else.
//
// A waiter has its token, the create revision, already: a later grant must
// not have a smaller token, so an upgrade can pass no waiter.
//
// # Prerequisites
//
// The engine takes the user's client and needs read and write permission for the prefix only. The
// client should have DialKeepAliveTime set, or a dead connection is found only by time-outs of
// the kernel. The server should compact by itself (--auto-compaction-retention), because a read
// of a resource walks over every key that the resource had since the last compaction. A session
// makes as many keys there as it had claims at once.
package etcdengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/internal/turn"
)

// Options are the settings of an [Engine]. The zero value of each field means
// its default.
type Options struct {
	// Prefix is the beginning of all keys. Default "pawl/".
	Prefix string
}

// Engine is a store in etcd. Create it with [New].
type Engine struct {
	client *clientv3.Client
	kv     clientv3.KV
	leases pb.LeaseClient
	prefix string
	stream atomic.Int64 // of watches, the number of it; see [Engine.watch]
	turns  turn.Turn    // of transactions under way
}

// patience is how long a request that no caller bounds waits for a member, which may hang.
const patience = 5 * time.Second

// inFlight is how many transactions of an engine are under way besides its heartbeats.
const inFlight = 128

var _ engine.Engine = (*Engine)(nil)

// New returns an engine over the client, which stays the caller's. Nil opts
// are the defaults.
func New(client *clientv3.Client, opts *Options) *Engine {
	e := &Engine{client: client, prefix: "pawl/", leases: pb.NewLeaseClient(client.ActiveConnection()), turns: turn.New(inFlight)}
	e.kv = clientv3.NewKVFromKVClient(failFast{clientv3.RetryKVClient(client)}, client)
	if opts != nil && opts.Prefix != "" {
		e.prefix = opts.Prefix
	}
	return e
}

// failFast says at once when there is no connection. By default the client
// waits for one until the context ends, and then cannot tell why.
type failFast struct{ pb.KVClient }

// undated ends when its context does, and does not say when that will be. A server that is told
// has a timer for each request, which costs more than all else that we add to the request.
type undated struct{ context.Context }

func (undated) Deadline() (none time.Time, ok bool) { return none, false }

func (f failFast) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	return f.KVClient.Txn(undated{ctx}, r, append(slices.Clip(opts), grpc.WaitForReady(false))...)
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps {
	return engine.Caps{
		Name: "etcd", Token: engine.TokenRevision, Wake: engine.WakeWatch, Expiry: engine.ExpiryMonotonic,
		Failover: engine.FailoverSafe, Processes: engine.ReachNetwork, EnterTrip: 1, LeaveTrip: 1,
		MinTTL: time.Second, // what a lease counts in
		Lacks:  map[engine.Feature]string{engine.FeatureResize: "the size is a part of each claim's key, whose revision is its place and its token"},
	}
}

// Open implements [engine.Engine]. The TTL is rounded up to whole seconds.
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	if opts.TTL < time.Second {
		return nil, fmt.Errorf("open session: %w: a lease of etcd lives for at least 1s, not %v", engine.ErrUnsupported, opts.TTL)
	}
	opts.Heartbeat = cmp.Or(opts.Heartbeat, opts.TTL/3)
	seconds := int64((opts.TTL + time.Second - 1) / time.Second)
	if err := e.checkFormat(ctx, "open session", true); err != nil {
		return nil, err
	}
	var conn peer.Peer
	lease, err := e.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds}, grpc.Peer(&conn))
	if err != nil {
		return nil, failed(ctx, "open session", err)
	}
	id := fmt.Sprintf("%x-%s", lease.ID, rand.Text())
	s := &session{
		engine: e, id: id, lease: clientv3.LeaseID(lease.ID), opts: opts,
		places: make(map[string]*place), buried: make(map[string]bool), conns: make(map[string]string), last: make(map[string]*place), waiting: make(map[*place]turn.Bell),
	}
	s.meets(&conn)
	return s, nil
}

// checkFormat refuses a store of another format. If the caller is about to write, checkFormat writes ours
// into a store without claims and values. Before there was a mark of it, these stood without.
func (e *Engine) checkFormat(ctx context.Context, doing string, writes bool) error {
	key, one := e.prefix+"format", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1)}
	unmarked := []clientv3.Cmp{absent(key)}
	for {
		used := []clientv3.Op{clientv3.OpGet(e.prefix+"c/", one...), clientv3.OpGet(e.prefix+"v/", one...)}
		reply, err := e.commit(ctx, doing, unmarked, used, []clientv3.Op{clientv3.OpGet(key)})
		if err != nil {
			return err
		}
		for _, r := range reply.Responses {
			for _, kv := range r.GetResponseRange().Kvs {
				format := "1"
				if !reply.Succeeded {
					format = string(kv.Value)
				}
				if err := engine.CheckFormat(format); err != nil {
					return fmt.Errorf("%s: %w", doing, err)
				}
			}
		}
		if !reply.Succeeded || !writes {
			return nil
		}
		if _, err = e.commit(ctx, doing, unmarked, []clientv3.Op{clientv3.OpPut(key, engine.Format())}, nil); err != nil {
			return err
		}
	}
}

// ours compares that the store has the mark of our format.
func (e *Engine) ours() clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(e.prefix+"format"), "=", engine.Format())
}

// everything reads all claims of a resource.
func everything(base string) []clientv3.Op {
	return []clientv3.Op{clientv3.OpGet(base, clientv3.WithPrefix())}
}

func (e *Engine) read(ctx context.Context, doing, resource string) (*line, error) {
	reply, err := e.commit(ctx, doing, []clientv3.Cmp{e.ours()}, everything(e.base(resource)), nil)
	if err == nil && !reply.Succeeded { // nobody uses the store, or clients of another format do
		err = e.checkFormat(ctx, doing, false)
	}
	if err != nil {
		return nil, err
	}
	return newLine(reply), nil
}

// listPage bounds what one request of a list reads.
const listPage = 1000

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		last := ""
		for key, err := range e.list(ctx, e.prefix+"c/", url.PathEscape(prefix)) {
			escaped, _, _ := strings.Cut(key, "/") // those of one name follow each other
			name, strange := url.PathUnescape(escaped)
			if err != nil {
				yield("", err)
				return
			}
			if strange == nil && escaped != last && !yield(name, nil) {
				return
			}
			last = escaped
		}
	}
}

// ListValues implements [engine.Values].
func (e *Engine) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return e.list(ctx, e.prefix+"v/", prefix)
}

// list yields the keys in a folder that start with prefix, in order.
func (e *Engine) list(ctx context.Context, folder, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		from := folder + prefix
		end := clientv3.GetPrefixRangeEnd(from)
		for n := listPage; n == listPage; {
			page := clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(listPage))
			reply, err := e.commit(ctx, "list", nil, []clientv3.Op{page}, nil)
			if err != nil {
				yield("", err)
				return
			}
			kvs := reply.Responses[0].GetResponseRange().Kvs
			n = len(kvs)
			for _, kv := range kvs {
				from = string(kv.Key) + "\x00"
				if !yield(string(kv.Key[len(folder):]), nil) {
					return
				}
			}
		}
	}
}

// Show implements [engine.Engine].
func (e *Engine) Show(ctx context.Context, name string) (engine.Resource, error) {
	l, err := e.read(ctx, "show", name)
	if err != nil {
		return engine.Resource{}, err
	}
	slices.SortFunc(l.Claims, func(a, b *claim) int { return cmp.Compare(a.Node.rev, b.Node.rev) })
	r := engine.Resource{Name: name, Spec: l.Spec}
	for _, c := range l.Claims {
		r.Claims = append(r.Claims, c.Info(c.Node.Note))
	}
	queue.Sort(r.Claims)
	e.askLeft(ctx, r.Claims)
	return r, nil
}

// mostAsked is of how many sessions one Show asks how long they have left.
const mostAsked = 64

// askLeft asks how long the sessions of the first claims have left, each of which takes a
// request. Of the others, and where it is not told, that stays unknown.
func (e *Engine) askLeft(ctx context.Context, claims []engine.ClaimInfo) {
	bySession := make(map[string][]*engine.ClaimInfo)
	for i := range claims {
		if c := &claims[i]; len(bySession) < mostAsked || bySession[c.Session] != nil {
			bySession[c.Session] = append(bySession[c.Session], c)
		}
	}
	var all sync.WaitGroup
	for session, itsClaims := range bySession {
		all.Go(func() {
			hex, _, _ := strings.Cut(session, "-")
			id, err := strconv.ParseInt(hex, 16, 64)
			if err != nil {
				return
			}
			reply, err := e.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id})
			if err != nil || reply.TTL < 0 {
				return
			}
			for _, c := range itsClaims {
				c.Left = time.Duration(reply.TTL) * time.Second
			}
		})
	}
	all.Wait()
}

// Evict implements [engine.Engine].
func (e *Engine) Evict(ctx context.Context, resource, claim string) error {
	return e.seek(ctx, "evict", resource, claim)
}

// Get implements [engine.Values].
func (e *Engine) Get(ctx context.Context, key string) (engine.Value, error) {
	return e.get(ctx, "get", key)
}

func (e *Engine) get(ctx context.Context, doing, key string) (engine.Value, error) {
	reply, err := e.commit(ctx, doing, nil, []clientv3.Op{clientv3.OpGet(e.prefix + "v/" + key)}, nil)
	if err != nil {
		return engine.Value{}, err
	}
	for _, kv := range reply.Responses[0].GetResponseRange().Kvs {
		// Never nil, which would delete when it is put again.
		return engine.Value{Data: append([]byte{}, kv.Value...), Version: uint64(kv.ModRevision)}, nil
	}
	return engine.Value{}, nil
}

// Put implements [engine.Values]. Put writes only beside the mark of our format, because a
// store that has values and no mark is one of an old format.
func (e *Engine) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	at, mark := e.prefix+"v/"+key, e.prefix+"format"
	op := clientv3.OpPut(at, string(data))
	if data == nil {
		op = clientv3.OpDelete(at)
	}
	same := clientv3.Compare(clientv3.ModRevision(at), "=", int64(version))
	reply, err := e.commit(ctx, "put", []clientv3.Cmp{same, e.ours()}, []clientv3.Op{op}, []clientv3.Op{clientv3.OpGet(mark)})
	switch {
	case err != nil:
		return 0, err
	case reply.Succeeded && data == nil:
		return 0, nil
	case reply.Succeeded:
		return uint64(reply.Header.Revision), nil
	}
	if kvs := reply.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 && string(kvs[0].Value) == engine.Format() {
		return 0, fmt.Errorf("put: version is no longer %d: %w", version, engine.ErrConflict)
	}
	if err := e.checkFormat(ctx, "put", true); err != nil {
		return 0, err
	}
	return e.Put(ctx, key, data, version) // now there is a mark
}

// Watch implements [engine.Values].
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (v engine.Value, err error) {
	for v.Version = version; err == nil && v.Version == version; {
		err = e.watch(ctx, "watch", time.Minute, nil, e.prefix+"v/"+key, func(ctx context.Context, _ int64) (bool, error) {
			v, err = e.get(ctx, "watch", key)
			return v.Version != version, err
		})
	}
	return v, err
}

// Close implements [engine.Engine]. The client stays open.
func (e *Engine) Close() error { return nil }

// commit is the one way to the store, but for heartbeats. Reads are transactions as well, because
// the client never repeats a transaction by itself. The number is bounded, so that heartbeats
// do not have to wait for long.
func (e *Engine) commit(ctx context.Context, doing string, guards []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	if err := e.turns.Take(ctx); err != nil {
		return nil, failed(ctx, doing, err)
	}
	defer e.turns.Give()
	return e.txn(ctx, doing, guards, then, otherwise)
}

// gets reads keys for a heartbeat, 100 a request, and returns the reply of each, up to an error. A
// member that hangs costs gets its patience, and not the whole time of the heartbeat.
func (e *Engine) gets(ctx context.Context, doing string, keys []string, how ...clientv3.OpOption) (all []*pb.RangeResponse, err error) {
	for some := range slices.Chunk(keys, 100) {
		var ops []clientv3.Op
		for _, key := range some {
			ops = append(ops, clientv3.OpGet(key, how...))
		}
		brief, cancel := context.WithTimeout(ctx, patience)
		reply, err := e.kv.Txn(brief).Then(ops...).Commit()
		cancel()
		if err != nil {
			return all, failed(ctx, doing, err)
		}
		for _, r := range reply.Responses {
			all = append(all, r.GetResponseRange())
		}
	}
	return all, nil
}

// txn is how heartbeats ask.
func (e *Engine) txn(ctx context.Context, doing string, guards []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	reply, err := e.kv.Txn(ctx).If(guards...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return nil, failed(ctx, doing, err)
	}
	return reply, nil
}

// watch subscribes to the key, and only then looks. watch looks again after each event and when it
// is woken, or each while if nobody wakes it. watch ends when look is done or the subscription has
// ended. The subscription is not from an older revision, because etcd catches up on old revisions
// every 100 ms only. A member may hang that watches for us, while others serve. So watch looks by
// itself, too, and does not wait for a subscription for ever. A member may also hang that look asks.
// Then watch looks again, which asks another member. look is told the revision of the event, or 0.
//
// All watches share a stream, which keeps the token with which it began. A stream with an old
// token lets no more watches in, so after an error there is another stream.
func (e *Engine) watch(ctx context.Context, doing string, while time.Duration, woken <-chan struct{}, key string, look func(ctx context.Context, event int64) (bool, error), opts ...clientv3.OpOption) error {
	stream := e.stream.Load()
	named := metadata.AppendToOutgoingContext(ctx, "pawl-stream", strconv.FormatInt(stream, 10))
	watching, stop := context.WithCancel(clientv3.WithRequireLeader(named))
	defer stop()
	hangs := time.AfterFunc(while, stop)
	events := e.client.Watch(watching, key, opts...)
	hangs.Stop()
	for at := int64(0); ; {
		brief, cancel := context.WithTimeout(ctx, min(while, patience))
		done, err := look(brief, at)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			continue
		}
		if done || err != nil {
			return err
		}
		var idle <-chan time.Time
		if woken == nil {
			idle = time.After(while)
		}
		select {
		case event, open := <-events:
			at = event.Header.Revision
			if err := event.Err(); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
				e.stream.CompareAndSwap(stream, stream+1)
				return failed(ctx, doing, err)
			}
			if !open || event.Canceled {
				return nil
			}
		case <-woken:
			at = 0
		case <-idle:
			at = 0
		case <-ctx.Done():
			return failed(ctx, doing, ctx.Err())
		}
	}
}

// failed classifies an error of the client.
func failed(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	}
	if err = rpctypes.Error(err); errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("%s: session: %w: %w", doing, engine.ErrGone, err)
	}
	return engine.Unavailable(doing, err)
}
