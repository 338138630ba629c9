package zkengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/lines"
)

type session struct {
	engine *Engine
	link   *link
	id     string
	opts   engine.SessionOptions
	alarm  *time.Timer // closes the session, unless it is renewed

	farewell sync.Once
	parted   error // of the farewell

	mu     sync.Mutex
	places map[string]*place
	bytes  int    // of the paths of them all
	left   []left // the last ones, in order

	strange atomic.Bool // the store may have claims that were left
}

// left is a claim that this session left, and its node.
type left struct{ resource, claim, path string }

// mostLeft is how many of them are remembered.
const mostLeft = 100

func (s *session) ID() string { return s.id }

// place is where a claim of this session is kept, from Enter to Leave. The
// session's mutex guards it, as Leave may be called at any time.
type place struct {
	folder, name string
	title        []byte // of the folder
	hash         string
	data         []byte
	bytes        int  // that the session's end needs for it
	shares       bool // these are reckoned with

	again   bool   // it was asked for before, and may have a node already
	path    string // of its node, as far as was seen
	czxid   int64  // of that node
	waits   bool
	blocker blocker
	holds   bool
	all     bool // it holds, and nothing is beside or ahead of it
}

// ahead is the path of the claim that has to go first; empty: any of the holders.
func (p *place) ahead() string {
	if p.blocker.Claim == nil {
		return ""
	}
	return p.blocker.Claim.Node.path
}

// Open implements [engine.Engine]. ZooKeeper may round the TTL up.
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (_ engine.Session, err error) {
	defer explain("open session", &err)
	if least := e.Caps().MinTTL; opts.TTL < least {
		return nil, fmt.Errorf("%w: with ticks of %v a session lives for at least %v, not %v", engine.ErrUnsupported, e.opts.Tick, least, opts.TTL)
	}
	s := &session{engine: e, opts: opts, places: make(map[string]*place)}
	start := time.Now()
	l, err := e.dial(ctx, opts.TTL, fmt.Errorf("session: %w", engine.ErrGone), s.event)
	if err != nil {
		return nil, err
	}
	if l.unused.Load() {
		if err := l.makeFolders(ctx); err != nil {
			l.close(ctx) //nolint:errcheck // it owns nothing
			return nil, err
		}
	}
	l.mu.Lock()
	got := l.timeout
	l.mu.Unlock()
	if got < opts.TTL.Truncate(time.Millisecond) {
		l.close(ctx) //nolint:errcheck // it owns nothing
		return nil, fmt.Errorf("%w: the servers let a session live for %v, not %v (maxSessionTimeout)", engine.ErrUnsupported, got, opts.TTL)
	}
	s.link, s.id = l, fmt.Sprintf("%x-%s", uint64(l.conn.SessionID()), rand.Text())
	// The client keeps the session alive by itself, whether we are renewed or not.
	s.alarm = time.AfterFunc(opts.TTL-time.Since(start), func() { s.part(context.Background()) }) //nolint:errcheck // the store ends it by itself
	return s, nil
}

// event is told what happens to nodes and to the session.
func (s *session) event(ev zk.Event) {
	if ev.Type == zk.EventSession && ev.State == zk.StateHasSession {
		s.strange.Store(true)
	}
	if s.opts.Gone == nil || ev.Type != zk.EventNodeDeleted && ev.State != zk.StateExpired {
		return
	}
	s.mu.Lock()
	var gone []string
	for id, p := range s.places {
		if p.holds && (p.path == ev.Path || ev.State == zk.StateExpired) {
			gone = append(gone, id)
		}
	}
	s.mu.Unlock()
	for _, claim := range gone {
		s.opts.Gone(claim)
	}
}

// mostBytes is how long the paths of a session's nodes may be together. The session's end is one step that
// lists them all. No server can read a step that is larger than jute.maxbuffer, 1 MiB, and an
// ensemble that agreed on such a step never starts again.
const mostBytes = 3 << 18

