// Package zkengine keeps claims in ZooKeeper, 3.5 or newer.
//
// # The recipe
//
// A session is one of ZooKeeper's, with a connection of its own. A claim is an
// ephemeral node, so it vanishes with its session:
//
//	<root>/c/<name>/<claim>.<sequence>   the queue, in order of creation
//	<root>/c/<name>/g/<claim>            marks a claim that shares the grant of another
//	<root>/v/<key>                       a value; its version is the zxid of its last change
//	<root>/beat                          is written by each heartbeat
//
// The data of <root>/v is the format of all this. The folder of a long name is named by
// a hash, and has the name as its data.
//
// The folder of a name, and its g, are containers: ZooKeeper removes them when they have become
// empty. The name of a claim's node has its weight, the spec, hashes of its id and its owner, and
// how it holds. So the list of a folder tells the holders. The data of the node is for operators.
//
// First in, first out: grants are not stored. Enter creates the node of the claim and writes the
// folder, in one step. The reply has the zxid of the step, which is the token, and whether the
// node is alone there. If it is not, Enter lists the folder. The claim holds iff those ahead and
// its own weight fit in the capacity. A waiter watches its own node and the last claim ahead that
// has to go first, and nothing else. Where no single claim has to go, as in a semaphore, the next
// waiter watches the children of the folder. Each other waiter watches the one before it. A claim
// that holds changes its node when a waiter behind it may not know: that waiter is then the next
// one.
//
// Direct handoff: an exclusive holder, with nobody beside it, changes its node and deletes it in
// one step, if there is no g. The event of a change then tells the waiter behind it that it
// holds. After the event of a deletion the waiter has to look, because a session may have ended,
// or a waiter left, anywhere in the queue.
//
// Some claims hold whatever is ahead of them, and their names say so. Re-entries have the token
// that they share and the place in the queue of the claim that they share it with. So do holders
// of a barging resource, whose queue holds nothing, and of which only the first waiter tries. A
// re-entry is created on condition that the other claim is there. Other claims that are to hold
// at once are created on condition that nobody came: the folder was not written since it was
// listed. A folder that was removed and made anew counts its writes from 0. So a client compares
// the czxid of the folder, too. The name of a barging holder has that czxid, and a barging claim
// in a folder with another czxid waits in the eyes of all.
//
// # Prerequisites
//
// The engine makes its connections by itself, because a [zk.Conn] is a session. A session lives as long
// as its program, and so tells nothing of a client. Such a connection opens another session when
// the first has ended.
package zkengine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
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
	"github.com/pawl-go/pawl/internal/names"
)

