package zkengine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

type session struct {
	engine *Engine
	link   *link
	id     string
	opts   engine.SessionOptions

	farewell sync.Once
	parted   error // of the farewell

	mu     sync.Mutex
	alarm  *time.Timer // closes the session, unless it is renewed
	places map[string]*place
	ours   map[string]string // claim ids that hold, by path
}

func (s *session) ID() string { return s.id }

// place is where a claim of this session is kept, from Enter to Leave. The
// session's mutex guards it, as Leave may be called at any time.
type place struct {
	folder, name string
	hash         string
	data         []byte

	again   bool   // it was asked for before, and may have a node already
	path    string // of its node, as far as was seen
	czxid   int64  // of that node
	waits   bool
	blocker blocker
	all     bool // it holds, and nothing is beside or ahead of it

	connection int64 // over which its node was found or created
}

// Open implements [engine.Engine]. ZooKeeper may round the TTL up.
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	if most := e.Caps().MinTTL; opts.TTL < most {
		return nil, fmt.Errorf("open session: %w: with ticks of %v a session lives for at least %v, not %v", engine.ErrUnsupported, e.tick, most, opts.TTL)
	}
	s := &session{engine: e, opts: opts, places: make(map[string]*place), ours: make(map[string]string)}
	start := time.Now()
	l, err := e.dial(ctx, opts.TTL, s.event)
	if err != nil {
		return nil, err
	}
	if got := time.Duration(l.timeout.Load()); got < opts.TTL.Truncate(time.Millisecond) {
		l.close(ctx) //nolint:errcheck // it owns nothing
		return nil, fmt.Errorf("open session: %w: the servers let a session live for %v, not %v (maxSessionTimeout)", engine.ErrUnsupported, got, opts.TTL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.id = l, fmt.Sprintf("%x-%s", uint64(l.conn.SessionID()), rand.Text())
	// The client keeps the session alive by itself, whether we are renewed or not.
	s.alarm = time.AfterFunc(opts.TTL-time.Since(start), s.expire)
	return s, nil
}

// event is told what happens to nodes and to the session.
func (s *session) event(ev zk.Event) {
	if s.opts.Gone == nil || ev.Type != zk.EventNodeDeleted && ev.State != zk.StateExpired {
		return
	}
	s.mu.Lock()
	var gone []string
	for path, claim := range s.ours {
		if path == ev.Path || ev.State == zk.StateExpired {
			gone = append(gone, claim)
		}
	}
	s.mu.Unlock()
	for _, claim := range gone {
		s.opts.Gone(claim)
	}
}

// expire ends a session that was not renewed for its TTL.
func (s *session) expire() {
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.TTL)
	defer cancel()
	s.Close(ctx) //nolint:errcheck // the store ends it by itself
}

// take returns the place of a claim that enters.
func (s *session) take(c *engine.Claim) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[c.ID]; p != nil {
		p.again = true
		return p
	}
	n := note{ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label}
	if c.Owner == c.ID {
		n.Owner = "" // it is long
	}
	p := &place{folder: s.engine.folder(c.Resource), name: nodeName(c), hash: hash(c.ID)}
	p.data, _ = json.Marshal(n) // strings can be marshalled
	s.places[c.ID] = p
	return p
}

// drop forgets a claim that is not in the store.
func (s *session) drop(claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[claim]; p != nil {
		delete(s.ours, p.path)
		delete(s.places, claim)
	}
}

// at writes down where a claim is.
func (s *session) at(p *place, path string, czxid int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.path, p.czxid, p.connection = path, czxid, s.link.connections.Load()
}

// waitFor writes down that a claim waits, and for what; or that it is gone.
func (s *session) waitFor(p *place, waits bool, b blocker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.waits, p.blocker = waits, b
}

// grant writes down that a claim holds, and whether it holds all by itself.
func (s *session) grant(c *engine.Claim, p *place, token int64, all bool) engine.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.waits, p.all = false, all && c.Weight == c.Capacity && !c.Barging
	if s.places[c.ID] == p {
		s.ours[p.path] = c.ID
	}
	return engine.Grant{Token: fence.Token(token)}
}

// Enter takes one round trip if nobody is there.
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	p := s.take(c)
	grant, err := s.enter(ctx, c, p, wait)
	if errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrMismatch) {
		if p.path != "" { // it came in to find that out
			if leave := s.Leave(ctx, c.Resource, c.ID); leave != nil && !errors.Is(leave, engine.ErrGone) {
				return grant, leave
			}
		}
		s.drop(c.ID)
	}
	return grant, err
}

