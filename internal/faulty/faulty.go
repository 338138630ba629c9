// Package faulty is for tests. One client's view of a store has verbs that hang, fail, or lose
// their replies.
package faulty

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// The verbs of a store that a test can disturb.
const (
	Open  = "open"
	Enter = "enter"
	Await = "await"
	Leave = "leave"
	Renew = "renew"
	Close = "close"
	Get   = "get"
	Put   = "put"
	Watch = "watch"

	Evict  = "evict"
	Resize = "resize"
	Show   = "show"
	List   = "list" // of names and of values
)

var verbs = []string{Open, Enter, Await, Leave, Renew, Close, Get, Put, Watch, Evict, Resize, Show, List}

// Store is a store as one client sees it. A test can make its verbs hang, fail, or lose their
// replies, while other clients of the store have no trouble.
type Store struct {
	engine.Engine

	mu     sync.Mutex
	faults map[string]Fault
	calls  map[string][]time.Time // when each verb was called
}

// Fault does a verb, or withholds it.
type Fault func(ctx context.Context, do func(context.Context) error) error

// ErrTrouble is the reason of the errors of disturbed verbs.
var ErrTrouble = errors.New("trouble")

// Hangs: the request never arrives, and the caller gives up only with its ctx.
func Hangs(ctx context.Context, _ func(context.Context) error) error {
	<-ctx.Done()
	return engine.Unavailable("hang", ctx.Err())
}

// Fails: the request does not arrive.
func Fails(context.Context, func(context.Context) error) error {
	return engine.Unavailable("fail", ErrTrouble)
}

// LosesReply: the request is served, and its reply never arrives.
func LosesReply(ctx context.Context, do func(context.Context) error) error {
	return errors.Join(engine.Unavailable("reply", ErrTrouble), do(ctx))
}

// ArrivesLate: the request is served d after it was sent, also when the caller
// has given up by then.
func ArrivesLate(d time.Duration) Fault {
	return func(ctx context.Context, do func(context.Context) error) error {
		done := make(chan error, 1)
		time.AfterFunc(d, func() { done <- do(context.WithoutCancel(ctx)) })
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return engine.Unavailable("late", ctx.Err())
		}
	}
}

// Strays: the request is given up at once, and served d later all the same.
func Strays(d time.Duration) Fault {
	return func(ctx context.Context, do func(context.Context) error) error {
		time.AfterFunc(d, func() { do(context.WithoutCancel(ctx)) }) //nolint:errcheck // nobody waits for the result
		return engine.Unavailable("stray", ErrTrouble)
	}
}

// RepliesLate: the reply comes d after the request was served.
func RepliesLate(d time.Duration) Fault {
	return func(ctx context.Context, do func(context.Context) error) error {
		err := do(ctx)
		select {
		case <-time.After(d):
			return err
		case <-ctx.Done():
			return engine.Unavailable("late reply", ctx.Err())
		}
	}
}

// First disturbs the first n calls by one fault and the later calls by another; a nil fault
// disturbs nothing.
func First(n int, f, then Fault) Fault {
	var mu sync.Mutex
	return func(ctx context.Context, do func(context.Context) error) error {
		mu.Lock()
		f := f
		if n--; n < 0 {
			f = then
		}
		mu.Unlock()
		if f == nil {
			return do(ctx)
		}
		return f(ctx, do)
	}
}

// New returns a store without trouble.
func New(eng engine.Engine) *Store {
	return &Store{Engine: eng, faults: make(map[string]Fault), calls: make(map[string][]time.Time)}
}

// Set disturbs verbs from now on; a nil fault heals them.
func (s *Store) Set(f Fault, verbs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range verbs {
		s.faults[v] = f
	}
}

// Cut has no request of this client arrive from now on, as if its process had died.
func (s *Store) Cut() { s.Set(Fails, verbs...) }

// Heal heals all verbs.
func (s *Store) Heal() { s.Set(nil, verbs...) }

// of returns a verb for one name, if that has a fault of its own.
func (s *Store) of(verb, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults[verb+" "+name] != nil {
		return verb + " " + name
	}
	return verb
}

// Called returns when a verb was called.
func (s *Store) Called(verb string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[verb]
}

