package redlockengine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

var mutex = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}

func claimOf(s engine.Session, id string) *engine.Claim {
	return &engine.Claim{Spec: mutex, Resource: "r", ID: s.ID() + id, Owner: s.ID() + id, Weight: mutex.Capacity}
}

func TestNumberOfNodes(t *testing.T) {
	for n, want := range map[int]string{0: "at least 3", 1: "at least 3", 2: "at least 3", 4: "an even number", 3: "", 5: ""} {
		var nodes []engine.Engine
		for range n {
			nodes = append(nodes, memengine.New())
		}
		eng, err := redlockengine.New(nodes, nil)
		if (want == "") != (err == nil) || err != nil && (eng != nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d nodes: %v, want %q", n, err, want)
		}
	}
	if _, err := redlockengine.New(make([]engine.Engine, 3), &redlockengine.Options{NodeTimeout: -1}); err == nil {
		t.Error("a time-out below 0")
	}
}

// bounded is a store that lacks something.
type bounded struct {
	*memengine.Engine
	lacks engine.Feature
}

func (b bounded) Caps() engine.Caps {
	caps := b.Engine.Caps()
	caps.Lacks = map[engine.Feature]string{b.lacks: "it is too small"}
	return caps
}

// TestBoundedNodes: the memory of tokens is a value on each node; and what one
// node lacks all of them do.
func TestBoundedNodes(t *testing.T) {
	nodes := func(lacks engine.Feature) []engine.Engine {
		return []engine.Engine{memengine.New(), memengine.New(), bounded{memengine.New(), lacks}}
	}
	if _, err := redlockengine.New(nodes(engine.FeatureValues), nil); err == nil || !strings.Contains(err.Error(), "too small") {
		t.Errorf("tokens without values: %v", err)
	}
	if _, err := redlockengine.New(nodes(engine.FeatureValues), &redlockengine.Options{NoTokens: true}); err != nil {
		t.Error(err)
	}
	eng, err := redlockengine.New(nodes(engine.FeatureDelay), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := eng.Caps().RefuseFeature(engine.FeatureDelay); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a node that keeps nothing for the dead: %v", err)
	}
}

// TestClosedWhileJoining: a session that a renewal opens on a node is closed also
// when it comes after the end.
func TestClosedWhileJoining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng, links := newNodes(3).client(t, nil)
		links[2].set(fails)
		s := sessiontest.Open(t, eng, ttl)
		links[2].is = late(ttl / 20)
		done := make(chan error)
		go func() {
			_, err := s.Renew(t.Context(), nil)
			done <- err
		}()
		synctest.Wait()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, engine.ErrGone) {
			t.Error(err)
		}
		for i, l := range links {
			if n := l.opened(0); n != 0 {
				t.Errorf("node %d: %d sessions are open", i, n)
			}
		}
	})
}

// TestTryWithoutVotes: that nodes granted whose vote does not count is trouble.
// Nobody holds.
func TestTryWithoutVotes(t *testing.T) {
	eng, links := newNodes(3).client(t, nil)
	s := sessiontest.Open(t, eng, ttl)
	links[2].set(fails)
	if _, err := s.Renew(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	links[1].set(fails)
	links[2].set(none) // it is back, but has missed the renewal
	for _, id := range []string{".1", ".2"} {
		c := claimOf(s, id)
		if g, err := s.Enter(t.Context(), c, false); !errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrBusy) {
			t.Errorf("%v, %v", g, err)
		}
		s.Leave(t.Context(), c.Resource, c.ID) //nolint:errcheck // it may be there or not
	}
}

// TestTokensWithoutAClock: nodes that count by themselves, from 1, are as far
// apart as clocks can be. The only node that both majorities share tells the
// second what the first has got.
func TestTokensWithoutAClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(5)
		for range 100 { // the first two have counted on
			for _, s := range all[:2] {
				if _, err := s.eng.Put(t.Context(), "x", []byte("x"), version(t, s.eng, "x")); err != nil {
					t.Fatal(err)
				}
			}
		}
		eng, links := all.client(t, nil)
		var last engine.Grant
		for _, away := range [][]int{{3, 4}, {0, 1}, {2, 3}, {0, 4}} {
			for i := range links {
				links[i].set(none)
			}
			for _, i := range away {
				links[i].set(fails)
			}
			s := sessiontest.Open(t, eng, ttl)
			c := claimOf(s, ".1")
			g, err := s.Enter(t.Context(), c, false)
			if err != nil || g.Token <= last.Token {
				t.Fatalf("without %v: token %v after %v, %v", away, g.Token, last.Token, err)
			}
			if last = g; s.Leave(t.Context(), c.Resource, c.ID) != nil {
				t.Fatal(err)
			}
		}
	})
}

