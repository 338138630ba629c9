package pawl_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// gracefulStore is in its restart grace until a time.
type gracefulStore struct {
	*memengine.Engine
	until time.Time
	knows bool   // all claims: the store shares grants, and says that it is in a grace
	loses bool   // the reply to the next request
	after func() // each request in a grace of a store that knows all claims

	refuses bool  // also the claims that may wait
	mute    bool  // until the context ends, after its first answer
	late    error // the answer then
	asked   int   // requests to a store that is mute

	lost bool // all sessions, and no answers to requests that open a session
}

func (g *gracefulStore) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	if g.lost {
		return nil, engine.Unavailable("open", errors.New("no answer"))
	}
	s, err := g.Engine.Open(ctx, opts)
	return &gracefulSession{s, g}, err
}

type gracefulSession struct {
	engine.Session
	store *gracefulStore
}

func (s *gracefulSession) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	if s.store.mute {
		if s.store.asked++; s.store.asked > 1 {
			<-ctx.Done()
			return engine.Grant{}, cmp.Or(s.store.late, ctx.Err())
		}
	}
	left := time.Until(s.store.until)
	grace := engine.Grace{Age: 4 * time.Second, Left: left}
	switch {
	case left <= 0:
		return s.Session.Enter(ctx, c, wait)
	case s.store.knows:
		grant, err := s.Session.Enter(ctx, c, wait)
		if s.store.after != nil {
			s.store.after()
		}
		if s.store.loses {
			s.store.loses = false
			return engine.Grant{}, engine.Unavailable("enter", errors.New("the reply was lost"))
		}
		grant.Grace = grace
		return grant, err
	case wait && !s.store.refuses:
		return engine.Grant{Grace: grace}, nil
	}
	return engine.Grant{}, fmt.Errorf("enter: %w", &engine.GraceError{Grace: grace})
}

func (s *gracefulSession) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	if s.store.lost {
		return engine.Grant{}, engine.ErrGone
	}
	select {
	case <-time.After(time.Until(s.store.until)):
		return s.Session.Enter(ctx, c, true)
	case <-ctx.Done():
		return engine.Grant{}, ctx.Err()
	}
}

func (s *gracefulSession) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	if s.store.lost {
		return nil, engine.ErrGone
	}
	return s.Session.Renew(ctx, held)
}

// TestGraceIsTold: a client that meets a store in its restart grace learns of the grace, and not
// that others hold the lock.
func TestGraceIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gracefulStore{Engine: memengine.New(), until: time.Now().Add(11 * time.Second)}
		var events []pawl.Event
		c := newClient(t, store, &pawl.Options{Observe: func(_ context.Context, e pawl.Event) {
			if e.Kind == pawl.EventGrace || e.Kind == pawl.EventContended {
				events = append(events, e)
			}
		}})
		_, err := c.Mutex("m").TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace)
		const says = "the store was started, emptied or first used by pawl 4s ago and may have forgotten locks; it grants again in 11s"
		if !strings.Contains(err.Error(), says) {
			t.Errorf("it says %q", err)
		}
		var grace *engine.GraceError
		if !errors.As(err, &grace) || grace.Left != 11*time.Second {
			t.Errorf("left: %+v", grace)
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Mutex("m").Lock(soon)
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace, context.DeadlineExceeded)
		if !errors.As(err, &grace) || grace.Left != 10*time.Second || grace.Age != 5*time.Second { // now, not when the wait began
			t.Errorf("after a second of waiting: %+v", grace)
		}
		if len(events) != 1 || events[0].Kind != pawl.EventGrace || events[0].Took != 11*time.Second || events[0].Name != "m" {
			t.Errorf("events %+v", events)
		}
		mustUnlock(t, mustLock(t, t.Context(), c.Mutex("m")))
		if left := time.Until(store.until); left > 0 {
			t.Errorf("granted %v before the grace ended", left)
		}
	})
}

// TestGraceSharesOnlyWhatAClientHolds: in a restart grace a claim of an owner shares a grant of its own client only. The store may have
// forgotten that another grant was released, and the store may have forgotten a later holder.
func TestGraceSharesOnlyWhatAClientHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gracefulStore{Engine: memengine.New(), knows: true}
		a, b := newClient(t, store, nil), newClient(t, store, nil)
		owned := pawl.WithOwner(t.Context(), "o")
		outer, err := a.RWMutex("m").RLock(owned)
		if err != nil {
			t.Fatal(err)
		}
		stale, err := b.RWMutex("m").RLock(owned)
		if err != nil {
			t.Fatal(err)
		}
		store.until = time.Now().Add(11 * time.Second)
		inner, err := a.RWMutex("m").RLock(owned)
		if err != nil || inner.Token() != outer.Token() {
			t.Errorf("a re-entry: %v, %v", inner, err)
		}
		mustUnlock(t, inner)
		mustUnlock(t, outer)
		_, err = a.RWMutex("m").TryRLock(owned)
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace)
		var grace *engine.GraceError
		if !errors.As(err, &grace) || grace.Left != 11*time.Second {
			t.Errorf("%v, %+v", err, grace)
		}
		soon, cancel := context.WithTimeout(owned, time.Second)
		defer cancel()
		_, err = a.RWMutex("m").RLock(soon)
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace, context.DeadlineExceeded)
		if !errors.As(err, &grace) || grace.Left != 10*time.Second {
			t.Errorf("after a second of waiting: %v, %+v", err, grace)
		}
		if r, err := a.Show(t.Context(), "m"); err != nil || len(r.Holders) != 1 {
			t.Errorf("a refused claim stays: %+v, %v", r, err)
		}
		mustUnlock(t, mustLock(t, t.Context(), a.Mutex("of no other owner")))
		mustUnlock(t, mustLock(t, owned, a.RWMutex("m").RLocker()))
		if left := time.Until(store.until); left != 0 {
			t.Errorf("granted %v before the grace ended", left)
		}
		mustUnlock(t, stale)
	})
}