// take returns the place of a claim that enters. A claim that was asked for before may have a
// node whose path is not known here, because the server chooses its number. The root cannot find
// that out. So Enter looks for the node by the hash in its name. Enter does so after a sync, because
// the server that is asked now may be behind.
func (s *session) take(c *engine.Claim) (*place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[c.ID]; p != nil {
		p.again = true
		return p, nil
	}
	p := &place{name: nodeName(c), hash: hash(c.ID)}
	p.folder, p.title = s.engine.folder(c.Resource)
	bytes := length + len(p.folder) + len("/") + len(p.name) + len(".q..") + sequence
	if c.Barging {
		bytes += zxid
	}
	if err := s.spend(p, bytes); err != nil {
		return nil, err
	}
	p.data, _ = json.Marshal(lines.NoteOf(c, s.id)) // strings can be marshalled
	s.places[c.ID] = p
	return p, nil
}

// The length that is written before a path, the digits at the end of a path, and those of a zxid in base 36.
const length, sequence, zxid = 4, 10, 11

// spend notes that a claim takes more bytes of what a session may have. The session is
// locked.
func (s *session) spend(p *place, more int) error {
	if s.bytes+more > mostBytes {
		return fmt.Errorf("%w: this session has used all %d bytes of paths that its claims may have: use another client for more", engine.ErrUnsupported, mostBytes)
	}
	s.bytes += more
	p.bytes += more
	return nil
}

// share notes that a claim is about to have a mark and a longer name.
func (s *session) share(p *place) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.shares {
		return nil
	}
	err := s.spend(p, 2*sequence+length+len(p.folder)+len("/g/")+len(p.hash))
	p.shares = err == nil
	return err
}

// drop forgets a claim that is not in the store.
func (s *session) drop(claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[claim]; p != nil {
		s.bytes -= p.bytes
		delete(s.places, claim)
	}
}

// leaves forgets a claim whose node was deleted. One of this session may come back with an
// old snapshot, and the session would keep it alive.
func (s *session) leaves(is left) {
	s.mu.Lock()
	if s.places[is.claim] != nil {
		s.left = append(s.left, is)
		s.left = s.left[max(0, len(s.left)-mostLeft):]
	}
	s.mu.Unlock()
	s.drop(is.claim)
}

// findStrange tells the client of claims that came back, because a new connection may lead
// to an ensemble that was restored. go-zookeeper does not list the nodes of a session.
// Where it has no answers the next renewal tries again: the session lives all the same.
func (s *session) findStrange(ctx context.Context) {
	if s.opts.Found == nil || !s.strange.Swap(false) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.TTL/10)
	defer cancel()
	s.mu.Lock()
	all := slices.Clone(s.left)
	s.mu.Unlock()
	err := each(len(all), func(i int) error {
		there, _, err := look(ctx, s.link, all[i].path, s.link.conn.Exists)
		if err == nil && there {
			s.opts.Found(all[i].resource, all[i].claim)
		}
		return err
	})
	if err != nil {
		s.strange.Store(true)
	}
}

// at writes down where a claim is.
func (s *session) at(p *place, path string, czxid int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.path, p.czxid = path, czxid
}

// waitFor writes down that a claim waits, and for what; or that it is gone.
func (s *session) waitFor(p *place, waits bool, b blocker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.waits, p.blocker = waits, b
}

// find returns where a claim is, if it is one of ours, and whether it holds all.
func (s *session) find(claim string, leaves bool) (path string, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.places[claim]
	if p == nil {
		return "", false
	}
	p.holds = p.holds && !leaves // we know that it goes
	return p.path, p.all
}

// grant writes down that a claim holds, and whether it holds all by itself.
func (s *session) grant(c *engine.Claim, p *place, token int64, all bool) engine.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.waits, p.holds, p.all = false, true, all && c.Weight == c.Capacity && !c.Barging
	return engine.Grant{Token: fence.Token(token)}
}

