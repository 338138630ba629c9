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

	path string
	at   int      // in the line
	stat *zk.Stat // nil when it was not asked for
	note note     // as far as it was read

	holds  bool
	shares *claim // whose grant, if it holds in the queue by its owner
}

// grant is the token by which a claim holds; its stat must be known.
func (c *claim) grant() int64 {
	switch {
	case c.shares != nil:
		return c.shares.grant()
	case c.token == 0 && c.stat != nil:
		return c.stat.Czxid
	}
	return c.token
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

// kinds are how the names of nodes begin: the kind, small in order and large barging.
var kinds = map[string]engine.Spec{
	"l": {Kind: engine.KindLock}, "L": {Kind: engine.KindLock, Barging: true},
	"s": {Kind: engine.KindSemaphore}, "S": {Kind: engine.KindSemaphore, Barging: true},
}

// number writes a number into the name of a node, or nothing when it is the usual one,
// because a session's end lists the names of all its nodes.
func number(n, usual int64, base int) string {
	if n == usual {
		return ""
	}
	return strconv.FormatInt(n, base)
}

// numbered reads it again.
func numbered(text string, usual int64, base int) (int64, error) {
	if text == "" {
		return usual, nil
	}
	return strconv.ParseInt(text, base, 64)
}

// nodeName is the name of a claim's node, without how it holds, the token that it
// shares, if any, and the sequence at its end.
func nodeName(c *engine.Claim) string {
	kind, owner := "", ""
	for letter, spec := range kinds {
		if spec.Kind == c.Kind && spec.Barging == c.Barging {
			kind = letter
		}
	}
	if c.Owner != c.ID {
		owner = hash(c.Owner)
	}
	return strings.Join([]string{
		kind + number(c.Capacity, engine.LockCapacity, 36), number(c.Weight, c.Capacity, 36), owner, hash(c.ID),
	}, ".")
}

// parse returns the claim whose node this is, or nil.
func parse(folder, name string) *claim {
	parts := strings.Split(name, ".")
	if len(parts) != 7 || parts[0] == "" {
		return nil
	}
	c := &claim{id: parts[3], owner: cmp.Or(parts[2], parts[3]), inTurn: parts[4] == inTurn, path: folder + "/" + name, spec: kinds[parts[0][:1]]}
	var errs [4]error
	c.spec.Capacity, errs[0] = numbered(parts[0][1:], engine.LockCapacity, 36)
	c.weight, errs[1] = numbered(parts[1], c.spec.Capacity, 36)
	c.token, errs[2] = numbered(parts[5], 0, 10)
	if c.place, errs[3] = strconv.ParseInt(parts[6], 10, 64); c.token != 0 {
		c.place, errs[3] = strconv.ParseInt(parts[4], 10, 64)
	}
	if errors.Join(errs[:]...) != nil || c.spec.Kind == "" {
		return nil
	}
	return c
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
	ids     map[string]*claim
	version int32 // of the folder: who comes writes it
	missing bool  // there is no folder
	hasG    bool  // there may be marks
}

// list lists the claims of a resource by a method of the client.
func (l *link) list(ctx context.Context, folder string, children func(string) ([]string, *zk.Stat, error)) (*line, error) {
	names, stat, err := look(ctx, l, folder, children)
	if errors.Is(err, zk.ErrNoNode) {
		return &line{missing: true}, nil
	}
	if err != nil {
		return nil, err
	}
	return l.newLine(ctx, folder, names, stat)
}

// newLine is what a list of a folder tells.
func (l *link) newLine(ctx context.Context, folder string, names []string, stat *zk.Stat) (*line, error) {
	found := &line{version: stat.Version, ids: make(map[string]*claim)}
	for _, name := range names {
		found.hasG = found.hasG || name == "g"
		if c := parse(folder, name); c != nil {
			found.claims = append(found.claims, c)
		}
	}
	err := l.sort(ctx, found)
	found.settle()
	return found, err
}

// reads are the lists of one folder that several who wait share: one that goes on, and
// the one after it.
type reads struct{ after *reading }

type reading struct {
	done chan struct{}
	line *line // nobody changes it
	err  error
}

// read returns a list that was begun after the call. All who ask while another one goes
// on share the next: however many look, as they do after a reconnection, two suffice.
func (l *link) read(ctx context.Context, folder string) (*line, error) {
	l.mu.Lock()
	all, r := l.lists[folder], &reading{done: make(chan struct{})}
	switch {
	case all == nil:
		all = &reads{after: r}
		l.lists[folder] = all
		go l.readAll(folder, all)
	case all.after == nil:
		all.after = r
	default:
		r = all.after
	}
	l.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if r.err != nil {
		return nil, r.err
	}
	mine := *r.line
	return &mine, nil
}

// readAll lists a folder for as long as somebody asks for it.
func (l *link) readAll(folder string, all *reads) {
	for {
		l.mu.Lock()
		r := all.after
		all.after = nil
		if r == nil {
			delete(l.lists, folder)
		}
		l.mu.Unlock()
		if r == nil {
			return
		}
		if r.line, r.err = l.list(l.over, folder, l.conn.Children); l.over.Err() != nil {
			r.err = l.ended
		}
		close(r.done)
	}
}

// lastSequence is from where sequences are not trusted: they end at 2³¹, where
// ZooKeeper goes on with negative ones or gives the last one out for ever.
const lastSequence = math.MaxInt32 - 1<<20

// sort orders claims by sequence as long as these grow, else by zxid, which has to be
// asked for: those that went meanwhile are left out.
func (l *link) sort(ctx context.Context, in *line) error {
	end := slices.ContainsFunc(in.claims, func(c *claim) bool { return c.place < 0 || c.place > lastSequence })
	for i := 0; end && i < len(in.claims); i++ {
		place, err := l.token(ctx, in.claims[i])
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		in.claims[i].place = place
	}
	in.claims = slices.DeleteFunc(in.claims, func(c *claim) bool { return end && c.place == 0 })
	slices.SortStableFunc(in.claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.token, b.token))
	})
	return nil
}

