// Package zkengine keeps claims in ZooKeeper, 3.5 or newer.
//
// # The recipe
//
// A session is one of ZooKeeper's, with a connection of its own. A claim is an
// ephemeral node, so it vanishes with its session:
//
//	<root>/c/<name>/<claim><sequence>     the queue, in order of creation
//	<root>/c/<name>/g/<claim><sequence>   who holds out of that order
//	<root>/v/<key>                        a value; its version is the zxid of its last change
//
// The folder of a name, and its g, are containers: ZooKeeper removes them when
// they have become empty. The name of a claim's node has its weight, the spec,
// and hashes of its id and its owner, so that the list of a folder tells who
// holds; what operators want to know is in the node.
//
// First in, first out: nothing is stored of who holds. Enter creates its node
// and writes the folder, in one step, which tells the zxid of the step, its
// token, and whether it is alone there; else it lists the folder. The claim
// holds iff those ahead and its own weight fit in the capacity. Who waits
// watches its own node and the last claim ahead that has to go first, and
// nothing else. Where no single claim has to go, as in a semaphore, it watches
// the children of the folder.
//
// Direct handoff: who held all, with nobody beside it, changes its node and
// deletes it in one step, if there is no g. The event of a change then tells
// who waits behind it that it holds; that of a deletion only that it has to
// look, for a session may have ended, or a waiter left, anywhere in the queue.
//
// Re-entries have nodes under g, named by the token that they share; so have those
// that hold a barging resource, whose queue holds nothing. Such a node is
// created on condition that the folder was not written since it was listed,
// which means that nobody came.
//
// # Prerequisites
//
// The engine is told how to connect and makes its connections by itself: a
// [zk.Conn] is a session, which lives as long as its program and so tells
// nothing of a client, and gets another when it has ended.
package zkengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// Options are what an [Engine] can be told. The zero value of each field means
// its default.
type Options struct {
	// Root is the path of the node that all nodes are under. Default "/pawl".
	Root string

	// User and Password, when set, are sent as "digest", and all nodes are for
	// that user only.
	User, Password string

	// Dial connects to a server, for instance by TLS. Default: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Tick is the tickTime of the servers, or longer. Renew needs it: a server
	// tells the leader of our signs of life every half tick. Default 2s, which is
	// theirs.
	Tick time.Duration
}

// Engine is a store in ZooKeeper. Create it with [New].
type Engine struct {
	servers              []string
	root, claims, values string
	user, password       string
	acl                  []zk.ACL
	dialer               func(ctx context.Context, network, addr string) (net.Conn, error)
	tick                 time.Duration

	partings sync.WaitGroup // of clients that were not connected

	mu       sync.Mutex
	closed   bool
	operator chan *link // has one, nil when it is not connected
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine on the servers of one ensemble, "host:port" each. It
// connects when it is used. Nil opts are the defaults.
func New(servers []string, opts *Options) *Engine {
	if opts == nil {
		opts = &Options{}
	}
	e := &Engine{
		servers: slices.Clone(servers), root: "/" + strings.Trim(cmp.Or(opts.Root, "/pawl"), "/"),
		user: opts.User, password: opts.Password, acl: zk.WorldACL(zk.PermAll),
		dialer: opts.Dial, tick: cmp.Or(opts.Tick, 2*time.Second), operator: make(chan *link, 1),
	}
	if e.user != "" {
		e.acl = zk.DigestACL(zk.PermAll, e.user, e.password)
	}
	if e.dialer == nil {
		e.dialer = (&net.Dialer{}).DialContext
	}
	e.claims, e.values = e.root+"/c", e.root+"/v"
	e.operator <- nil
	return e
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps {
	return engine.Caps{
		Name: "zk", Token: engine.TokenRevision, Wake: engine.WakeWatch, Expiry: engine.ExpiryMonotonic,
		Failover: engine.FailoverSafe, Processes: engine.ReachNetwork, EnterTrip: 1, LeaveTrip: 1,
		MinTTL: 3 * e.tick, // servers refuse less than two, and Renew takes more than half a one
		Lacks:  map[engine.Feature]string{engine.FeatureResize: "the size is a part of each claim's node, whose zxid is its place and its token"},
	}
}

// folder is the node of a resource. Names are escaped byte by byte, and begin
// with a letter, for "." and ".." are not allowed.
func (e *Engine) folder(name string) string { return e.claims + "/n" + url.PathEscape(name) }

func (e *Engine) value(key string) string { return e.values + "/n" + url.PathEscape(key) }

// makeFolders makes what all resources share.
func (l *link) makeFolders(ctx context.Context) error {
	path := ""
	for part := range strings.SplitSeq(l.engine.root[1:], "/") {
		path += "/" + part
		if err := l.create(ctx, "make folders", path, zk.FlagPersistent); err != nil {
			return err
		}
	}
	if err := l.create(ctx, "make folders", l.engine.claims, zk.FlagPersistent); err != nil {
		return err
	}
	return l.create(ctx, "make folders", l.engine.values, zk.FlagPersistent)
}

// operatorTimeout is that of the session of the connection for operators and
// values. It owns nothing.
const operatorTimeout = 10 * time.Second

// link returns the connection for operators and values, which is made when it
// is first used, and again when its session has ended.
func (e *Engine) link(ctx context.Context) (*link, error) {
	var l *link
	select {
	case l = <-e.operator:
	case <-ctx.Done():
		return nil, fmt.Errorf("connect: %w", ctx.Err())
	}
	defer func() { e.operator <- l }()
	if l != nil {
		select {
		case <-l.over:
			l.close(ctx) //nolint:errcheck // it has ended
			l = nil
		default:
			return l, nil
		}
	}
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return nil, engine.Unavailable("connect", net.ErrClosed)
	}
	made, err := e.dial(ctx, operatorTimeout, func(zk.Event) {})
	if err == nil {
		l = made
	}
	return l, err
}

// fresh returns that connection when it has caught up with the leader.
func (e *Engine) fresh(ctx context.Context, doing string) (*link, error) {
	l, err := e.link(ctx)
	if err == nil {
		err = l.sync(ctx, doing)
	}
	return l, err
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	l := <-e.operator
	defer func() { e.operator <- nil }()
	if l != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		l.close(ctx) //nolint:errcheck // it owns nothing
	}
	e.partings.Wait()
	return nil
}

