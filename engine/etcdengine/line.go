package etcdengine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

// claim is what is stored of a claim, as JSON; its key tells the rest.
type claim struct {
	ID      string `json:"id"`
	Owner   string `json:"owner,omitempty"` // empty: the ID
	Session string `json:"session"`
	Label   string `json:"label,omitempty"`
	Weight  int64  `json:"weight"`
	Token   int64  `json:"token,omitempty"` // 0: the create revision

	key    string
	rev    int64 // create revision
	queued bool

	grant int64  // the token by which it holds, as found by [line.settle], and
	from  *claim // whose that is, if it is not stored that it shares it
}

// line is a resource, or as much of it as concerns a claim, at one revision.
// The zero line is a resource without claims, before all revisions.
type line struct {
	queue.Line[claim]
	rev    int64
	claims []*claim // in order of their tokens
}

// specFormat is how the spec is written in a key.
const specFormat = "%d.%t.%s"

func newLine(reply *clientv3.TxnResponse) *line {
	l := &line{rev: reply.Header.Revision}
	for _, r := range reply.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			c := &claim{key: string(kv.Key), rev: kv.CreateRevision}
			if at := strings.Split(c.key, "/"); json.Unmarshal(kv.Value, c) == nil && len(at) > 3 {
				spec := at[len(at)-3:]
				if len(l.claims) == 0 { // all agree
					fmt.Sscanf(spec[0], specFormat, &l.Spec.Capacity, &l.Spec.Barging, &l.Spec.Kind) //nolint:errcheck // it is ours
				}
				c.queued, c.Owner = spec[1] == "q", cmp.Or(c.Owner, c.ID)
				l.claims = append(l.claims, c)
			}
		}
	}
	l.settle()
	return l
}

// settle finds who holds.
func (l *line) settle() {
	slices.SortFunc(l.claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(cmp.Or(a.Token, a.rev), cmp.Or(b.Token, b.rev)), cmp.Compare(a.rev, b.rev))
	})
	for _, c := range l.claims {
		holds, shares := l.Add(c, c.Owner, c.Weight, c.queued && c.Token == 0)
		switch c.grant = cmp.Or(c.Token, c.rev); {
		case !holds:
			c.grant = 0
		case shares != nil:
			c.from, c.grant = shares, shares.grant
		}
	}
}

func (l *line) find(id string) *claim {
	i := slices.IndexFunc(l.claims, func(c *claim) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	return l.claims[i]
}

// move is a step that a claim may take if the guards still hold.
type move struct {
	guards []clientv3.Cmp
	put    claim
	key    string // where
	waits  bool   // it may have to wait there
}

// next decides, as package queue does, what a claim does about the line that
// it read: nothing more (nil), or a move. What the decision rests on and could
// change meanwhile is guarded: who shares needs the claim that it shares with,
// and who is granted that nobody came since. (That somebody went can only help:
// it lets nobody else in.) Who may wait, and has no other claims, needs no
// guard: its place in the queue decides.
func (l *line) next(c *engine.Claim, p *place, own *claim, wait bool) (*move, error) {
	holds, held := l.Held(c.Owner)
	m, counts := &move{put: p.put, key: p.queue}, p.dir
	if len(l.claims) == 0 {
		l.Spec = c.Spec
	}
	if c.Barging {
		m.key, counts = p.grants, p.dir+"g/"
	}
	switch {
	case own == nil && len(l.claims) > 0 && l.Spec != c.Spec:
		return nil, queue.Mismatch(l.Spec, c.Spec)
	case own != nil && own.from != nil:
		holds = own.from
		m.put, m.key, m.put.Token = *own, own.key, own.grant
	case own != nil && (own.grant != 0 || !c.Barging):
		return nil, nil
	case holds != nil && held >= c.Weight:
		m.key, m.put.Token = p.grants, holds.grant
	case wait && alone(c):
		m.waits = true
	case l.Fits(c.Owner, c.Weight) && (c.Barging || !l.Waits):
		m.guards = append(m.guards, clientv3.Compare(clientv3.CreateRevision(counts).WithPrefix(), "<", l.rev+1))
		if holds != nil {
			m.key = p.grants
		}
	case own != nil:
		return nil, nil
	case holds != nil || !wait:
		return nil, engine.ErrBusy
	default:
		m.key, m.waits = p.queue, true
	}
	if holds != nil {
		m.guards = append(m.guards, stands(holds.key, holds.rev))
	}
	if own != nil {
		m.guards = append(m.guards, stands(own.key, own.rev))
	} else {
		m.guards = append(m.guards, p.mayEnter()...)
	}
	return m, nil
}

// alone reports whether the order decides alone about a claim: it has no owner
// who may hold already.
func alone(c *engine.Claim) bool { return !c.Barging && c.Owner == c.ID }

// blocker is what a waiting claim watches: a key that has to go first, or a prefix of
// keys of which any may.
type blocker struct {
	key string
	rev int64 // create revision of the key; 0: it is a prefix
}

// blocker returns what can unblock the claim; nothing if it holds. It is a key of one
// other claim, and only who is next waits for any that holds, so that each release wakes
// whom it grants. A claim of a semaphore that waits has a mark, which goes when it holds.
func (l *line) blocker(c *engine.Claim, p *place, own *claim) blocker {
	if own.grant != 0 {
		return blocker{}
	}
	for _, ahead := range slices.Backward(l.claims[:slices.Index(l.claims, own)]) {
		switch {
		case c.Barging:
			if ahead.queued {
				return blocker{ahead.key, ahead.rev}
			}
		case ahead.Owner != c.Owner && ahead.Weight+c.Weight > c.Capacity: // it must go
			return blocker{ahead.key, ahead.rev}
		case ahead.grant == 0 && marks(c.Spec, ahead.Weight):
			return blocker{p.marks + ahead.key[strings.LastIndexByte(ahead.key, '/')+1:], ahead.rev}
		}
	}
	if c.Barging {
		return blocker{key: p.dir + "g/"}
	}
	return blocker{key: p.dir}
}

// marks reports whether a claim that waits has a mark: others may hold beside it.
func marks(spec engine.Spec, weight int64) bool {
	return spec.Kind == engine.KindSemaphore && !spec.Barging && weight < spec.Capacity
}

// stands compares that a claim still has its key.
func stands(key string, rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
}

// absent compares that the key is not there.
func absent(key string) clientv3.Cmp { return stands(key, 0) }
