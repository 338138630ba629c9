package etcdengine

import (
	"cmp"
	"context"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// claim is what is stored of a claim, as JSON.
type claim struct {
	ID      string      `json:"id"`
	Owner   string      `json:"owner,omitempty"` // empty: the ID
	Session string      `json:"session"`
	Label   string      `json:"label,omitempty"`
	Weight  int64       `json:"weight"`
	Spec    engine.Spec `json:"spec"`
	Queued  bool        `json:"queued,omitempty"` // its key is in the queue
	Rank    int64       `json:"rank,omitempty"`   // the place in the order; 0: the create revision
	Token   int64       `json:"token,omitempty"`  // 0: the create revision

	key   string
	rev   int64  // create revision
	holds bool   // found by [line.settle], as is:
	from  *claim // whose token it shares without having that stored
}

func (c *claim) rank() int64 { return cmp.Or(c.Rank, c.rev) }

// token is the token of a claim that holds.
func (c *claim) token() int64 {
	if c.from != nil {
		return c.from.token()
	}
	return cmp.Or(c.Token, c.rev)
}

// stands compares that a claim still has its key.
func stands(key string, rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
}

// absent compares that the key is not there.
func absent(key string) clientv3.Cmp { return stands(key, 0) }

// place is where a claim of this session is kept.
type place struct {
	base, dir     string // of all claims of the resource; of those that agree on the spec
	queue, grants string // the keys that the claim may have
	tomb          string // the key that keeps it out
	slot          int    // see [session.take]

	// Guarded by the session's mutex, as Leave may be called at any time.
	key     string // the one that it has, as far as was seen
	rev     int64  // its create revision
	blocker string // while it waits: the key, or prefix of keys, that blocks it
	again   bool   // it was asked for before
	leaves  bool   // it is asked to leave
	doubt   bool   // a request for it has an unknown outcome and may come late
}

// place returns the place of a claim. Names are escaped byte by byte, so that
// none has a slash, and what is a prefix of a name is one of its keys.
func (s *session) place(c *engine.Claim, slot int) *place {
	discipline := ".fifo/"
	if c.Barging {
		discipline = ".barging/"
	}
	p := &place{base: s.engine.base(c.Resource), tomb: s.engine.prefix + "x/" + url.PathEscape(c.ID), slot: slot}
	p.dir = p.base + url.PathEscape(string(c.Kind)) + "." + strconv.FormatInt(c.Capacity, 10) + discipline
	key := s.keys + "." + strconv.Itoa(slot)
	p.queue, p.grants = p.dir+"q/"+key, p.dir+"g/"+key
	return p
}

func (e *Engine) base(resource string) string {
	return e.prefix + "c/" + url.PathEscape(resource) + "/"
}

// mayEnter compares that the claim is not kept out, and that nobody uses the
// resource as something else.
func (p *place) mayEnter() []clientv3.Cmp {
	return []clientv3.Cmp{
		absent(p.tomb), absent(p.base).WithRange(p.dir),
		absent(clientv3.GetPrefixRangeEnd(p.dir)).WithRange(clientv3.GetPrefixRangeEnd(p.base)),
	}
}

// view reads what a claim has to know of those that use the resource as it
// does. One that weighs all of it needs only to know whether anybody is ahead,
// and one that waits to barge who: two claims of a long queue are enough, once
// its own place there is known or it has none. (Not so for one that may share:
// all that is ahead may be its owner's.)
func (p *place) view(c *engine.Claim) []clientv3.Op {
	inQueue := []clientv3.OpOption{clientv3.WithPrefix()}
	if p.rev != 0 {
		inQueue = append(inQueue, clientv3.WithMaxCreateRev(p.rev))
	}
	if (c.Barging || c.Weight == c.Capacity && c.Owner == c.ID) && (p.rev != 0 || !p.again) {
		inQueue = append(inQueue, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2))
	}
	return []clientv3.Op{clientv3.OpGet(p.dir+"g/", clientv3.WithPrefix()), clientv3.OpGet(p.dir+"q/", inQueue...)}
}

// fullView reads also whether the resource is used as something else.
func (p *place) fullView(c *engine.Claim) []clientv3.Op {
	after, end := clientv3.GetPrefixRangeEnd(p.dir), clientv3.GetPrefixRangeEnd(p.base)
	return append(p.view(c), clientv3.OpGet(p.base, clientv3.WithRange(p.dir), clientv3.WithLimit(1)),
		clientv3.OpGet(after, clientv3.WithRange(end), clientv3.WithLimit(1)))
}

// found returns what the reads of a transaction found, also of a nested one.
func found(replies []*pb.ResponseOp) []*mvccpb.KeyValue {
	var kvs []*mvccpb.KeyValue
	for _, r := range replies {
		kvs = append(kvs, r.GetResponseRange().GetKvs()...)
		kvs = append(kvs, found(r.GetResponseTxn().GetResponses())...)
	}
	return kvs
}

// read reads all claims of a resource.
func (e *Engine) read(ctx context.Context, doing, resource string) (*line, error) {
	all := clientv3.OpGet(e.base(resource), clientv3.WithPrefix())
	reply, err := e.commit(ctx, doing, nil, []clientv3.Op{all}, nil)
	if err != nil {
		return nil, err
	}
	return newLine(reply), nil
}

const listPage = 1000

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		all := e.prefix + "c/"
		from := all + url.PathEscape(prefix)
		end := clientv3.GetPrefixRangeEnd(from)
		for more := true; more; {
			page := clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(listPage))
			reply, err := e.commit(ctx, "list", nil, []clientv3.Op{page}, nil)
			if err != nil {
				yield("", err)
				return
			}
			kvs := found(reply.Responses)
			more = len(kvs) == listPage
			for _, kv := range kvs {
				if string(kv.Key) < from { // another claim of the last name
					continue
				}
				escaped, _, _ := strings.Cut(string(kv.Key[len(all):]), "/")
				name, err := url.PathUnescape(escaped)
				if err == nil && !yield(name, nil) {
					return
				}
				from = clientv3.GetPrefixRangeEnd(all + escaped + "/")
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
	slices.SortFunc(l.claims, func(a, b *claim) int { return cmp.Compare(a.rev, b.rev) })
	r := engine.Resource{Name: name, Spec: l.spec}
	for _, held := range []bool{true, false} {
		for _, c := range l.claims {
			info := engine.ClaimInfo{ID: c.ID, Owner: c.Owner, Session: c.Session, Label: c.Label, Weight: c.Weight, Age: -1}
			if held {
				info.Token = fence.Token(c.token())
			}
			if c.holds == held {
				r.Claims = append(r.Claims, info)
			}
		}
	}
	return r, nil
}
