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
	"github.com/pawl-go/pawl/internal/lines"
)

// node is what the name of a claim's node tells besides.
type node struct {
	path  string
	place int64      // the sequence of the node whose token the claim has
	born  int64      // the czxid of the folder that a barging claim meant; 0: any
	stat  *zk.Stat   // nil when it was not asked for
	note  lines.Note // as far as it was read
}

type (
	claim   = lines.Claim[node]
	blocker = lines.Blocker[node]
)

// hash names an id or an owner, which may be long, in the names of nodes.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:15])
}

// The first of the parts of a node's name that tell how it holds.
const (
	inTurn    = "q"
	outOfTurn = "g" // with the czxid of the folder; else the place of the node whose token it shares
)

// kinds are how the names of nodes begin: the kind, small in order and large barging.
var kinds = map[string]engine.Spec{
	"l": {Kind: engine.KindLock}, "L": {Kind: engine.KindLock, Barging: true},
	"s": {Kind: engine.KindSemaphore}, "S": {Kind: engine.KindSemaphore, Barging: true},
}

// number writes a number into the name of a node, or nothing when it is the usual one. Names are
// short because a session's end lists those of all its nodes.
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
	c := &claim{ID: parts[3], Owner: cmp.Or(parts[2], parts[3]), InTurn: parts[4] == inTurn, Spec: kinds[parts[0][:1]]}
	var errs [5]error
	c.Spec.Capacity, errs[0] = numbered(parts[0][1:], engine.LockCapacity, 36)
	c.Weight, errs[1] = numbered(parts[1], c.Spec.Capacity, 36)
	c.Token, errs[2] = numbered(parts[5], 0, 10)
	place := parts[6]
	switch born, is := strings.CutPrefix(parts[4], outOfTurn); {
	case c.Token != 0:
		place = parts[4]
	case is:
		c.Node.born, errs[4] = numbered(born, 0, 36)
	}
	c.Node.path = folder + "/" + name
	c.Node.place, errs[3] = strconv.ParseInt(place, 10, 64)
	if errors.Join(errs[:]...) != nil || c.Spec.Kind == "" {
		return nil
	}
	return c
}

// mark is the node that keeps others from handing over what the claim shares.
func mark(c *claim) string {
	if c.Token == 0 || c.Spec.Barging {
		return ""
	}
	return path.Dir(c.Node.path) + "/g/" + c.ID
}

// line is a resource as it is stored. Nobody changes it, so several waiters share it.
type line struct {
	lines.Line[node]
	version int32 // of the folder, which each claim that comes writes
	born    int64 // the czxid of the folder, whose versions begin at 0; 0: there is no folder
	hasG    bool  // there may be marks
}

// list lists the claims of a resource by a method of the client.
func (l *link) list(ctx context.Context, folder string, children func(string) ([]string, *zk.Stat, error)) (*line, error) {
	names, stat, err := look(ctx, l, folder, children)
	if err != nil || stat == nil {
		return &line{}, err
	}
	return l.newLine(ctx, folder, names, stat)
}

// newLine is what a list of a folder tells. A barging claim that meant another folder, which is no more, waits.
func (l *link) newLine(ctx context.Context, folder string, names []string, stat *zk.Stat) (*line, error) {
	var claims []*claim
	for _, name := range names {
		if c := parse(folder, name); c != nil {
			c.InTurn = c.InTurn || c.Node.born != 0 && c.Node.born != stat.Czxid
			claims = append(claims, c)
		}
	}
	claims, err := l.sort(ctx, claims)
	return &line{lines.New(claims), stat.Version, stat.Czxid, slices.Contains(names, "g")}, err
}

// reading is one list of a folder that several waiters share.
type reading struct {
	begun bool
	done  chan struct{}
	line  *line
	err   error
}

// read returns a list that was begun after the call. All calls while another list goes on share
// the next list. However many waiters look, as they do after a reconnection, two lists suffice.
func (l *link) read(ctx context.Context, folder string) (*line, error) {
	l.mu.Lock()
	r := l.lists[folder]
	if before := r; r == nil || r.begun {
		r = &reading{done: make(chan struct{})}
		l.lists[folder] = r
		go l.readFor(r, before, folder)
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.line, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// readFor lists a folder when the list before is done.
func (l *link) readFor(r, before *reading, folder string) {
	if before != nil {
		<-before.done
	}
	l.mu.Lock()
	r.begun = true
	l.mu.Unlock()
	if r.line, r.err = l.list(l.over, folder, l.conn.Children); l.over.Err() != nil {
		r.err = l.ended
	}
	l.mu.Lock()
	if l.lists[folder] == r {
		delete(l.lists, folder)
	}
	l.mu.Unlock()
	close(r.done)
}

// lastSequence is from where sequences are not trusted. Sequences end at 2³¹, where ZooKeeper goes on
// with negative numbers or gives the last one out for ever.
const lastSequence = math.MaxInt32 - 1<<20

// sort orders claims by sequence as long as these grow. Else it orders them by zxid, which has to
// be asked for, without the claims that went meanwhile.
func (l *link) sort(ctx context.Context, claims []*claim) ([]*claim, error) {
	end := slices.ContainsFunc(claims, func(c *claim) bool { return c.Node.place < 0 || c.Node.place > lastSequence })
	for i := 0; end && i < len(claims); i++ {
		place, err := l.token(ctx, claims[i])
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		claims[i].Node.place = place
	}
	claims = slices.DeleteFunc(claims, func(c *claim) bool { return end && c.Node.place == 0 })
	slices.SortStableFunc(claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.Node.place, b.Node.place), cmp.Compare(a.Token, b.Token))
	})
	return claims, nil
}

// token finds out the token of a claim that holds by itself, which is when it was
// created unless it shares another's.
func (l *link) token(ctx context.Context, c *claim) (int64, error) {
	if c.Token != 0 {
		return c.Token, nil
	}
	stat, err := l.stat(ctx, c.Node.path)
	if err != nil {
		return 0, err
	}
	return stat.Czxid, nil
}