func (s *Store) do(ctx context.Context, verb string, do func(context.Context) error) error {
	s.mu.Lock()
	f := s.faults[verb]
	s.calls[verb] = append(s.calls[verb], time.Now())
	s.mu.Unlock()
	if f == nil {
		return do(ctx)
	}
	return f(ctx, do)
}

// Ask does a request that has a reply under a fault, also when nobody waits for that reply any more;
// a nil fault is none.
func Ask[T any](ctx context.Context, f Fault, do func(context.Context) (T, error)) (is T, err error) {
	if f == nil {
		return do(ctx)
	}
	reply := make(chan T, 1)
	err = f(ctx, func(ctx context.Context) error {
		is, err := do(ctx)
		reply <- is
		return err
	})
	if err != nil {
		return is, err
	}
	return <-reply, nil
}

func ask[T any](ctx context.Context, s *Store, verb string, do func(context.Context) (T, error)) (T, error) {
	return Ask(ctx, func(ctx context.Context, do func(context.Context) error) error { return s.do(ctx, verb, do) }, do)
}

// Open does as engine.Engine says, if it is not disturbed.
func (s *Store) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	sess, err := ask(ctx, s, Open, func(ctx context.Context) (engine.Session, error) { return s.Engine.Open(ctx, opts) })
	if err != nil {
		return nil, err
	}
	return &session{sess, s}, nil
}

// Evict does as engine.Engine says, if it is not disturbed.
func (s *Store) Evict(ctx context.Context, resource, claim string) error {
	return s.do(ctx, Evict, func(ctx context.Context) error { return s.Engine.Evict(ctx, resource, claim) })
}

// Resize does as engine.Resizer says, if it is not disturbed.
func (s *Store) Resize(ctx context.Context, name string, capacity int64) error {
	return s.do(ctx, Resize, func(ctx context.Context) error { return s.Engine.(engine.Resizer).Resize(ctx, name, capacity) })
}

// Show does as engine.Engine says, if it is not disturbed.
func (s *Store) Show(ctx context.Context, name string) (engine.Resource, error) {
	return ask(ctx, s, Show, func(ctx context.Context) (engine.Resource, error) { return s.Engine.Show(ctx, name) })
}

// Get does as engine.Values says, if it is not disturbed.
func (s *Store) Get(ctx context.Context, key string) (engine.Value, error) {
	return ask(ctx, s, Get, func(ctx context.Context) (engine.Value, error) { return s.Engine.(engine.Values).Get(ctx, key) })
}

// Put does as engine.Values says, if it is not disturbed.
func (s *Store) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	return ask(ctx, s, Put, func(ctx context.Context) (uint64, error) {
		return s.Engine.(engine.Values).Put(ctx, key, data, version)
	})
}

// Watch does as engine.Values says, if it is not disturbed.
func (s *Store) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	return ask(ctx, s, Watch, func(ctx context.Context) (engine.Value, error) {
		return s.Engine.(engine.Values).Watch(ctx, key, version)
	})
}

// List does as engine.Engine says, if it is not disturbed.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return s.list(ctx, s.Engine.List(ctx, prefix))
}

// ListValues does as engine.Values says, if it is not disturbed.
func (s *Store) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return s.list(ctx, s.Engine.(engine.Values).ListValues(ctx, prefix))
}

func (s *Store) list(ctx context.Context, names iter.Seq2[string, error]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := s.do(ctx, List, func(context.Context) error { return nil }); err != nil {
			yield("", err)
			return
		}
		names(yield)
	}
}

type session struct {
	engine.Session
	store *Store
}

func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	return ask(ctx, s.store, s.store.of(Enter, c.Resource), func(ctx context.Context) (engine.Grant, error) { return s.Session.Enter(ctx, c, wait) })
}

func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	return ask(ctx, s.store, Await, func(ctx context.Context) (engine.Grant, error) { return s.Session.Await(ctx, c) })
}

func (s *session) Leave(ctx context.Context, resource, claim string) error {
	return s.store.do(ctx, Leave, func(ctx context.Context) error { return s.Session.Leave(ctx, resource, claim) })
}

func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	return ask(ctx, s.store, Renew, func(ctx context.Context) ([]*engine.Claim, error) { return s.Session.Renew(ctx, held) })
}

func (s *session) Close(ctx context.Context) error {
	return s.store.do(ctx, Close, s.Session.Close)
}