// enter comes in as the last of the queue, which nobody can prevent, and then
// looks; but who does not want to wait looks first.
func (s *session) enter(ctx context.Context, c *engine.Claim, p *place, wait bool) (engine.Grant, error) {
	if p.again {
		if err := s.link.sync(ctx, "enter"); err != nil {
			return engine.Grant{}, err
		}
	}
	if wait && !c.Barging && !p.again {
		alone, err := s.queueUp(ctx, p)
		if err != nil {
			return engine.Grant{}, err
		}
		if alone {
			return s.grant(c, p, p.czxid, true), nil
		}
	}
	l, err := s.link.read(ctx, "enter", p.folder)
	if err != nil {
		return engine.Grant{}, err
	}
	t := turn{session: s, doing: "enter", c: c, p: p, wait: wait, enters: true, news: !p.waits, fresh: p.again}
	return t.pursue(ctx, l)
}

// queueUp appends the claim to the queue, and tells if nobody else is there:
// then it holds.
func (s *session) queueUp(ctx context.Context, p *place) (alone bool, err error) {
	for range tries {
		replies, err := s.link.multi(ctx, "enter",
			s.node(p.folder, p, 0), &zk.SetDataRequest{Path: p.folder, Version: -1})
		switch {
		case err == nil:
			s.at(p, replies[0].String, replies[1].Stat.Mzxid)
			return replies[1].Stat.NumChildren == 1, nil
		case !errors.Is(err, zk.ErrNoNode):
			return false, err
		}
		if err := s.link.create(ctx, "enter", p.folder, zk.FlagContainer); err != nil {
			return false, err
		}
	}
	return false, engine.Unavailable("enter", errors.New("the folder is removed all the time"))
}

// node creates the node of a claim.
func (s *session) node(folder string, p *place, token int64) *zk.CreateRequest {
	return &zk.CreateRequest{
		Path: fmt.Sprintf("%s/%s%d.", folder, p.name, token), Data: p.data, Acl: s.engine.acl, Flags: zk.FlagEphemeralSequential,
	}
}

// tries bounds how often a step is tried that others make impossible.
const tries = 1000

// Await implements [engine.Session].
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	for {
		s.mu.Lock()
		p := s.places[c.ID]
		waits := p != nil && p.waits
		s.mu.Unlock()
		if !waits {
			return engine.Grant{}, fmt.Errorf("await: %w", engine.ErrGone)
		}
		grant, err := s.await(ctx, c, p)
		if errors.Is(err, zk.ErrConnectionClosed) && s.link.settled(ctx) { // it only looked
			continue
		}
		if err != nil || grant.Held() {
			return grant, err
		}
	}
}

// await waits for one event and looks what it means. The claim's own node is
// watched before that which blocks it: so a claim that was evicted before it
// was handed the resource knows it.
func (s *session) await(ctx context.Context, c *engine.Claim, p *place) (none engine.Grant, err error) {
	look := func() (engine.Grant, error) {
		l, err := s.link.read(ctx, "await", p.folder)
		if err != nil {
			return none, err
		}
		t := turn{session: s, doing: "await", c: c, p: p, wait: true, fresh: true}
		return t.pursue(ctx, l)
	}
	own, err := s.link.watch(ctx, "await", p.path, false)
	b, inG := p.blocker, (<-chan zk.Event)(nil)
	var ahead <-chan zk.Event
	if err == nil && b.path != "" {
		ahead, err = s.link.watch(ctx, "await", b.path, false)
	} else if err == nil {
		ahead, err = s.link.watch(ctx, "await", p.folder, true)
		if err == nil && b.hasG {
			inG, err = s.link.watch(ctx, "await", p.folder+"/g", true)
		}
		if err == nil {
			if grant, err := look(); err != nil || grant.Held() || !p.waits || p.blocker != b {
				return grant, err
			}
		}
	}
	if errors.Is(err, zk.ErrNoNode) {
		return look()
	}
	if err != nil {
		return none, err
	}
	poll := time.NewTimer(s.opts.TTL / 3)
	defer poll.Stop()
	select {
	case <-own:
		s.link.forget(own)
	case ev := <-ahead:
		s.link.forget(ahead)
		// When watches are set again the order of their events is lost.
		sameConnection := p.connection == s.link.connections.Load()
		if ev.Type == zk.EventNodeDataChanged && b.direct && sameConnection && len(own) == 0 {
			return s.grant(c, p, p.czxid, true), nil
		}
	case <-inG:
		s.link.forget(inG)
	case <-poll.C:
	case <-ctx.Done():
		return none, fmt.Errorf("await: %w", ctx.Err())
	case <-s.link.over:
		return none, fmt.Errorf("await: session: %w", engine.ErrGone)
	}
	return look()
}

