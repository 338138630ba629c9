package etcdengine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/lines"
)

// stored is the value of a claim's key, as JSON; the key tells the rest.
type stored struct {
	lines.Note
	Weight int64 `json:"weight"`
	Token  int64 `json:"token,omitempty"` // 0: the create revision
}

// node is where a claim is stored.
type node struct {
	stored
	key string
	rev int64 // create revision
}

type claim = lines.Claim[node]

// line is a resource, or as much of it as concerns a claim, at one revision.
// The zero line is a resource without claims, before all revisions.
type line struct {
	lines.Line[node]
	rev int64
}

// specFormat is how the spec is written in a key.
const specFormat = "%d.%t.%s"

func newLine(reply *clientv3.TxnResponse) *line {
	var claims []*claim
	var spec engine.Spec
	for _, r := range reply.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			n := node{key: string(kv.Key), rev: kv.CreateRevision}
			at := strings.Split(n.key, "/")
			if json.Unmarshal(kv.Value, &n.stored) != nil || len(at) < 4 {
				continue
			}
			at = at[len(at)-3:]
			if len(claims) == 0 { // all agree
				fmt.Sscanf(at[0], specFormat, &spec.Capacity, &spec.Barging, &spec.Kind) //nolint:errcheck // it is ours
			}
			claims = append(claims, &claim{
				ID: n.ID, Owner: cmp.Or(n.Owner, n.ID), Spec: spec, Weight: n.Weight, Node: n,
				InTurn: at[1] == "q" && n.Token == 0, Token: cmp.Or(n.Token, n.rev),
			})
		}
	}
	slices.SortFunc(claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.Token, b.Token), cmp.Compare(a.Node.rev, b.Node.rev))
	})
	return &line{lines.New(claims), reply.Header.Revision}
}

// move is a step that a claim takes if the guards still hold.
type move struct {
	guards []clientv3.Cmp
	put    stored
	key    string // where
	waits  bool   // it may have to wait there
}

// next returns the move of a claim about the line that it read, or nil if the claim stays. A
// claim that may wait, and whose owner has no other claims, is appended even where it could take
// the resource. The claim's place in the queue decides, so nothing has to be compared.
func (l *line) next(c *engine.Claim, p *place, own *claim, wait bool) (*move, error) {
	step, with, err := l.Next(c, c.Owner, own, own == nil, wait)
	if err != nil || step == lines.Stay {
		return nil, err
	}
	m, counts := &move{put: p.put, key: p.queue}, p.dir
	if c.Barging {
		counts = p.dir + "g/"
	}
	switch {
	case step == lines.Share:
		m.key, m.put.Token = p.grants, with.Grant()
		if own != nil && own.Shares != nil {
			m.key = own.Node.key
		}
	case step == lines.Append, wait && alone(c):
		m.waits = true
	case c.Barging || with != nil:
		m.key = p.grants
	}
	// A member that lags behind does not know of the largest token of a barging owner.
	if !m.waits && (c.Barging || step != lines.Share) {
		m.guards = append(m.guards, clientv3.Compare(clientv3.CreateRevision(counts).WithPrefix(), "<", l.rev+1))
	}
	if with != nil {
		m.guards = append(m.guards, stands(with.Node.key, with.Node.rev))
	}
	if own != nil {
		m.guards = append(m.guards, stands(own.Node.key, own.Node.rev))
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

// blocker returns the key or the prefix that can unblock the claim; nothing if the claim holds. A
// claim of a semaphore that waits has a mark, which goes when it holds.
func (l *line) blocker(p *place, own *claim) blocker {
	b := l.Blocker(own)
	switch {
	case own.Holds:
		return blocker{}
	case b.Tells:
		return blocker{p.marks + slotOf(b.Claim.Node.key), b.Claim.Node.rev}
	case b.Claim != nil:
		return blocker{b.Claim.Node.key, b.Claim.Node.rev}
	case own.Spec.Barging:
		return blocker{key: p.dir + "g/"}
	}
	return blocker{key: p.dir}
}

// slotOf is the last part of a key, the lease and the slot.
func slotOf(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// stands compares that a claim still has its key.
func stands(key string, rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
}

// absent compares that the key is not there.
func absent(key string) clientv3.Cmp { return stands(key, 0) }
