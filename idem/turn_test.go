package idem_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/faulty"
)

// TestCallsBesideOneThatHangs: a call of a claim waits for another call no longer than its own context, and Point waits for none.
func TestCallsBesideOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		store := faulty.New(eng)
		c := begin(t, idem.NewLeases(party(t, engine.Like(eng, store)), nil))
		store.Set(faulty.Hangs, faulty.Put, faulty.Get)
		completed := make(chan error)
		go func() { completed <- c.Complete(t.Context(), []byte("paid")) }()
		synctest.Wait()
		wantBack(t, "Reach", 110*time.Millisecond, func(ctx context.Context) error { return c.Reach(ctx, "a", nil) })
		wantBack(t, "Point", 0, func(context.Context) error { c.Point("a"); return pawl.ErrUnavailable })
		store.Set(nil, faulty.Put, faulty.Get)
		noErr(t, <-completed)
	})
}

// TestCallsLingerOnce: a call of several requests to a store that hangs is back soon after its context has ended.
func TestCallsLingerOnce(t *testing.T) {
	hang := func(s *faulty.Store, gets int) {
		s.Set(faulty.Hangs, faulty.Put, faulty.Leave)
		s.Set(faulty.First(gets, nil, faulty.Hangs), faulty.Get)
	}
	for name, call := range map[string]func(*testing.T, *idem.Leases, *faulty.Store) func(context.Context) error{
		"Begin": func(_ *testing.T, l *idem.Leases, s *faulty.Store) func(context.Context) error {
			return func(ctx context.Context) error {
				hang(s, 1)
				return second(l.Begin(ctx, pay, print, nil))
			}
		},
		"Abort": func(t *testing.T, l *idem.Leases, s *faulty.Store) func(context.Context) error {
			c := begin(t, l)
			hang(s, 0)
			return c.Abort
		},
		"Do": func(_ *testing.T, l *idem.Leases, s *faulty.Store) func(context.Context) error {
			return func(ctx context.Context) error {
				_, _, err := l.Do(ctx, pay, print, nil, func(context.Context, *idem.Claim) ([]byte, error) {
					hang(s, 0)
					return nil, nil
				})
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				store := faulty.New(eng)
				l := idem.NewLeases(party(t, engine.Like(eng, store)), nil)
				wantBack(t, name, 110*time.Millisecond, call(t, l, store))
				store.Set(nil, faulty.Put, faulty.Get, faulty.Leave)
			})
		})
	}
}

// wantBack calls with a context of 10 ms, and wants the call back within most.
func wantBack(t *testing.T, doing string, most time.Duration, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	began := time.Now()
	wantErr(t, call(ctx), pawl.ErrUnavailable)
	if took := time.Since(began); took > most {
		t.Errorf("%s took %v", doing, took)
	}
}