// TestGraceOfAnOwnGrant: the store served a request of an owner, and was restarted before its reply. In the grace the store cannot tell
// that grant from an older grant. A waiting call waits for the end of the grace, and is told so once.
func TestGraceOfAnOwnGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gracefulStore{Engine: memengine.New(), knows: true, loses: true, until: time.Now().Add(11 * time.Second)}
		var kinds []pawl.EventKind
		c := newClient(t, store, &pawl.Options{Observe: func(_ context.Context, e pawl.Event) {
			if e.Name == "m" {
				kinds = append(kinds, e.Kind)
			}
		}})
		start := time.Now()
		lease, err := c.Mutex("m").Lock(pawl.WithOwner(t.Context(), "o"))
		if err != nil || time.Since(start) != 11*time.Second {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		if want := []pawl.EventKind{pawl.EventAttempt, pawl.EventGrace, pawl.EventGranted}; !slices.Equal(kinds, want) {
			t.Errorf("events %v, want %v", kinds, want)
		}
		mustUnlock(t, lease)
	})
}

// TestGraceBesideTheEndOfALease: a lease is released while a claim is on its way that re-enters the lease. In a grace, too, that claim
// goes on without the lease.
func TestGraceBesideTheEndOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gracefulStore{Engine: memengine.New(), knows: true, until: time.Now().Add(11 * time.Second)}
		c := newClient(t, store, nil)
		outer := mustLock(t, t.Context(), c.Mutex("m"))
		store.after = func() {
			store.after = nil
			mustUnlock(t, outer)
		}
		inner, err := c.Mutex("m").TryLock(context.WithoutCancel(outer.Context()))
		if err != nil || inner.Token() <= outer.Token() {
			t.Fatalf("%v, %v", inner, err)
		}
		mustUnlock(t, inner)
	})
}

// TestGraceEndsAWait: a client that closes ends also the wait of a claim that its store refuses in a grace.
func TestGraceEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gracefulStore{Engine: memengine.New(), refuses: true, until: time.Now().Add(11 * time.Second)}
		c := newClient(t, store, nil)
		waits := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := c.Mutex("m").Lock(t.Context())
				waits <- err
			}()
		}
		<-time.After(time.Second)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			wantErr(t, <-waits, pawl.ErrClosed)
		}
		mustUnlock(t, mustLock(t, t.Context(), newClient(t, store, nil).Mutex("m")))
		if left := time.Until(store.until); left != 0 {
			t.Errorf("granted %v before the grace ended", left)
		}
	})
}

// TestGraceOfARequestWithoutAnswer: a store refuses a claim in its grace, and does not answer when asked again. The error of Lock tells of
// the grace also when the context ends during that request.
func TestGraceOfARequestWithoutAnswer(t *testing.T) {
	for name, late := range map[string]error{"none": nil, "late": engine.ErrGrace} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &gracefulStore{Engine: memengine.New(), refuses: true, until: time.Now().Add(11 * time.Second), mute: true, late: late}
				soon, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := newClient(t, store, nil).Mutex("m").Lock(soon)
				wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace, context.DeadlineExceeded)
				if store.asked != 2 || strings.Count(err.Error(), pawl.ErrNotAcquired.Error()) != 1 {
					t.Errorf("asked %d times: %v", store.asked, err)
				}
			})
		})
	}
}

// TestGraceOfALostSession: a store in its grace ends the session of a waiter, and does not answer when the waiter opens another session.
// The error of Lock tells of the grace.
func TestGraceOfALostSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gracefulStore{Engine: memengine.New(), until: time.Now().Add(11 * time.Second)}
		c := newClient(t, store, &pawl.Options{Observe: func(_ context.Context, e pawl.Event) {
			store.lost = store.lost || e.Kind == pawl.EventGrace
		}})
		soon, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.Mutex("m").Lock(soon)
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace, pawl.ErrUnavailable, context.DeadlineExceeded)
	})
}

// TestAnswerAsTheTimeEnds: the store refuses a claim just when ctx ends, or the time of the request. That store was not in trouble.
func TestAnswerAsTheTimeEnds(t *testing.T) {
	for name, answer := range map[string]error{"busy": engine.ErrBusy, "grace": engine.ErrGrace} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, store := newFaultyClient(t, memengine.New(), nil)
				store.set(func(ctx context.Context, _ func(context.Context) error) error {
					<-ctx.Done()
					return answer
				}, verbEnter)
				soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				_, bySoon := c.Mutex("m").TryLock(soon)
				wantErr(t, bySoon, pawl.ErrNotAcquired, context.DeadlineExceeded, answer)
				_, byRound := c.Mutex("m").TryLock(t.Context())
				wantErr(t, byRound, pawl.ErrNotAcquired, answer)
				for _, err := range []error{bySoon, byRound} {
					if errors.Is(err, pawl.ErrUnavailable) {
						t.Error(err)
					}
				}
			})
		})
	}
}
