package redlockengine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/internal/faulty"
)

// server is a node that can lose all it has. Afterwards it is away for one TTL,
// as a node is whose engine keeps a restart grace.
type server struct {
	mu   sync.Mutex
	eng  *memengine.Engine
	back time.Time
}

func (s *server) forget(away time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eng, s.back = memengine.New(), time.Now().Add(away)
}

func (s *server) now() *memengine.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.eng
}

func (s *server) away() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.back)
}

// trouble is what disturbs requests, and the wait for a grant.
type trouble struct{ call, await faulty.Fault }

var (
	none  = trouble{}
	fails = trouble{faulty.Fails, faulty.Fails}
	hangs = trouble{faulty.Hangs, faulty.Hangs}
	loses = trouble{call: faulty.LosesReply}
)

// late has a request arrive after up to most, also when nobody waits for it any more.
func late(most time.Duration) trouble {
	return trouble{call: func(ctx context.Context, do func(context.Context) error) error {
		return faulty.ArrivesLate(rand.N(most+1))(ctx, do)
	}}
}

// link is one client's way to one node.
type link struct {
	server *server
	mu     sync.Mutex
	is     trouble
	open   int           // sessions
	news   time.Duration // how long the news of a grant take; 0: as long as the request
	inbox  map[string]chan engine.Grant
	look   time.Duration         // at each held claim of a renewal
	grace  engine.Grace          // of the node, which then grants nothing
	knows  bool                  // the claims: in its grace the node shares a grant, and says so
	alien  error                 // why the node refuses a session
	opts   engine.SessionOptions // of the last session
	slow   time.Duration         // before a request is served
	last   *linked
}

// mail is where the news of a claim id arrive, whatever became of the claim since
// they were sent.
func (l *link) mail(id string) chan engine.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inbox == nil {
		l.inbox = make(map[string]chan engine.Grant)
	}
	if l.inbox[id] == nil {
		l.inbox[id] = make(chan engine.Grant, 100)
	}
	return l.inbox[id]
}

func (l *link) opened(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += n
	return l.open
}

func (l *link) set(is trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.is = is
}

func (l *link) trouble() trouble {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is
}

func (l *link) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alien = err
}

func (l *link) slowness() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slow
}

func (l *link) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alien
}

var errLink = errors.New("connection lost")

func call[T any](ctx context.Context, l *link, do func(context.Context) (T, error)) (result T, err error) {
	if ctx.Err() != nil {
		return result, ctx.Err()
	}
	asked, slow := do, l.slowness()
	do = func(ctx context.Context) (none T, err error) {
		if slow > 0 {
			if err := pause(ctx, slow); err != nil {
				return none, err
			}
		}
		if l.server.away() {
			return none, engine.Unavailable("call", errLink)
		}
		return asked(ctx)
	}
	return faulty.Ask(ctx, l.trouble().call, do)
}

func (l *link) Caps() engine.Caps { return l.server.now().Caps() }
func (l *link) Close() error      { return nil }

func (l *link) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	return call(ctx, l, func(ctx context.Context) (engine.Session, error) {
		if err := l.refusal(); err != nil {
			return nil, err
		}
		eng := l.server.now()
		s, err := eng.Open(ctx, opts)
		if err == nil {
			l.opened(1)
		}
		is := &linked{s, l, eng}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.opts, l.last = opts, is
		return is, err
	})
}

func (l *link) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	names, err := call(ctx, l, func(ctx context.Context) (iter.Seq2[string, error], error) {
		return l.server.now().List(ctx, prefix), nil
	})
	if err != nil {
		return func(yield func(string, error) bool) { yield("", err) }
	}
	return names
}

func (l *link) Show(ctx context.Context, name string) (engine.Resource, error) {
	return call(ctx, l, func(ctx context.Context) (engine.Resource, error) {
		r, err := l.server.now().Show(ctx, name)
		r.Grace = l.grace
		return r, err
	})
}

func (l *link) Evict(ctx context.Context, resource, claim string) error {
	_, err := call(ctx, l, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, l.server.now().Evict(ctx, resource, claim)
	})
	return err
}