// token finds out the token of a claim that holds by itself, which is when it was
// created unless it shares another's.
func (l *link) token(ctx context.Context, c *claim) (int64, error) {
	if c.token != 0 {
		return c.token, nil
	}
	stat, err := l.stat(ctx, c.path)
	if err != nil {
		return 0, err
	}
	return stat.Czxid, nil
}

// settle finds who holds. A claim that uses the resource as something else than
// the first does is about to go, and holds nothing until it is the first.
func (l *line) settle() {
	mixed := false
	for i, c := range l.claims {
		if i == 0 {
			l.Spec = c.spec
		}
		c.at, l.ids[c.id] = i, c
		if mixed = mixed || c.spec != l.Spec; mixed && c.inTurn {
			l.Waits = true
			continue
		}
		c.holds, c.shares = l.Add(c, c.owner, c.weight, c.inTurn)
	}
}

func (l *line) find(id string) *claim { return l.ids[id] }

// tells reports whether a claim that waited changes its node when it holds, because who
// comes next may hold beside it.
func (c *claim) tells() bool {
	return c.spec.Kind == engine.KindSemaphore && c.inTurn && c.weight < c.spec.Capacity
}

// behind reports whether somebody came after a claim.
func (l *line) behind(own *claim) bool { return own.at < len(l.claims)-1 }

// blocker is what a waiting claim watches.
type blocker struct {
	path   string // of the claim that has to go first; empty: any of those that hold
	direct bool   // when that claim hands over, ours holds
	tells  bool   // it may also hold first, and changes its node then
}

// blocker returns what can unblock a claim of the queue. It is one other claim, and only
// who is next waits for any that holds: so that each release wakes whom it grants.
func (l *line) blocker(own *claim) blocker {
	between := int64(0)
	for _, ahead := range slices.Backward(l.claims[:own.at]) {
		switch {
		case own.spec.Barging:
			if ahead.inTurn { // it waits
				return blocker{path: ahead.path}
			}
			continue
		case ahead.spec != own.spec || ahead.owner != own.owner && ahead.weight+own.weight > own.spec.Capacity:
			handsOver := ahead.inTurn && ahead.spec == own.spec && ahead.weight == own.spec.Capacity
			fits := between+own.weight <= own.spec.Capacity && !own.tells()
			return blocker{path: ahead.path, direct: handsOver && fits}
		case !ahead.holds && ahead.tells():
			return blocker{path: ahead.path, tells: true}
		}
		between += ahead.weight
	}
	return blocker{}
}
