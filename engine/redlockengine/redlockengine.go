// Package redlockengine is Redlock: one lock on several stores that know nothing of one another,
// usually five plain Redis servers. A claim that a majority of them grants holds. So a minority may
// be down, cut off or without its data, and there is no leader whose change could lose a grant.
//
// The algorithm is that of
// https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/: every node is asked at
// once and for a short time. A majority must grant within TTL - elapsed - drift. Else, and to
// release, every node is told to leave, whatever it answered. A claim without a majority tries
// again after a random pause.
//
// # Objections, and answers
//
//   - A node that restarts without its data, or with old data, votes again for what it has granted
//     already. The page asks operators to keep such a node off for one TTL. Here the
//     engine of each node does so by itself (restart grace), so operators need not
//     remember.
//   - Kleppmann ("How to do distributed locking", 2016): a holder that was paused
//     writes after its lease ended. Redlock has no number by which a resource
//     could refuse it. Here a second round gives each grant a token, see Tokens.
//   - Also there: Redlock is safe only while clocks run at about the same rate and no clock
//     jumps. That stays. The sessions on the nodes live for the TTL and 1 % and 2 ms
//     more, which is the drift that is allowed for. A node whose time of day is set
//     forward ends its sessions early and gives one vote too many. When that can
//     happen to a majority at once, use a store with consensus, or the tokens.
//
// # Votes
//
// A holder believes until the start of its session's last renewal + TTL. So a node's vote counts
// only if the node took part in that renewal: a node that missed it would end the session too
// early. A later renewal joins a node that was away, and enters the held claims there. So a lock
// survives when one node after the other is restarted.
//
// # Tokens
//
// A token is one more than the largest that the majority knows. The token is written back to each
// node by compare-and-set, and the claim is granted only if a majority accepts. Any two majorities
// share a node, so tokens grow without any clock. After a loss of data on a node that was needed
// for that, tokens grow by the nodes' clocks. No token is smaller than the tokens of the nodes
// themselves. The memory of tokens is at most 65,536 small values on each node, whatever the number
// of names: names of one hash share a value.
//
// # Refusals
//
// Readers and semaphores: two permits over three nodes admit three holders.
// Versioned values: those on independent nodes need consensus. There is no order
// of arrival, because each node has a queue of its own, and an owner re-enters
// within its session only.
package redlockengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/internal/names"
)

// Options change how nodes are asked. The zero value is the default.
type Options struct {
	// NodeTimeout is how long a node may take to answer when a majority has. Default: an eighth of
	// the TTL, at most 250 ms. A node may take twice as long as the majority, too, because on a busy
	// machine all are slow. As long as fewer have answered, each may take a sixth of the TTL. To look at
	// more than 250 held locks in a renewal it may take a third.
	NodeTimeout time.Duration

	// NoTokens leaves the second round out. Tokens are then the largest of the
	// nodes' own and fence nothing ([engine.TokenWeak]).
	NoTokens bool
}

// Engine is a lock service of independent nodes. Create it with [New].
type Engine struct {
	nodes  []engine.Engine
	values []engine.Values // of the nodes, where tokens are remembered; none with NoTokens
	opts   Options
	quorum int
	caps   engine.Caps

	closing sync.WaitGroup // of sessions that were opened on too few nodes
}

var _ engine.Engine = (*Engine)(nil)

// New returns the engine of an odd number of nodes, at least three, which stay
// the caller's. The nodes must be independent: no two of them on one server, no
// replica of another. Nil opts are the defaults.
func New(nodes []engine.Engine, opts *Options) (*Engine, error) {
	n := len(nodes)
	if opts == nil {
		opts = new(Options)
	}
	switch {
	case n < 3:
		return nil, fmt.Errorf("redlock: %d nodes: at least 3 are needed, because of fewer none may be down", n)
	case n%2 == 0:
		return nil, fmt.Errorf("redlock: %d nodes: an even number tolerates no more failures than %d, and is more often split", n, n-1)
	case opts.NodeTimeout < 0:
		return nil, fmt.Errorf("redlock: Options.NodeTimeout is %v: 0 (the default) or more is allowed", opts.NodeTimeout)
	}
	e := &Engine{nodes: nodes, opts: *opts, quorum: n/2 + 1}
	e.caps = e.weakest()
	for i, node := range nodes {
		if e.opts.NoTokens {
			break
		}
		values, ok := node.(engine.Values)
		if err := node.Caps().RefuseFeature(engine.FeatureValues); err != nil || !ok {
			return nil, fmt.Errorf("redlock: node %d cannot remember tokens: %w", i+1, cmp.Or(err, engine.ErrUnsupported))
		}
		e.values = append(e.values, values)
	}
	return e, nil
}