func (l *link) Resize(ctx context.Context, name string, capacity int64) error {
	return l.server.now().Resize(ctx, name, capacity)
}

func (l *link) Get(ctx context.Context, key string) (engine.Value, error) {
	return call(ctx, l, func(ctx context.Context) (engine.Value, error) { return l.server.now().Get(ctx, key) })
}

func (l *link) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	return call(ctx, l, func(ctx context.Context) (uint64, error) { return l.server.now().Put(ctx, key, data, version) })
}

func (l *link) Watch(context.Context, string, uint64) (engine.Value, error) {
	return engine.Value{}, engine.ErrUnsupported
}

func (l *link) ListValues(context.Context, string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield("", engine.ErrUnsupported) }
}

// linked is a session on a server as it was when it was opened.
type linked struct {
	engine.Session
	link *link
	eng  *memengine.Engine
}

func onSession[T any](ctx context.Context, s *linked, do func(context.Context) (T, error)) (T, error) {
	return call(ctx, s.link, func(ctx context.Context) (none T, err error) {
		if s.eng != s.link.server.now() {
			return none, engine.ErrGone // the server has forgotten it
		}
		return do(ctx)
	})
}

func (s *linked) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	return onSession(ctx, s, func(ctx context.Context) (engine.Grant, error) {
		switch grace := s.link.grace; {
		case !grace.On():
			return s.Session.Enter(ctx, c, wait)
		case s.link.knows:
			g, err := s.Session.Enter(ctx, c, wait)
			g.Grace = grace
			return g, err
		case wait:
			return engine.Grant{Grace: grace}, nil
		default:
			return engine.Grant{}, fmt.Errorf("enter: %w", &engine.GraceError{Grace: grace})
		}
	})
}

func (s *linked) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	switch await := s.link.trouble().await; {
	case await != nil:
		return engine.Grant{}, await(ctx, nil)
	case s.link.server.away():
		return engine.Grant{}, engine.Unavailable("await", errLink)
	case s.eng != s.link.server.now():
		return engine.Grant{}, engine.ErrGone
	case s.link.news > 0:
		return s.awaitNews(ctx, c)
	}
	return s.Session.Await(ctx, c)
}

func (s *linked) awaitNews(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	inbox, failed := s.link.mail(c.ID), make(chan error, 1)
	go func() {
		g, err := s.Session.Await(ctx, c)
		if err != nil {
			failed <- err
			return
		}
		time.AfterFunc(s.link.news, func() { inbox <- g })
	}()
	select {
	case g := <-inbox:
		return g, nil
	case err := <-failed:
		return engine.Grant{}, err
	case <-ctx.Done():
		return engine.Grant{}, ctx.Err()
	}
}

func (s *linked) Leave(ctx context.Context, resource, claim string) error {
	_, err := onSession(ctx, s, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Session.Leave(ctx, resource, claim) })
	return err
}

func (s *linked) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	return onSession(ctx, s, func(ctx context.Context) ([]*engine.Claim, error) {
		if look := s.link.look * time.Duration(len(held)); look > 0 {
			if err := pause(ctx, look); err != nil {
				s.Session.Renew(context.WithoutCancel(ctx), nil) //nolint:errcheck // that was done first
				return nil, err
			}
		}
		return s.Session.Renew(ctx, held)
	})
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *linked) Close(ctx context.Context) error {
	s.link.opened(-1)
	_, err := onSession(ctx, s, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Session.Close(ctx) })
	return err
}

// nodes are servers in memory, and every client has its own way to each.
type nodes []*server

func newNodes(n int) (all nodes) {
	for range n {
		all = append(all, &server{eng: memengine.New()})
	}
	return all
}

func (all nodes) client(t *testing.T, opts *redlockengine.Options) (*redlockengine.Engine, []*link) {
	t.Helper()
	var links []*link
	var engines []engine.Engine
	for _, s := range all {
		l := &link{server: s}
		links, engines = append(links, l), append(engines, l)
	}
	eng, err := redlockengine.New(engines, opts)
	if err != nil {
		t.Fatal(err)
	}
	return eng, links
}
