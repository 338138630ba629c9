package pawl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/faulty"
)

// The verbs of a store that a test can disturb.
const (
	verbOpen  = faulty.Open
	verbEnter = faulty.Enter
	verbAwait = faulty.Await
	verbLeave = faulty.Leave
	verbRenew = faulty.Renew
	verbClose = faulty.Close
	verbGet   = faulty.Get
	verbPut   = faulty.Put
	verbWatch = faulty.Watch

	verbEvict  = faulty.Evict
	verbResize = faulty.Resize
	verbShow   = faulty.Show
	verbList   = faulty.List
)

// faultyStore is a store as one client sees it, see package faulty.
type faultyStore struct{ *faulty.Store }

func newFaultyStore(eng engine.Engine) *faultyStore { return &faultyStore{faulty.New(eng)} }

func (s *faultyStore) set(f fault, verbs ...string) { s.Set(f, verbs...) }

func (s *faultyStore) called(verb string) []time.Time { return s.Called(verb) }

type fault = faulty.Fault

var (
	errTrouble = faulty.ErrTrouble

	hangs       fault = faulty.Hangs
	fails       fault = faulty.Fails
	losesReply  fault = faulty.LosesReply
	arrivesLate       = faulty.ArrivesLate
	strays            = faulty.Strays
	repliesLate       = faulty.RepliesLate
	first             = faulty.First
)

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

// endOf waits for the end of a context and returns the time.
func endOf(ctx context.Context) <-chan time.Time {
	at := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { at <- time.Now() })
	return at
}

// pass lets the fake time of a bubble go on. Go 1.26 with the race detector has crashed in a bubble where a timer of no time was received from.
func pass(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}
