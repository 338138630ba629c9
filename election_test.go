package pawl_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

func campaign(t *testing.T, e *pawl.Election, value string) *pawl.Lease {
	t.Helper()
	term, err := e.Campaign(t.Context(), []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return term
}

func wantLeader(t *testing.T, e *pawl.Election, value string, term *pawl.Lease) {
	t.Helper()
	is, err := e.Leader(t.Context())
	if err != nil || string(is.Value) != value || (term != nil && is.Token != term.Token()) || (term == nil) != (is.Token == 0) {
		t.Errorf("leader %q with token %v, %v, want %q", is.Value, is.Token, err, value)
	}
}

func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil).Election("e"), newClient(t, eng, nil).Election("e")
		wantLeader(t, a, "", nil)
		first := campaign(t, a, "a")
		wantLeader(t, b, "a", first)
		next := make(chan *pawl.Lease)
		go func() {
			term, err := b.Campaign(t.Context(), []byte("b"))
			noErr(t, err)
			next <- term
		}()
		noErr(t, a.Proclaim(t.Context(), first, []byte("a, on port 2")))
		wantLeader(t, b, "a, on port 2", first)
		noErr(t, a.Resign(t.Context(), first))
		noErr(t, a.Resign(t.Context(), first))
		second := <-next
		if second.Token() <= first.Token() {
			t.Errorf("token %v after %v", second.Token(), first.Token())
		}
		wantLeader(t, a, "b", second)
		wantErr(t, a.Proclaim(t.Context(), first, []byte("late")), pawl.ErrClosed)
		mustUnlock(t, second)
		wantLeader(t, a, "", nil)
		_, err := a.Campaign(t.Context(), make([]byte, pawl.MaxValue))
		wantErr(t, err, pawl.ErrInvalid)
	})
}

// TestElectionFails: a candidate that cannot announce itself does not lead, and blocks nobody.
func TestElectionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(fails, verbPut)
		_, err := c.Election("e").Campaign(t.Context(), []byte("c"))
		wantErr(t, err, pawl.ErrUnavailable)
		mustUnlock(t, campaign(t, newClient(t, eng, nil).Election("e"), "other"))
	})
}

// TestObserve: observers see each leader, each value, and that nobody leads,
// also when a leader dies.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		mortal, store := newFaultyClient(t, eng, nil)
		ctx, cancel := context.WithCancel(t.Context())
		seen, done := make(chan pawl.Leader), make(chan struct{})
		go func() {
			defer close(done)
			for is, err := range newClient(t, eng, nil).Election("e").Observe(ctx) {
				noErr(t, err)
				seen <- is
			}
		}()
		want := func(value string, leads bool) {
			t.Helper()
			if is := <-seen; string(is.Value) != value || (is.Token != 0) != leads {
				t.Fatalf("observed %q with token %v, want %q", is.Value, is.Token, value)
			}
		}
		want("", false)
		term := campaign(t, mortal.Election("e"), "one")
		want("one", true)
		noErr(t, mortal.Election("e").Proclaim(t.Context(), term, []byte("still one")))
		want("still one", true)
		died := time.Now()
		store.set(fails, verbRenew, verbOpen, verbLeave)
		want("", false)
		if took := time.Since(died); took > 2*15*time.Second {
			t.Errorf("seen %v after the death", took)
		}
		e := newClient(t, eng, nil).Election("e")
		term = campaign(t, e, "two")
		want("two", true)
		noErr(t, e.Resign(t.Context(), term))
		want("", false)
		cancel()
		<-done
	})
}