// Enter takes one round trip if nobody is there. A claim that is to wait comes in as the last of
// the queue, which nobody can prevent, and then looks; other claims look first.
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (grant engine.Grant, err error) {
	defer explain("enter", &err)
	p, err := s.take(c)
	if err != nil {
		return grant, err
	}
	alone := false
	if p.again {
		err = s.link.sync(ctx)
	} else if wait && !c.Barging {
		alone, err = s.queueUp(ctx, p)
	}
	switch {
	case err != nil:
		return grant, err
	case alone:
		return s.grant(c, p, p.czxid, true), nil
	}
	grant, err = s.pursue(ctx, c, p, nil, wait, p.again || p.path != "")
	if err == nil && !grant.Held() && !wait { // it was asked for again, and is gone
		err = engine.ErrBusy
	}
	if !errors.Is(err, engine.ErrBusy) && !errors.Is(err, engine.ErrMismatch) && !errors.Is(err, engine.ErrUnsupported) {
		return grant, err
	}
	if p.path != "" || p.again { // it came in to find that out, perhaps by a request whose answer was lost
		if leave := s.Leave(ctx, c.Resource, c.ID); leave != nil && !errors.Is(leave, engine.ErrGone) {
			return grant, leave
		}
	}
	s.drop(c.ID)
	return grant, err
}

// Await implements [engine.Session].
func (s *session) Await(ctx context.Context, c *engine.Claim) (grant engine.Grant, err error) {
	defer explain("await", &err)
	s.mu.Lock()
	p := s.places[c.ID]
	s.mu.Unlock()
	var looked *watch
	for p != nil && p.waits {
		grant, err = s.await(ctx, c, p, &looked)
		if err != nil && !errors.Is(err, zk.ErrConnectionClosed) || grant.Held() { // that one only looked, and is connected again
			return grant, err
		}
	}
	return grant, engine.ErrGone
}

// await watches the claim's own node, and then the blocker. So a claim that was evicted before it
// was handed the resource learns of that. await waits for one event, unless there is something to
// see already, and looks what it means. The next waiter watches the children of the folder, and
// the list comes with that watch.
func (s *session) await(ctx context.Context, c *engine.Claim, p *place, looked **watch) (grant engine.Grant, err error) {
	own, _, err := subscribe(ctx, s.link, p.path, s.link.conn.GetW)
	var ahead *watch
	var children seen[[]string]
	switch {
	case err != nil:
	case p.ahead() != "":
		ahead, _, err = subscribe(ctx, s.link, p.ahead(), s.link.conn.GetW)
	default:
		ahead, children, err = subscribe(ctx, s.link, p.folder+"/", s.link.conn.ChildrenW)
	}
	var l *line
	switch {
	case errors.Is(err, zk.ErrNoNode): // it has gone already
	case err != nil:
		return grant, err
	case p.ahead() == "" && ahead != *looked:
		if *looked = ahead; children.stat != nil {
			if l, err = s.link.newLine(ctx, p.folder, children.value, children.stat); err != nil {
				return grant, err
			}
		}
	case p.blocker.Tells && ahead.told.Load():
	default:
		if grant, err = s.wait(ctx, c, p, own, ahead); err != nil || grant.Held() || p.ahead() == "" {
			return grant, err
		}
	}
	return s.pursue(ctx, c, p, l, true, false)
}

// wait waits for one event, which may be the grant itself.
func (s *session) wait(ctx context.Context, c *engine.Claim, p *place, own, ahead *watch) (none engine.Grant, err error) {
	for {
		select {
		case <-own.fired:
		case <-ahead.fired:
			if ahead.event.Type == zk.EventNodeDataChanged && p.blocker.Direct && !own.spent.Load() {
				return s.grant(c, p, p.czxid, true), nil
			}
		case <-time.After(lookAgain): // nobody should have to: events come as surely as answers
			stat, err := s.link.stat(ctx, cmp.Or(p.ahead(), p.path))
			if err == nil && (stat.Version == 0 || !p.blocker.Tells) {
				continue
			}
		case <-ctx.Done():
			return none, ctx.Err()
		}
		return none, nil
	}
}