// weakest returns the promises that all nodes keep.
func (e *Engine) weakest() engine.Caps {
	node := e.nodes[0].Caps()
	caps := engine.Caps{
		Name: "redlock", Token: engine.TokenRevision, Wake: node.Wake, Expiry: engine.ExpiryMonotonic,
		Failover: engine.FailoverQuorum, Processes: node.Processes, EnterTrip: 2 * node.EnterTrip, LeaveTrip: node.LeaveTrip,
		Lacks: make(map[engine.Feature]string),
	}
	for _, node := range e.nodes {
		c := node.Caps()
		maps.Copy(caps.Lacks, c.Lacks)
		caps.Forgets = caps.Forgets || c.Forgets
		caps.MinTTL = max(caps.MinTTL, c.MinTTL)
		if c.Expiry != engine.ExpiryMonotonic {
			caps.Expiry = c.Expiry
		}
	}
	maps.Copy(caps.Lacks, map[engine.Feature]string{
		engine.FeatureOrder:     "each node has a queue of its own",
		engine.FeatureShared:    "readers over independent nodes may hold beside a writer",
		engine.FeatureSemaphore: "two permits over three nodes admit three holders",
		engine.FeatureValues:    "a value on independent nodes needs consensus",
		engine.FeatureMinHold:   "a node that starts again forgets a session that nobody renews",
	})
	switch {
	case e.opts.NoTokens:
		caps.Token, caps.EnterTrip = engine.TokenWeak, node.EnterTrip
	case caps.Forgets:
		caps.Token = engine.TokenClock
	}
	return caps
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps { return e.caps }

// NodeTTL is how long a session lives on a node: its TTL and the drift. By the drift the clocks of two nodes may part
// in that time.
func NodeTTL(ttl time.Duration) time.Duration { return ttl + ttl/100 + 2*time.Millisecond }

// errSkipped is the answer of a node that was not asked.
var errSkipped = errors.New("not asked: it did not answer lately")

// bound is how long nodes may take.
type bound struct {
	usual time.Duration // when a majority has answered, or twice as long as that took
	most  time.Duration // as long as fewer have
}

// each does a step on every node at once. each returns the outcomes, by node, when all have answered
// or the time is over.
func (e *Engine) each(ctx context.Context, may bound, step func(context.Context, int) error) []error {
	ctx, cancel := context.WithTimeout(ctx, max(may.usual, may.most))
	defer cancel()
	errs, start := make([]error, len(e.nodes)), time.Now()
	var answered atomic.Int64
	var late *time.Timer
	var steps sync.WaitGroup
	for i := range errs {
		steps.Go(func() {
			if errs[i] = step(ctx, i); !unknown(errs[i]) && answered.Add(1) == int64(e.quorum) {
				took := time.Since(start)
				late = time.AfterFunc(max(may.usual, 2*took)-took, cancel)
			}
		})
	}
	steps.Wait()
	if late != nil {
		late.Stop()
	}
	return errs
}

// answers are the errors with which a store answers.
var answers = []error{engine.ErrBusy, engine.ErrGrace, engine.ErrConflict, engine.ErrGone, engine.ErrMismatch, engine.ErrUnsupported}

// unknown reports whether an error is no answer of a store.
func unknown(err error) bool {
	return err != nil && !slices.ContainsFunc(answers, func(class error) bool { return errors.Is(err, class) })
}

// count counts the answers of a class; nil counts those without an error.
func count(errs []error, class error) (n int) {
	for _, err := range errs {
		if errors.Is(err, class) {
			n++
		}
	}
	return n
}

// first returns the first answer of a class.
func first(errs []error, class error) error {
	if i := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, class) }); i >= 0 {
		return errs[i]
	}
	return nil
}