// Leave takes one request for a claim of this session.
func (s *session) Leave(ctx context.Context, resource, claim string) error {
	s.mu.Lock()
	var path string
	var all bool
	if p := s.places[claim]; p != nil {
		path, all = p.path, p.all
		delete(s.ours, path) // we know that it goes
	}
	s.mu.Unlock()
	folder := s.engine.folder(resource)
	if path != "" {
		err := s.leave(ctx, folder, path, all)
		if !errors.Is(err, zk.ErrNoNode) {
			if err == nil {
				s.drop(claim)
			}
			return err
		}
	}
	if err := s.link.sync(ctx, "leave"); err != nil {
		return err
	}
	for range tries {
		l, err := s.link.read(ctx, "leave", folder)
		if err != nil {
			return err
		}
		own := l.find(hash(claim))
		if own == nil {
			s.drop(claim)
			return fmt.Errorf("leave: %w", engine.ErrGone)
		}
		if err := s.leave(ctx, folder, own.path, false); !errors.Is(err, zk.ErrNoNode) {
			if err == nil {
				s.drop(claim)
			}
			return err
		}
	}
	return engine.Unavailable("leave", errors.New("the claim moves all the time"))
}

// leave deletes a node. Who held all hands over: the change of the node tells
// who watches it that all was free then, if nobody had re-entered, which needs
// a folder for that.
func (s *session) leave(ctx context.Context, folder, path string, all bool) error {
	if all {
		g := folder + "/g"
		_, err := s.link.multi(ctx, "leave",
			&zk.CreateRequest{Path: g, Acl: s.engine.acl}, &zk.DeleteRequest{Path: g, Version: -1},
			&zk.SetDataRequest{Path: path, Version: -1}, &zk.DeleteRequest{Path: path, Version: -1})
		if !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	_, err := ask(ctx, s.link, "leave", func() (struct{}, error) { return struct{}{}, s.link.conn.Delete(path, -1) })
	return err
}

// Renew implements [engine.Session]. A follower tells the leader, who ends
// sessions, of our signs of life with its next answer to the leader's ping,
// every half tick; a follower that was cut off just now still confirms them. A
// write that succeeds after that went to the leader behind such an answer.
func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	start := time.Now()
	if _, err := s.link.exists(ctx, "renew session", s.engine.root); err != nil {
		return nil, s.missing(err)
	}
	pause := time.NewTimer(s.engine.tick * 11 / 20)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return nil, fmt.Errorf("renew session: %w", ctx.Err())
	case <-s.link.over:
		return nil, fmt.Errorf("renew session: %w", engine.ErrGone)
	}
	if _, err := ask(ctx, s.link, "renew session", func() (*zk.Stat, error) { return s.link.conn.Set(s.engine.root, nil, -1) }); err != nil {
		return nil, s.missing(err)
	}
	s.link.forget(nil)
	gone := make([]bool, len(held))
	if err := each(len(held), func(i int) error {
		s.mu.Lock()
		path := s.engine.root + "/none"
		if p := s.places[held[i].ID]; p != nil && p.path != "" {
			path = p.path
		}
		s.mu.Unlock()
		_, err := s.link.exists(ctx, "renew session", path)
		if gone[i] = errors.Is(err, zk.ErrNoNode); gone[i] {
			err = nil
		}
		return err
	}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.alarm.Reset(s.opts.TTL - time.Since(start))
	s.mu.Unlock()
	var lost []*engine.Claim
	for i, c := range held {
		if gone[i] {
			lost = append(lost, c)
		}
	}
	return lost, nil
}

// missing says that somebody removed our root, which is no answer.
func (s *session) missing(err error) error {
	if errors.Is(err, zk.ErrNoNode) {
		return engine.Unavailable("renew session", err)
	}
	return err
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.alarm.Stop()
	s.mu.Unlock()
	s.farewell.Do(func() { s.parted = s.link.close(ctx) })
	return s.parted
}