// Leave takes one request for a claim that this session knows.
func (s *session) Leave(ctx context.Context, resource, claim string) (err error) {
	defer explain("leave", &err)
	path, all := s.find(claim, true)
	if path, err = s.link.seek(ctx, resource, claim, path, all); err == nil {
		s.leaves(left{resource, claim, path})
	} else if errors.Is(err, engine.ErrGone) {
		s.drop(claim)
	}
	return err
}

// seek deletes the node of a claim, which is at path if that is known, and returns where
// it was.
func (l *link) seek(ctx context.Context, resource, claim, path string, all bool) (string, error) {
	for ; ; all = false {
		if path != "" {
			if err := l.remove(ctx, path, all); !errors.Is(err, zk.ErrNoNode) {
				return path, err
			}
		}
		if err := l.sync(ctx); err != nil {
			return "", err
		}
		folder, _ := l.engine.folder(resource)
		line, err := l.read(ctx, folder)
		if err != nil {
			return "", err
		}
		is := line.Find(hash(claim))
		if is == nil {
			return "", engine.ErrGone
		}
		path = is.Node.path
	}
}

// remove deletes the node of a claim. A claim that held all hands over: the change of its node
// tells the next waiter that all was free then. This needs that nobody had re-entered, so there
// is no folder for marks.
func (l *link) remove(ctx context.Context, node string, all bool) error {
	folder, name := path.Split(node)
	steps := []any{&zk.DeleteRequest{Path: node, Version: -1}}
	if mark := mark(parse(strings.TrimSuffix(folder, "/"), name)); mark != "" {
		steps = append(steps, &zk.DeleteRequest{Path: mark, Version: -1})
	}
	if all {
		_, err := l.multi(ctx, append([]any{
			&zk.CreateRequest{Path: folder + "g", Acl: l.engine.acl}, &zk.DeleteRequest{Path: folder + "g", Version: -1},
			&zk.SetDataRequest{Path: node, Version: -1},
		}, steps...)...)
		if !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	_, err := l.multi(ctx, steps...)
	return err
}

// Renew implements [engine.Session]. The leader ends sessions. A follower tells the leader of our
// signs of life with its next answer to a ping, every half tick. A follower that was cut off just
// now still confirms them. A write that succeeds after that went to the leader behind such an
// answer.
func (s *session) Renew(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	defer explain("renew session", &err)
	ctx = first(ctx)
	start, beat := time.Now(), s.engine.beat
	if _, err := s.link.stat(ctx, beat); err != nil {
		return nil, err
	}
	select {
	case <-time.After(s.engine.opts.Tick * 11 / 20):
	case <-ctx.Done():
	case <-s.link.over.Done():
	}
	if _, err := ask(ctx, s.link, func() (*zk.Stat, error) { return s.link.conn.Set(beat, nil, -1) }); err != nil {
		return nil, err
	}
	gone = make([]*engine.Claim, len(held))
	if err := each(len(held), func(i int) error {
		path, _ := s.find(held[i].ID, false)
		_, err := s.link.stat(ctx, cmp.Or(path, beat+"/none"))
		if errors.Is(err, zk.ErrNoNode) {
			gone[i], err = held[i], nil
			s.drop(held[i].ID)
		}
		return err
	}); err != nil {
		return nil, err
	}
	s.alarm.Reset(s.opts.TTL - time.Since(start))
	s.findStrange(ctx)
	return slices.DeleteFunc(gone, func(c *engine.Claim) bool { return c == nil }), nil
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	s.alarm.Stop()
	return s.part(ctx)
}

func (s *session) part(ctx context.Context) (err error) {
	defer explain("close session", &err)
	s.farewell.Do(func() {
		s.mu.Lock()
		s.link.nodes.Store(int64(len(s.places)))
		s.mu.Unlock()
		s.parted = s.link.close(ctx)
	})
	return s.parted
}
