package zkengine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

// note is what is written in the node of a claim, as JSON, for operators.
type note struct {
	ID      string `json:"id"`
	Owner   string `json:"owner,omitempty"` // empty: the ID
	Session string `json:"session"`
	Label   string `json:"label,omitempty"`
}

// claim is a claim as the name of its node tells it.
type claim struct {
	id, owner string // hashes
	weight    int64
	spec      engine.Spec
	token     int64 // of a claim in g: that of the grant it shares, 0 if it is its own
	sequence  int64
	inTurn    bool // it is in the queue

	path  string
	czxid int64 // 0 when it was not asked for
	note  note  // as far as it was read

	holds  bool
	shares *claim // whose grant, if it holds in the queue by its owner
}

// grant is the token by which a claim holds; its czxid must be known.
func (c *claim) grant() int64 {
	if c.shares != nil {
		return c.shares.grant()
	}
	return cmp.Or(c.token, c.czxid)
}

// hash names an id or an owner, which may be long, in the names of nodes.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:15])
}

// nodeName is the name of a claim's node, without the token that it shares, if
// any, and the sequence at its end.
func nodeName(c *engine.Claim) string {
	return strings.Join([]string{
		strconv.FormatInt(c.Weight, 36), strconv.FormatInt(c.Capacity, 36), strconv.FormatBool(c.Barging), string(c.Kind),
		hash(c.Owner), hash(c.ID), "",
	}, ".")
}

// parse returns the claims of a folder.
func parse(folder string, names []string, inTurn bool) (claims []*claim) {
	for _, name := range names {
		parts := strings.Split(name, ".")
		if len(parts) != 8 {
			continue
		}
		weight, err1 := strconv.ParseInt(parts[0], 36, 64)
		capacity, err2 := strconv.ParseInt(parts[1], 36, 64)
		token, err3 := strconv.ParseInt(parts[6], 10, 64)
		sequence, err4 := strconv.ParseInt(parts[7], 10, 64)
		if errors.Join(err1, err2, err3, err4) != nil {
			continue
		}
		claims = append(claims, &claim{
			id: parts[5], owner: parts[4], weight: weight, token: token, sequence: sequence, inTurn: inTurn, path: folder + "/" + name,
			spec: engine.Spec{Kind: engine.Kind(parts[3]), Capacity: capacity, Barging: parts[2] == "true"},
		})
	}
	return claims
}

// line is a resource as it is stored.
type line struct {
	queue.Line[claim]
	claims  []*claim // in the order of their tokens, as far as these are compared
	version int32    // of the folder: who comes writes it
	missing bool     // there is no folder
	hasG    bool
}

// read lists the claims of a resource. The queue is read before g: who is in g
// came there by a claim that stood, so it cannot be overlooked.
func (l *link) read(ctx context.Context, folder string) (*line, error) {
	names, stat, err := look(ctx, l, folder, l.conn.Children)
	if errors.Is(err, zk.ErrNoNode) {
		return &line{missing: true}, nil
	}
	if err != nil {
		return nil, err
	}
	found := &line{version: stat.Version, hasG: slices.Contains(names, "g")}
	inTurn, inG := parse(folder, names, true), []*claim(nil)
	if found.hasG {
		names, _, err := look(ctx, l, folder+"/g", l.conn.Children)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		inG = parse(folder+"/g", names, false)
	}
	if inTurn, err = l.sorted(ctx, inTurn, inG); err != nil {
		return nil, err
	}
	found.claims = merge(inTurn, inG)
	found.settle()
	return found, nil
}

// lastSequence is from where sequences are not trusted: they end at 2³¹, where
// ZooKeeper goes on with negative ones or gives the last one out for ever.
const lastSequence = math.MaxInt32 - 1<<20

// sorted returns the claims of the queue in order of creation: by sequence as long
// as these grow, else by zxid, which has to be asked for. It asks too for the zxids
// of those whose owners are in g; those that went meanwhile are left out.
func (l *link) sorted(ctx context.Context, inTurn, inG []*claim) ([]*claim, error) {
	owners := make(map[string]bool)
	for _, g := range inG {
		owners[g.owner] = true
	}
	ends := slices.ContainsFunc(inTurn, func(c *claim) bool { return c.sequence < 0 || c.sequence > lastSequence })
	asks := func(c *claim) bool { return ends || owners[c.owner] }
	err := each(len(inTurn), func(i int) error {
		if !asks(inTurn[i]) {
			return nil
		}
		err := l.age(ctx, inTurn[i])
		if errors.Is(err, zk.ErrNoNode) {
			err = nil
		}
		return err
	})
	inTurn = slices.DeleteFunc(inTurn, func(c *claim) bool { return asks(c) && c.czxid == 0 })
	slices.SortFunc(inTurn, func(a, b *claim) int {
		if ends {
			return cmp.Compare(a.czxid, b.czxid)
		}
		return cmp.Compare(a.sequence, b.sequence)
	})
	return inTurn, err
}

// age finds out when a claim was created, if its token is not known without.
func (l *link) age(ctx context.Context, c *claim) error {
	if cmp.Or(c.token, c.czxid) != 0 {
		return nil
	}
	stat, err := l.stat(ctx, c.path)
	if err == nil {
		c.czxid = stat.Czxid
	}
	return err
}

// merge puts the claims of g among those of the queue: each behind the claims of
// its owner whose tokens are not larger, as which of them holds decides about
// the token of the next. All of the others that are before those hold as well.
func merge(inTurn, inG []*claim) []*claim {
	if len(inG) > 0 && inG[0].spec.Barging {
		return append(inG, inTurn...)
	}
	slices.SortStableFunc(inG, func(a, b *claim) int { return cmp.Compare(a.token, b.token) })
	for _, g := range inG {
		at := 0
		for i, c := range inTurn {
			if c.owner == g.owner && cmp.Or(c.token, c.czxid) <= g.token {
				at = i + 1
			}
		}
		inTurn = slices.Insert(inTurn, at, g)
	}
	return inTurn
}

// settle finds who holds. A claim that uses the resource as something else than
// the first does is about to go, and holds nothing until it is the first.
func (l *line) settle() {
	mixed := false
	for i, c := range l.claims {
		if i == 0 {
			l.Spec = c.spec
		}
		if mixed = mixed || c.spec != l.Spec; mixed && c.inTurn {
			l.Waits = true
			continue
		}
		c.holds, c.shares = l.Add(c, c.owner, c.weight, c.inTurn)
		if !c.inTurn {
			c.shares = nil // it is written in its name
		}
	}
}

func (l *line) find(id string) *claim {
	i := slices.IndexFunc(l.claims, func(c *claim) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return l.claims[i]
}

// blocker is what a waiting claim watches.
type blocker struct {
	path   string // of the claim that has to go first; empty: any of them
	direct bool   // when that claim hands over, ours holds
	hasG   bool
}

// blocker returns what can unblock a claim of the queue.
func (l *line) blocker(own *claim) blocker {
	b := blocker{hasG: l.hasG}
	if own.spec.Barging {
		return b
	}
	between := int64(0)
	for _, ahead := range slices.Backward(l.claims[:slices.Index(l.claims, own)]) {
		if ahead.spec != own.spec || ahead.owner != own.owner && ahead.weight+own.weight > own.spec.Capacity {
			b.path = ahead.path
			b.direct = ahead.inTurn && ahead.spec == own.spec && ahead.weight == own.spec.Capacity && between+own.weight <= own.spec.Capacity
			return b
		}
		between += ahead.weight
	}
	return b
}