// Options are the settings of an [Engine]. The zero value of each field means
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
	servers        []string
	opts           Options
	claims, values string // folders
	beat           string // the node that heartbeats write
	acl            []zk.ACL

	partings sync.WaitGroup // of clients that were not connected
	operator chan *link     // has one, nil when it is not connected; none when the engine is closed
	closed   chan struct{}
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine on the servers of one ensemble, "host:port" each. The engine
// connects when it is used. Nil opts are the defaults.
func New(servers []string, opts *Options) *Engine {
	e := &Engine{
		servers: slices.Clone(servers), acl: zk.WorldACL(zk.PermAll), operator: make(chan *link, 1), closed: make(chan struct{}),
	}
	if opts != nil {
		e.opts = *opts
	}
	if e.opts.User != "" {
		e.acl = zk.DigestACL(zk.PermAll, e.opts.User, e.opts.Password)
	}
	if e.opts.Dial == nil {
		e.opts.Dial = (&net.Dialer{}).DialContext
	}
	e.opts.Tick = cmp.Or(e.opts.Tick, 2*time.Second)
	e.opts.Root = "/" + cmp.Or(strings.Trim(e.opts.Root, "/"), "pawl")
	e.claims, e.values, e.beat = e.opts.Root+"/c", e.opts.Root+"/v", e.opts.Root+"/beat"
	e.operator <- nil
	return e
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps {
	return engine.Caps{
		Name: "zk", Token: engine.TokenRevision, Wake: engine.WakeWatch, Expiry: engine.ExpiryMonotonic,
		Failover: engine.FailoverSafe, Processes: engine.ReachNetwork, EnterTrip: 1, LeaveTrip: 1,
		MinTTL: 3 * e.opts.Tick, // servers refuse less than two, and Renew takes more than half a one
		Lacks:  map[engine.Feature]string{engine.FeatureResize: "the size is a part of each claim's node, whose zxid is its place and its token"},
	}
}

// longName is the length of a name from which on a hash names the node, because the end of a
// session lists all its paths.
const longName = 64

// folder returns the path of the node of a resource, and its data. Names are escaped byte by
// byte, and begin with a letter, for "." and ".." are not allowed. The node of a long name has
// the name in it.
func (e *Engine) folder(name string) (path string, title []byte) {
	if escaped := url.PathEscape(name); len(escaped) < longName {
		return e.claims + "/n" + escaped, nil
	}
	sum := sha256.Sum256([]byte(name))
	return e.claims + "/h" + base64.RawURLEncoding.EncodeToString(sum[:]), []byte(name)
}

// nameOf is the name of the resource of a folder, empty if that has gone or is not ours.
func (l *link) nameOf(ctx context.Context, folder string) (string, error) {
	if escaped, short := strings.CutPrefix(folder, "n"); short {
		name, _ := url.PathUnescape(escaped) // empty where that is no name
		return name, nil
	}
	title, _, err := look(ctx, l, l.engine.claims+"/"+folder, l.conn.Get)
	return string(title), err
}

func (e *Engine) value(key string) string { return e.values + "/n" + url.PathEscape(key) }

// operatorTimeout is that of the session of the connection for operators and
// values. That session owns nothing.
const operatorTimeout = 10 * time.Second

var errEnded = errors.New("the session has ended")

// link returns the connection for operators and values, which is made when it
// is first used, and again when its session has ended.
func (e *Engine) link(ctx context.Context) (l *link, err error) {
	select {
	case l = <-e.operator:
	case <-e.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l != nil && l.over.Err() != nil {
		l.close(ctx) //nolint:errcheck // it has ended
		l = nil
	}
	if l == nil {
		l, err = e.dial(ctx, operatorTimeout, errEnded, func(zk.Event) {})
	} else if l.unused.Load() { // clients of another format may have come since
		err = l.checkFormat(ctx)
	}
	e.operator <- l
	return l, err
}

// fresh returns that connection when it has caught up with the leader.
func (e *Engine) fresh(ctx context.Context) (*link, error) {
	l, err := e.link(ctx)
	if err == nil {
		err = l.sync(ctx)
	}
	return l, err
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	select {
	case l := <-e.operator:
		close(e.closed)
		if l != nil {
			l.close(context.Background()) //nolint:errcheck // it owns nothing
		}
	case <-e.closed:
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
	return names.Of(func() ([]string, error) { return e.list(ctx, prefix) })
}

// list looks into the folder of each name, which is there for a while when it is
// empty.
func (e *Engine) list(ctx context.Context, prefix string) (names []string, err error) {
	defer explain("list", &err)
	l, err := e.fresh(ctx)
	if err != nil {
		return nil, err
	}
	folders, _, err := look(ctx, l, e.claims, l.conn.Children)
	if err != nil {
		return nil, err
	}
	names = make([]string, len(folders))
	err = each(len(folders), func(i int) error {
		name, err := l.nameOf(ctx, folders[i])
		if err != nil || name == "" || !strings.HasPrefix(name, prefix) {
			return err
		}
		line, err := l.list(ctx, e.claims+"/"+folders[i], l.conn.Children)
		if err == nil && len(line.Claims) > 0 {
			names[i] = name
		}
		return err
	})
	return slices.DeleteFunc(names, func(name string) bool { return name == "" }), err
}

// Show implements [engine.Engine]. Show writes the node of heartbeats instead of a sync,
// because the only clock of ZooKeeper is that of its writes.
func (e *Engine) Show(ctx context.Context, name string) (r engine.Resource, err error) {
	defer explain("show", &err)
	r.Name = name
	l, err := e.link(ctx)
	if err != nil {
		return r, err
	}
	now, err := ask(ctx, l, func() (*zk.Stat, error) { return l.conn.Set(e.beat, nil, -1) })
	if errors.Is(err, zk.ErrNoNode) { // nobody has written anything
		return r, nil
	}
	if err != nil {
		return r, err
	}
	folder, _ := e.folder(name)
	line, err := l.list(ctx, folder, l.conn.Children)
	if err != nil {
		return r, err
	}
	if err := each(len(line.Claims), func(i int) error { return l.readNote(ctx, line.Claims[i]) }); err != nil {
		return r, err
	}
	claims := slices.DeleteFunc(line.Claims, func(c *claim) bool { return c.Node.stat == nil || c.Spec != line.Spec }) // those went, or are about to
	slices.SortStableFunc(claims, func(a, b *claim) int { return cmp.Compare(a.Node.stat.Czxid, b.Node.stat.Czxid) })
	for _, c := range claims {
		r.Spec = line.Spec
		since := func(ms int64) time.Duration { return time.Duration(max(now.Mtime-ms, 0)) * time.Millisecond }
		info, stat := c.Info(c.Node.note), c.Node.stat
		info.Age = since(stat.Ctime)
		switch {
		case c.Holds && !c.InTurn: // its node was made when it was granted
			info.Held = info.Age
		case c.Holds && stat.Version > 0: // it told the next waiter
			info.Held = since(stat.Mtime)
		}
		r.Claims = append(r.Claims, info)
	}
	queue.Sort(r.Claims)
	return r, nil
}

// Evict implements [engine.Engine].
func (e *Engine) Evict(ctx context.Context, resource, claim string) (err error) {
	defer explain("evict", &err)
	l, err := e.link(ctx)
	if err == nil {
		_, err = l.seek(ctx, resource, claim, "", false)
	}
	return err
}

// readNote reads the data of the node of a claim, and when that was created; nothing if the claim
// went meanwhile.
func (l *link) readNote(ctx context.Context, c *claim) error {
	data, stat, err := look(ctx, l, c.Node.path, l.conn.Get)
	if err == nil && stat != nil {
		c.Node.stat, c.Token = stat, cmp.Or(c.Token, stat.Czxid)
		json.Unmarshal(data, &c.Node.note) //nolint:errcheck // it is ours
	}
	return err
}