func version(t *testing.T, eng engine.Values, key string) uint64 {
	t.Helper()
	v, err := eng.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return v.Version
}

// TestSplit: two that have half of the nodes each, and wait for the other, get
// out of it by themselves.
func TestSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(5)
		third := sessiontest.Open(t, all[2].eng, ttl) // has the fifth part, and keeps it
		if _, err := third.Enter(t.Context(), claimOf(third, ".1"), false); err != nil {
			t.Fatal(err)
		}
		granted := make(chan engine.Session, 2)
		sessions := []engine.Session{third}
		for _, away := range [][]int{{3, 4}, {0, 1}} {
			eng, links := all.client(t, nil)
			s := sessiontest.Open(t, eng, ttl)
			sessions = append(sessions, s)
			for _, i := range away {
				links[i].set(fails)
			}
			c := claimOf(s, ".1")
			if g, err := s.Enter(t.Context(), c, true); err != nil || g.Held() {
				t.Fatal(g, err)
			}
			heal(links)
			go func() {
				var g engine.Grant
				err := error(context.DeadlineExceeded)
				for errors.Is(err, context.DeadlineExceeded) { // given up and called again, also while it has yielded
					short, cancel := context.WithTimeout(t.Context(), ttl/8)
					g, err = s.Await(short, c)
					cancel()
				}
				if err != nil || !g.Held() {
					t.Error(g, err)
				}
				granted <- s
			}()
		}
		keep := time.NewTicker(ttl / 3)
		defer keep.Stop()
		for {
			select {
			case first := <-granted:
				if err := first.Leave(t.Context(), "r", first.ID()+".1"); err != nil {
					t.Error(err)
				}
				<-granted
				return
			case <-keep.C:
				for _, s := range sessions {
					s.Renew(t.Context(), nil) //nolint:errcheck // it only has to live
				}
			}
		}
	})
}

// TestSlowNode: a node that hangs costs one time-out, not one for each step; and
// when it answers again it votes again.
func TestSlowNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng, links := newNodes(3).client(t, nil)
		c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context()) //nolint:errcheck // checked elsewhere
		pair := func() error {
			return c.Mutex("slow").Do(t.Context(), func(context.Context) error { return nil })
		}
		links[0].set(hangs)
		start := time.Now()
		for range 100 {
			if err := pair(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took > ttl {
			t.Errorf("100 locks took %v", took)
		}
		links[0].set(none)
		<-time.After(ttl)
		links[1].set(hangs)
		if err := pair(); err != nil {
			t.Errorf("with the node that is back: %v", err)
		}
	})
}

// TestOperator: a claim on a majority holds; a claim on fewer shows, and can be taken away.
func TestOperator(t *testing.T) {
	all := newNodes(3)
	eng, links := all.client(t, nil)
	s := sessiontest.Open(t, eng, ttl)
	links[2].set(fails)
	g, err := s.Enter(t.Context(), claimOf(s, ".1"), false)
	if err != nil {
		t.Fatal(err)
	}
	heal(links)
	alone := sessiontest.Open(t, all[2].eng, ttl)
	if _, err := alone.Enter(t.Context(), claimOf(alone, ".1"), false); err != nil {
		t.Fatal(err)
	}
	other, _ := all.client(t, nil)
	r, err := other.Show(t.Context(), "r")
	if err != nil || len(r.Claims) != 2 || r.Claims[0].Token != g.Token || r.Claims[0].Session != s.ID() || r.Claims[1].Token != 0 {
		t.Fatalf("%+v, %v, want token %v", r, err, g.Token)
	}
	links[0].set(fails)
	links[1].set(fails)
	if _, err := eng.Show(t.Context(), "r"); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("show with one of three: %v", err)
	}
}