// atOnce is how many requests of a list or of Show are under way.
const atOnce = 64

// each calls do for all numbers below n, some at once, and returns an error.
func each(n int, do func(i int) error) error {
	errs := make([]error, min(n, atOnce))
	var wg sync.WaitGroup
	for first := range errs {
		wg.Go(func() {
			for i := first; i < n && errs[first] == nil; i += atOnce {
				errs[first] = do(i)
			}
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		l, err := e.fresh(ctx, "list")
		var names []string
		if err == nil {
			names, err = e.names(ctx, l, prefix)
		}
		for some := range slices.Chunk(names, 10*atOnce) {
			used := make([]bool, len(some))
			err := each(len(some), func(i int) error {
				line, err := l.read(ctx, "list", e.folder(some[i]))
				used[i] = err == nil && len(line.claims) > 0
				return err
			})
			if err != nil {
				yield("", err)
				return
			}
			for i, name := range some {
				if used[i] && !yield(name, nil) {
					return
				}
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}

// names returns those that have a folder, which may be empty for a while.
func (e *Engine) names(ctx context.Context, l *link, prefix string) (names []string, err error) {
	folders, err := ask(ctx, l, "list", func() ([]string, error) {
		all, _, err := l.conn.Children(e.claims)
		return all, err
	})
	for _, folder := range folders {
		name, err := url.PathUnescape(strings.TrimPrefix(folder, "n"))
		if err == nil && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, err
}

// Show implements [engine.Engine].
func (e *Engine) Show(ctx context.Context, name string) (engine.Resource, error) {
	r := engine.Resource{Name: name}
	l, err := e.fresh(ctx, "show")
	if err != nil {
		return r, err
	}
	line, err := l.read(ctx, "show", e.folder(name))
	if err != nil {
		return r, err
	}
	notes := make([]note, len(line.claims))
	if err := each(len(notes), func(i int) (err error) {
		notes[i], err = l.note(ctx, "show", line.claims[i])
		return err
	}); err != nil {
		return r, err
	}
	r.Spec = line.Spec
	order := slices.Clone(line.claims)
	slices.SortStableFunc(order, func(a, b *claim) int { return cmp.Compare(a.czxid, b.czxid) })
	for _, c := range order {
		n := notes[slices.Index(line.claims, c)]
		if n.ID == "" || c.spec != line.Spec { // it went meanwhile, or is about to
			continue
		}
		info := engine.ClaimInfo{
			ID: n.ID, Owner: cmp.Or(n.Owner, n.ID), Session: n.Session, Label: n.Label, Weight: c.weight, Age: -1,
		}
		if c.holds {
			info.Token = fence.Token(c.grant())
		}
		r.Claims = append(r.Claims, info)
	}
	queue.Sort(r.Claims)
	if len(r.Claims) == 0 {
		r.Spec = engine.Spec{}
	}
	return r, nil
}

// note reads what is written in the node of a claim, and when that was created.
// It is empty if the claim went meanwhile.
func (l *link) note(ctx context.Context, doing string, c *claim) (note, error) {
	n, err := ask(ctx, l, doing, func() (n note, err error) {
		data, stat, err := l.conn.Get(c.path)
		if err == nil {
			n.read(data)
			n.czxid = stat.Czxid
		}
		return n, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return note{}, nil
	}
	c.czxid = n.czxid
	return n, err
}