// majority returns the error of a step that n nodes did if these are too few. The end of ctx is not
// the store's fault.
func (e *Engine) majority(ctx context.Context, doing string, n int, errs []error) error {
	switch {
	case n >= e.quorum:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	why := []error{fmt.Errorf("%d of %d nodes are too few", n, len(e.nodes))}
	for i, err := range errs {
		if unknown(err) {
			why = append(why, fmt.Errorf("node %d: %w", i+1, err))
		}
	}
	return engine.Unavailable(doing, errors.Join(why...))
}

// operatorTimeout is how long a node may take to answer an operator.
const operatorTimeout = time.Second

// reach does a step of an operator, which a majority must do.
func (e *Engine) reach(ctx context.Context, doing string, step func(context.Context, int) error) ([]error, error) {
	errs := e.each(ctx, bound{operatorTimeout, operatorTimeout}, step)
	return errs, told(e.majority(ctx, doing, count(errs, nil), errs), errs)
}

// told is the error for an operator. Where too few nodes answer and a node refuses this build, that node's error tells why.
func told(err error, errs []error) error {
	if alien := first(errs, engine.ErrUnsupported); alien != nil && errors.Is(err, engine.ErrUnavailable) {
		return alien
	}
	return err
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return names.Of(func() ([]string, error) {
		told := make([][]string, len(e.nodes))
		_, err := e.reach(ctx, "list", func(ctx context.Context, i int) error {
			for name, err := range e.nodes[i].List(ctx, prefix) {
				if err != nil {
					return err
				}
				told[i] = append(told[i], name)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		all := slices.Concat(told...)
		slices.Sort(all)
		return slices.DeleteFunc(slices.Compact(all), func(name string) bool { return name == "" }), nil // which tells that a node searches
	})
}

// Show implements [engine.Engine]: the claims of all nodes, in the order of the
// first node that answered. A claim that stands on a majority holds. The claim's token is the last
// token that was given to a name of the same hash.
func (e *Engine) Show(ctx context.Context, name string) (engine.Resource, error) {
	views := make([]engine.Resource, len(e.nodes))
	marks := make([]mark, len(e.nodes))
	errs, err := e.reach(ctx, "show", func(ctx context.Context, i int) (err error) {
		if views[i], err = e.nodes[i].Show(ctx, name); err == nil && !e.opts.NoTokens && len(views[i].Claims) > 0 {
			marks[i], err = e.mark(ctx, i, name)
		}
		return err
	})
	r := engine.Resource{Name: name}
	if err != nil {
		return r, err
	}
	graces := make([]engine.Grace, len(views))
	at := make(map[string]int)
	var seen []sights
	for i, view := range views {
		if errs[i] != nil {
			continue
		}
		graces[i] = view.Grace
		for _, c := range view.Claims {
			k, known := at[c.ID]
			if !known {
				k, at[c.ID] = len(r.Claims), len(r.Claims)
				r.Spec, r.Claims, seen = view.Spec, append(r.Claims, ours(c)), append(seen, sights{})
			}
			is := &r.Claims[k]
			is.Age, is.Token = max(is.Age, c.Age), max(is.Token, c.Token)
			if seen[k].left = append(seen[k].left, c.Left); c.Token != 0 {
				seen[k].held = append(seen[k].held, c.Held)
			}
		}
	}
	for k := range r.Claims {
		is := &r.Claims[k]
		is.Held, is.Left = engine.Unknown, shortest(seen[k].left, e.quorum)
		switch {
		case len(seen[k].held) < e.quorum:
			is.Token = 0
			continue
		case !e.opts.NoTokens:
			is.Token = highest(marks)
		}
		is.Held = shortest(seen[k].held, e.quorum)
	}
	queue.Sort(r.Claims)
	r.Grace = e.grace(errs, graces)
	return r, nil
}

// sights are what nodes tell of a claim: since when each grants it, and until when it
// keeps it.
type sights struct{ held, left []time.Duration }

// shortest returns the shortest of the longest n: what n nodes agree on.
func shortest(told []time.Duration, n int) time.Duration {
	slices.Sort(told)
	return told[max(len(told)-n, 0)]
}

// ours takes off what a session put before the texts of its claims.
func ours(c engine.ClaimInfo) engine.ClaimInfo {
	session, label, found := strings.Cut(c.Label, " ")
	if !found {
		return c // of somebody who uses the node as a store of its own
	}
	c.Session, c.Label = session, label
	c.Owner = strings.TrimPrefix(c.Owner, session+" ")
	return c
}

// Evict implements [engine.Engine]. The claim's session leaves the rest, when a majority of
// the nodes has not got it.
func (e *Engine) Evict(ctx context.Context, resource, claim string) error {
	errs, _ := e.reach(ctx, "evict", func(ctx context.Context, i int) error { return e.nodes[i].Evict(ctx, resource, claim) })
	return told(e.left(ctx, "evict", errs), errs)
}

// Close implements [engine.Engine]. The nodes stay open.
func (e *Engine) Close() error {
	e.closing.Wait()
	return nil
}
