package pawl_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// The verbs of a store that a test can disturb.
const (
	verbOpen  = "open"
	verbEnter = "enter"
	verbAwait = "await"
	verbLeave = "leave"
	verbRenew = "renew"
	verbClose = "close"
	verbGet   = "get"
	verbPut   = "put"
	verbWatch = "watch"

	verbEvict  = "evict"
	verbResize = "resize"
)

// faultyStore is a store as one client sees it: its verbs can be made to hang,
// fail, or lose their replies, while other clients of the store are well.
type faultyStore struct {
	engine.Engine

	mu     sync.Mutex
	faults map[string]fault
	calls  map[string][]time.Time // when each verb was called
}

// fault does a verb, or does not.
type fault func(ctx context.Context, do func(context.Context) error) error

var errTrouble = errors.New("trouble")

// hangs: the request never arrives, and the caller gives up only with its ctx.
func hangs(ctx context.Context, _ func(context.Context) error) error {
	<-ctx.Done()
	return engine.Unavailable("hang", ctx.Err())
}

// fails: the request does not arrive.
func fails(context.Context, func(context.Context) error) error {
	return engine.Unavailable("fail", errTrouble)
}

// losesReply: the request is served, and its reply never arrives.
func losesReply(ctx context.Context, do func(context.Context) error) error {
	return errors.Join(engine.Unavailable("reply", errTrouble), do(ctx))
}

// arrivesLate: the request is served d after it was sent, also when the caller
// has given up by then.
func arrivesLate(d time.Duration) fault {
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

// strays: the request is given up at once, and served d later all the same.
func strays(d time.Duration) fault {
	return func(ctx context.Context, do func(context.Context) error) error {
		time.AfterFunc(d, func() { do(context.WithoutCancel(ctx)) }) //nolint:errcheck // nobody is there
		return engine.Unavailable("stray", errTrouble)
	}
}

// repliesLate: the reply comes d after the request was served.
func repliesLate(d time.Duration) fault {
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

// first disturbs the first n calls by one fault and the later ones by another;
// a nil fault is none.
func first(n int, f, then fault) fault {
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

func newFaultyStore(eng engine.Engine) *faultyStore {
	return &faultyStore{Engine: eng, faults: make(map[string]fault), calls: make(map[string][]time.Time)}
}

// set disturbs verbs from now on; a nil fault heals them.
func (s *faultyStore) set(f fault, verbs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range verbs {
		s.faults[v] = f
	}
}

// of returns a verb for one name, if that has a fault of its own.
func (s *faultyStore) of(verb, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults[verb+" "+name] != nil {
		return verb + " " + name
	}
	return verb
}

func (s *faultyStore) called(verb string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[verb]
}

func (s *faultyStore) do(ctx context.Context, verb string, do func(context.Context) error) error {
	s.mu.Lock()
	f := s.faults[verb]
	s.calls[verb] = append(s.calls[verb], time.Now())
	s.mu.Unlock()
	if f == nil {
		return do(ctx)
	}
	return f(ctx, do)
}

// ask does a verb that has a reply, also when nobody waits for that any more.
func ask[T any](ctx context.Context, s *faultyStore, verb string, do func(context.Context) (T, error)) (is T, err error) {
	reply := make(chan T, 1)
	err = s.do(ctx, verb, func(ctx context.Context) error {
		is, err := do(ctx)
		reply <- is
		return err
	})
	if err != nil {
		return is, err
	}
	return <-reply, nil
}

func (s *faultyStore) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	sess, err := ask(ctx, s, verbOpen, func(ctx context.Context) (engine.Session, error) { return s.Engine.Open(ctx, opts) })
	if err != nil {
		return nil, err
	}
	return &faultySession{sess, s}, nil
}

func (s *faultyStore) Evict(ctx context.Context, resource, claim string) error {
	return s.do(ctx, verbEvict, func(ctx context.Context) error { return s.Engine.Evict(ctx, resource, claim) })
}

func (s *faultyStore) Resize(ctx context.Context, name string, capacity int64) error {
	return s.do(ctx, verbResize, func(ctx context.Context) error { return s.Engine.(engine.Resizer).Resize(ctx, name, capacity) })
}

func (s *faultyStore) Get(ctx context.Context, key string) (engine.Value, error) {
	return ask(ctx, s, verbGet, func(ctx context.Context) (engine.Value, error) { return s.Engine.(engine.Values).Get(ctx, key) })
}

func (s *faultyStore) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	return ask(ctx, s, verbPut, func(ctx context.Context) (uint64, error) {
		return s.Engine.(engine.Values).Put(ctx, key, data, version)
	})
}

func (s *faultyStore) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	return ask(ctx, s, verbWatch, func(ctx context.Context) (engine.Value, error) {
		return s.Engine.(engine.Values).Watch(ctx, key, version)
	})
}

