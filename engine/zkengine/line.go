package zkengine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"math"
	"path"
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
	inTurn    bool  // its place in the queue decides whether it holds
	token     int64 // that it shares, 0 if its own counts
	place     int64 // the sequence of the node whose token that is

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

// The first of the parts of a node's name that tell how it holds.
const (
	inTurn    = "q"
	outOfTurn = "g" // else the place of the node whose token it shares
)

// nodeName is the name of a claim's node, without how it holds, the token that it
// shares, if any, and the sequence at its end.
func nodeName(c *engine.Claim) string {
	return strings.Join([]string{
		strconv.FormatInt(c.Weight, 36), strconv.FormatInt(c.Capacity, 36), strconv.FormatBool(c.Barging), string(c.Kind),
		hash(c.Owner), hash(c.ID),
	}, ".")
}

// parse returns the claim whose node this is, or nil.
func parse(folder, name string) *claim {
	parts := strings.Split(name, ".")
	if len(parts) != 9 {
		return nil
	}
	weight, err1 := strconv.ParseInt(parts[0], 36, 64)
	capacity, err2 := strconv.ParseInt(parts[1], 36, 64)
	token, err3 := strconv.ParseInt(parts[7], 10, 64)
	place, err4 := strconv.ParseInt(parts[8], 10, 64)
	if token != 0 {
		place, err4 = strconv.ParseInt(parts[6], 10, 64)
	}
	if errors.Join(err1, err2, err3, err4) != nil {
		return nil
	}
	return &claim{
		id: parts[5], owner: parts[4], weight: weight, inTurn: parts[6] == inTurn, token: token, place: place, path: folder + "/" + name,
		spec: engine.Spec{Kind: engine.Kind(parts[3]), Capacity: capacity, Barging: parts[2] == "true"},
	}
}

// mark is the node that keeps others from handing over what the claim shares.
func (c *claim) mark() string {
	if c.token == 0 || c.spec.Barging {
		return ""
	}
	return path.Dir(c.path) + "/g/" + c.id
}

// line is a resource as it is stored.
type line struct {
	queue.Line[claim]
	claims  []*claim // in the order of their tokens
	version int32    // of the folder: who comes writes it
	missing bool     // there is no folder
	hasG    bool     // there may be marks
}

// read lists the claims of a resource.
func (l *link) read(ctx context.Context, folder string) (*line, error) {
	names, stat, err := look(ctx, l, folder, l.conn.Children)
	if errors.Is(err, zk.ErrNoNode) {
		return &line{missing: true}, nil
	}
	if err != nil {
		return nil, err
	}
	found := &line{version: stat.Version}
	for _, name := range names {
		found.hasG = found.hasG || name == "g"
		if c := parse(folder, name); c != nil {
			found.claims = append(found.claims, c)
		}
	}
	err = l.sort(ctx, found)
	found.settle()
	return found, err
}

// lastSequence is from where sequences are not trusted: they end at 2³¹, where
// ZooKeeper goes on with negative ones or gives the last one out for ever.
const lastSequence = math.MaxInt32 - 1<<20

// sort orders claims by sequence as long as these grow, else by zxid, which has to be
// asked for: those that went meanwhile are left out.
func (l *link) sort(ctx context.Context, in *line) error {
	end := slices.ContainsFunc(in.claims, func(c *claim) bool { return c.place < 0 || c.place > lastSequence })
	for i := 0; end && i < len(in.claims); i++ {
		c := in.claims[i]
		if err := l.age(ctx, c); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		c.place = cmp.Or(c.token, c.czxid)
	}
	in.claims = slices.DeleteFunc(in.claims, func(c *claim) bool { return end && c.place == 0 })
	slices.SortStableFunc(in.claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.token, b.token))
	})
	return nil
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
}

// blocker returns what can unblock a claim of the queue.
func (l *line) blocker(own *claim) blocker {
	if own.spec.Barging {
		return blocker{}
	}
	between := int64(0)
	for _, ahead := range slices.Backward(l.claims[:slices.Index(l.claims, own)]) {
		if ahead.spec != own.spec || ahead.owner != own.owner && ahead.weight+own.weight > own.spec.Capacity {
			handsOver := ahead.inTurn && ahead.spec == own.spec && ahead.weight == own.spec.Capacity
			return blocker{ahead.path, handsOver && between+own.weight <= own.spec.Capacity}
		}
		between += ahead.weight
	}
	return blocker{}
}