// TestForeignTerm: only the lease of a campaign can speak for the leader.
func TestForeignTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		e := c.Election("e")
		term := campaign(t, e, "real")
		for _, other := range []*pawl.Lease{
			mustLock(t, t.Context(), c.Mutex("other")), campaign(t, c.Election("f"), "f"),
			campaign(t, newClient(t, memengine.New(), nil).Election("e"), "of another store"),
		} {
			wantErr(t, e.Proclaim(t.Context(), other, []byte("fake")), pawl.ErrInvalid)
			wantErr(t, e.Resign(t.Context(), other), pawl.ErrInvalid)
			noErr(t, other.Err())
			wantLeader(t, e, "real", term)
		}
		wantErr(t, e.Proclaim(t.Context(), nil, nil), pawl.ErrInvalid)
		noErr(t, e.Resign(t.Context(), nil))
		noErr(t, e.Proclaim(t.Context(), term, []byte("still")))
		noErr(t, e.Resign(t.Context(), term))
	})
}

// TestLead: a candidate campaigns again after each loss, and tolerates trouble with the store. The
// work of one term has ended before the next term begins.
func TestLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		e, observer := c.Election("e"), newClient(t, eng, nil).Election("e")
		store.set(fails, verbPut) // the first campaigns fail
		time.AfterFunc(time.Minute, func() { store.set(nil, verbPut) })
		terms, enough, working := make(chan struct{}), make(chan struct{}), false
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		finish := errors.New("finished")
		go func() {
			done <- e.Lead(ctx, []byte("me"), func(ctx context.Context) error {
				if working {
					t.Error("two terms at once")
				}
				working = true
				terms <- struct{}{}
				select {
				case <-ctx.Done():
					pass(time.Second) // Lead waits for fn
					working = false
					return ctx.Err()
				case <-enough:
					return finish
				}
			})
		}()
		<-terms
		if is, err := observer.Leader(t.Context()); err != nil || string(is.Value) != "me" {
			t.Errorf("leader %q, %v", is.Value, err)
		}
		breakLock(t, eng, "pawl:election/e")
		<-terms
		store.set(fails, verbRenew, verbOpen, verbPut, verbLeave) // the store is away for longer than the TTL
		pass(2 * time.Minute)
		store.set(nil, verbRenew, verbOpen, verbPut, verbLeave)
		<-terms
		close(enough) // then fn ends by itself
		wantErr(t, <-done, finish)
		wantLeader(t, observer, "", nil)
		working = false

		go func() {
			done <- e.Lead(ctx, []byte("me"), func(ctx context.Context) error {
				terms <- struct{}{}
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		<-terms
		cancel()
		wantErr(t, <-done, context.Canceled)
		wantErr(t, e.Lead(ctx, []byte("me"), nil), pawl.ErrNotAcquired, context.Canceled)
		wantErr(t, e.Lead(t.Context(), make([]byte, pawl.MaxValue), nil), pawl.ErrInvalid)
		wantLeader(t, observer, "", nil)
	})
}

// TestObserveEndsWithClose: an observer that waits for a store that is away learns that its client was closed.
func TestObserveEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		store.set(fails, verbGet, verbWatch)
		ended, waited := make(chan error, 1), make(chan error, 1)
		go func() {
			var last error
			for _, err := range c.Election("e").Observe(t.Context()) {
				last = err
			}
			ended <- last
		}()
		go func() { waited <- c.Latch("l", 1).Wait(t.Context()) }()
		pass(time.Minute)
		c.Close(t.Context()) //nolint:errcheck // the store is away
		wantErr(t, <-ended, pawl.ErrClosed)
		wantErr(t, <-waited, pawl.ErrClosed)
	})
}

// TestLeadEndsWithClose: the client is closed while its candidate leads. Lead says so, whatever the function returns.
func TestLeadEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := errors.New("mine")
		for _, returns := range []error{nil, mine} {
			c := newClient(t, memengine.New(), nil)
			err := c.Election("e").Lead(t.Context(), nil, func(ctx context.Context) error {
				go c.Close(context.Background()) //nolint:errcheck // checked elsewhere
				<-ctx.Done()
				return returns
			})
			wantErr(t, err, pawl.ErrClosed)
			if !errors.Is(err, returns) && returns != nil {
				t.Errorf("error %v", err)
			}
		}
	})
}