type faultySession struct {
	engine.Session
	store *faultyStore
}

func (s *faultySession) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	return ask(ctx, s.store, s.store.of(verbEnter, c.Resource), func(ctx context.Context) (engine.Grant, error) { return s.Session.Enter(ctx, c, wait) })
}

func (s *faultySession) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	return ask(ctx, s.store, verbAwait, func(ctx context.Context) (engine.Grant, error) { return s.Session.Await(ctx, c) })
}

func (s *faultySession) Leave(ctx context.Context, resource, claim string) error {
	return s.store.do(ctx, verbLeave, func(ctx context.Context) error { return s.Session.Leave(ctx, resource, claim) })
}

func (s *faultySession) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	return ask(ctx, s.store, verbRenew, func(ctx context.Context) ([]*engine.Claim, error) { return s.Session.Renew(ctx, held) })
}

func (s *faultySession) Close(ctx context.Context) error {
	return s.store.do(ctx, verbClose, s.Session.Close)
}

// newClient returns a client that is closed at the end of the test.
func newClient(t *testing.T, eng engine.Engine, opts *pawl.Options) *pawl.Client {
	t.Helper()
	c, err := pawl.New(t.Context(), eng, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// newFaultyClient returns a client with a disturbed view of the store.
func newFaultyClient(t *testing.T, eng engine.Engine, opts *pawl.Options) (*pawl.Client, *faultyStore) {
	t.Helper()
	store := newFaultyStore(eng)
	return newClient(t, store, opts), store
}

func mustLock(t *testing.T, ctx context.Context, l pawl.Locker) *pawl.Lease {
	t.Helper()
	lease, err := l.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t *testing.T, lease interface{ Unlock(context.Context) error }) {
	t.Helper()
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// wantErr fails unless err matches all of wants.
func wantErr(t *testing.T, err error, wants ...error) {
	t.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			t.Fatalf("error %v does not match %q", err, want)
		}
	}
}

// noErr may be called by any goroutine.
func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// wantFree fails unless name has no claims.
func wantFree(t *testing.T, eng engine.Engine, name string) {
	t.Helper()
	if r := show(t, eng, name); len(r.Claims) > 0 {
		t.Fatalf("claims are left: %+v", r.Claims)
	}
}

func show(t *testing.T, eng engine.Engine, name string) engine.Resource {
	t.Helper()
	r, err := eng.Show(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// waitersOf returns how many claims of a name wait.
func waitersOf(t *testing.T, eng engine.Engine, name string) (n int) {
	t.Helper()
	for _, c := range show(t, eng, name).Claims {
		if c.Token == 0 {
			n++
		}
	}
	return n
}

// outcome is how a call in another goroutine ended.
type outcome struct {
	lease *pawl.Lease
	err   error
	at    time.Time
}

// lockSoon locks in another goroutine.
func lockSoon(ctx context.Context, l pawl.Locker) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		lease, err := l.Lock(ctx)
		done <- outcome{lease, err, time.Now()}
	}()
	return done
}

// endOf returns when a context ended, once it has.
func endOf(ctx context.Context) <-chan time.Time {
	at := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { at <- time.Now() })
	return at
}

// pass lets the fake time of a bubble go on.
func pass(d time.Duration) { <-time.After(d) }
