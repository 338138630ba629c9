package redlockengine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestCallsEndWithTheirContext: also when nodes hang, and when a claim is on its way to
// let others pass.
func TestCallsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		eng, links := all.client(t, &redlockengine.Options{NodeTimeout: time.Minute})
		they := others(t, all)
		s := sessiontest.Open(t, eng, time.Hour)
		enter(t, they[1], ".1", true)
		enter(t, they[2], ".1", true)
		enter(t, s, ".1", false) // it has the first node
		c := claimOf(s, ".1")
		ends := func(what string, call func(context.Context) error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			start := time.Now()
			if err := call(ctx); err == nil {
				t.Errorf("%s: no error", what)
			}
			if took := time.Since(start); took > 50*time.Millisecond {
				t.Errorf("%s took %v", what, took)
			}
		}
		waits := make(chan struct{})
		go func() {
			defer close(waits)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute/2)
			defer cancel()
			start := time.Now()
			if _, err := s.Await(ctx, c); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Minute/2 {
				t.Errorf("await: %v after %v", err, time.Since(start))
			}
		}()
		<-time.After(time.Second)
		for _, l := range links {
			l.set(hangs)
		}
		<-waits
		ends("open", func(ctx context.Context) error {
			_, err := eng.Open(ctx, engine.SessionOptions{TTL: time.Hour})
			return err
		})
		ends("enter", func(ctx context.Context) error { _, err := s.Enter(ctx, claimOf(s, ".2"), true); return err })
		ends("try", func(ctx context.Context) error { _, err := s.Enter(ctx, claimOf(s, ".3"), false); return err })
		ends("await", func(ctx context.Context) error { _, err := s.Await(ctx, claimOf(s, ".2")); return err })
		ends("leave", func(ctx context.Context) error { return s.Leave(ctx, "r", s.ID()+".2") })
		ends("renew", func(ctx context.Context) error { _, err := s.Renew(ctx, []*engine.Claim{c}); return err })
		ends("show", func(ctx context.Context) error { _, err := eng.Show(ctx, "r"); return err })
		ends("list", func(ctx context.Context) error {
			for _, err := range eng.List(ctx, "") {
				return err
			}
			return nil
		})
		ends("close", s.Close)
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestGraceOfAMajority: while so many nodes are in their restart grace that the others are no
// majority, that grace is the reason. The grace lasts until the first of them grant again.
func TestGraceOfAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng, links := newNodes(3).client(t, nil)
		s := sessiontest.Open(t, eng, time.Minute)
		links[0].grace = engine.Grace{Age: time.Second, Left: 9 * time.Second}
		links[2].grace = engine.Grace{Age: 2 * time.Second, Left: 5 * time.Second}
		var why *engine.GraceError
		if _, err := s.Enter(t.Context(), claimOf(s, ".1"), false); !errors.As(err, &why) || why.Grace != links[2].grace || !errors.Is(err, engine.ErrGrace) {
			t.Errorf("try: %v", err)
		}
		if g, err := s.Enter(t.Context(), claimOf(s, ".2"), true); err != nil || g.Held() || g.Grace != links[2].grace {
			t.Errorf("wait: %+v, %v", g, err)
		}
		if r, err := eng.Show(t.Context(), "r"); err != nil || r.Grace != links[2].grace {
			t.Errorf("show: %+v, %v", r, err)
		}
		links[2].grace = engine.Grace{}
		s.Leave(t.Context(), "r", s.ID()+".2") //nolint:errcheck // these nodes store nothing meanwhile
		if g, err := s.Enter(t.Context(), claimOf(s, ".3"), false); err != nil || !g.Held() {
			t.Errorf("a majority grants: %+v, %v", g, err)
		}
		if r, err := eng.Show(t.Context(), "r"); err != nil || r.Grace.On() {
			t.Errorf("show: %+v, %v", r, err)
		}
	})
}

// TestShowSaysWhatAMajoritySays: since so many nodes grant a claim, and until so many keep it. The
// node that was away does not count with its later time.
func TestShowSaysWhatAMajoritySays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng, links := newNodes(3).client(t, nil)
		s := sessiontest.Open(t, eng, ttl)
		links[2].set(fails)
		enter(t, s, ".1", true)
		enter(t, s, ".2", false)
		<-time.After(ttl / 4)
		heal(links)
		if _, err := s.Renew(t.Context(), nil); err != nil { // which also enters it there
			t.Fatal(err)
		}
		<-time.After(ttl / 4)
		r, err := eng.Show(t.Context(), "r")
		if err != nil || len(r.Claims) != 2 {
			t.Fatalf("%+v, %v", r, err)
		}
		holds, waits := r.Claims[0], r.Claims[1]
		if holds.Held != ttl/2 || holds.Left < ttl*3/4 || holds.Left > ttl {
			t.Errorf("who holds: %+v", holds)
		}
		if waits.Held >= 0 || waits.Age != ttl/2 || waits.Left < ttl*3/4 {
			t.Errorf("who waits: %+v", waits)
		}
	})
}

// TestEvictBesideAnotherFormat: an operator evicts a claim where one node has another format, and others have lost the claim. The
// answer is that of the other nodes, because these are a majority.
func TestEvictBesideAnotherFormat(t *testing.T) {
	alien := fmt.Errorf("another format: %w", engine.ErrUnsupported)
	for name, c := range map[string]struct {
		gone []int
		want error
	}{"one": {[]int{1}, nil}, "both": {[]int{1, 2}, engine.ErrGone}} {
		t.Run(name, func(t *testing.T) {
			all := newNodes(3)
			eng, links := all.client(t, nil)
			s := sessiontest.Open(t, eng, time.Minute)
			enter(t, s, ".1", true)
			r, err := eng.Show(t.Context(), "r")
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range c.gone {
				if err := all[i].eng.Evict(t.Context(), "r", r.Claims[0].ID); err != nil {
					t.Fatal(err)
				}
			}
			links[0].set(trouble{call: func(context.Context, func(context.Context) error) error { return alien }})
			if err := eng.Evict(t.Context(), "r", r.Claims[0].ID); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			links[2].set(fails)
			if err := eng.Evict(t.Context(), "r", r.Claims[0].ID); !errors.Is(err, engine.ErrUnsupported) {
				t.Errorf("%v, want the reason of the first node", err)
			}
		})
	}
}
