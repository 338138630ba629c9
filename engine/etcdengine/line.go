package etcdengine

import (
	"cmp"
	"encoding/json"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

// line is a resource, or as much of it as concerns a claim, at one revision.
type line struct {
	spec   engine.Spec // zero: nobody claims it
	rev    int64
	claims []*claim          // in their order
	all    int64             // the weight that is held
	heavy  map[string]*claim // the claim by which an owner holds
	waits  bool              // there is a claim that waits
}

// newLine makes a line of what a transaction read.
func newLine(reply *clientv3.TxnResponse) *line {
	l := &line{rev: reply.Header.Revision, heavy: make(map[string]*claim)}
	for _, kv := range found(reply.Responses) {
		c := &claim{key: string(kv.Key), rev: kv.CreateRevision}
		if json.Unmarshal(kv.Value, c) == nil { // else it is not of a claim
			c.Owner = cmp.Or(c.Owner, c.ID)
			l.spec = c.Spec
			l.claims = append(l.claims, c)
		}
	}
	l.settle()
	return l
}

// settle finds who holds. It is the rule of package queue, applied to what is
// stored: a claim in the queue holds iff all before it do and it fits. Nothing
// that comes later undoes that: claims ahead only go, who shares adds no
// weight, and who upgrades fits beside all that hold.
func (l *line) settle() {
	slices.SortFunc(l.claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.rev, b.rev))
	})
	for _, c := range l.claims {
		own, held := l.held(c.Owner)
		switch {
		case c.Queued && (l.waits || l.spec.Barging || l.all-held+max(held, c.Weight) > l.spec.Capacity):
			l.waits = true
			continue
		case held < c.Weight:
			l.all += c.Weight - held
			l.heavy[c.Owner] = c
		case c.Token == 0:
			c.from = own
		}
		c.holds = true
	}
}

// held returns the claim by which the owner holds, if it does, and its weight.
func (l *line) held(owner string) (*claim, int64) {
	if c := l.heavy[owner]; c != nil {
		return c, c.Weight
	}
	return nil, 0
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
}

// next decides, as package queue does, what a claim does about the line that
// it read: nothing more (nil), or a move. What the decision rests on and could
// change meanwhile is guarded:
//
//   - who shares a grant needs the claim that it shares with;
//   - who is granted needs that nobody came since. That somebody went can only
//     help, as it lets nobody else in: of a barging resource grants are keys,
//     and of another one nobody waits then;
//   - a claim that by its turn in the queue shares the grant of one before it
//     writes the token down while that one is there.
func (l *line) next(c *engine.Claim, p *place, put claim, wait bool) (*move, error) {
	own, counts := l.find(c.ID), p.dir
	holds, held := l.held(c.Owner)
	m := &move{put: put, key: p.grants}
	if c.Barging {
		counts += "g/"
	}
	switch {
	case own == nil && len(l.claims) > 0 && l.spec != c.Spec:
		return nil, queue.Mismatch(l.spec, c.Spec)
	case own != nil && own.holds && own.from != nil:
		m.put, m.key, m.put.Token = *own, own.key, own.token()
		m.guards = append(m.guards, stands(own.from.key, own.from.rev))
	case own != nil && (own.holds || !c.Barging):
		return nil, nil
	case holds != nil && held >= c.Weight:
		m.put.Rank, m.put.Token = holds.rank(), holds.token()
		m.guards = append(m.guards, stands(holds.key, holds.rev))
	case l.all-held+c.Weight <= c.Capacity && (c.Barging || !l.waits):
		m.guards = append(m.guards, clientv3.Compare(clientv3.CreateRevision(counts).WithPrefix(), "<", l.rev+1))
		if holds != nil {
			m.put.Rank = holds.rank()
			m.guards = append(m.guards, stands(holds.key, holds.rev))
		} else if !c.Barging {
			m.key = p.queue
		}
	case own != nil:
		return nil, nil
	case holds != nil || !wait:
		return nil, engine.ErrBusy
	default:
		m.key = p.queue
	}
	if own != nil {
		m.guards = append(m.guards, stands(own.key, own.rev))
	} else {
		m.guards = append(append(m.guards, p.mayEnter()...), absent(p.queue), absent(p.grants))
	}
	m.put.Queued = m.key == p.queue
	return m, nil
}

// blocker returns the key whose deletion can unblock the claim, or the prefix
// of the keys.
func (l *line) blocker(c *engine.Claim, p *place) string {
	for _, other := range slices.Backward(l.claims) {
		mustGo := other.Owner != c.Owner && other.Weight+c.Weight > c.Capacity
		if other.ID != c.ID && (c.Barging && other.Queued || !c.Barging && mustGo) {
			return other.key
		}
	}
	if c.Barging {
		return p.dir + "g/"
	}
	return p.dir
}
