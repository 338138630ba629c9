package redlockengine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// others are sessions of other clients, which use single nodes as stores of their own.
func others(t *testing.T, all nodes) (sessions []engine.Session) {
	t.Helper()
	for _, s := range all {
		sessions = append(sessions, sessiontest.Open(t, s.eng, time.Hour))
	}
	return sessions
}

func enter(t *testing.T, s engine.Session, id string, granted bool) {
	t.Helper()
	if g, err := s.Enter(t.Context(), claimOf(s, id), true); err != nil || g.Held() != granted {
		t.Fatalf("%v, %v, want it to be granted: %v", g, err, granted)
	}
}

func leave(t *testing.T, s engine.Session, id string) {
	t.Helper()
	if err := s.Leave(t.Context(), "r", s.ID()+id); err != nil {
		t.Fatal(err)
	}
}

// TestWaitsBesideAGrace: a node in its grace refuses a claim that may wait, because the claim would share a grant that nobody may
// believe in. The claim waits on the other nodes, and is granted there.
func TestWaitsBesideAGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		eng, links := all.client(t, nil)
		theirs, _ := all.client(t, nil)
		a, b := sessiontest.Open(t, theirs, time.Minute), sessiontest.Open(t, eng, time.Minute)
		enter(t, a, ".1", true)
		links[0].set(trouble{call: func(context.Context, func(context.Context) error) error {
			return &engine.GraceError{Grace: engine.Grace{Left: time.Minute}}
		}})
		enter(t, b, ".1", false)
		got := sessiontest.Awaiting(t, b, claimOf(b, ".1"))
		synctest.Wait()
		leave(t, a, ".1")
		sessiontest.Granted(t, got)
	})
}

// TestLateNews: the news that a node granted a claim may come late. By then the claim was left
// there, so that others pass, and is on its way to wait again. Such a grant is no vote.
func TestLateNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		eng, links := all.client(t, nil)
		links[1].news = ttl / 22 // when it waits for the second time
		c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context()) //nolint:errcheck // checked elsewhere
		they := others(t, all)
		enter(t, they[1], ".1", true)
		enter(t, they[2], ".1", true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*ttl)
		defer cancel()
		done := make(chan error)
		go func() { // has the first node, and waits for the others
			_, err := c.Mutex("r").Lock(ctx)
			done <- err
		}()
		synctest.Wait()
		enter(t, they[1], ".2", false)
		leave(t, they[1], ".1") // it is granted the second node, which it leaves before it knows
		if err := <-done; !errors.Is(err, pawl.ErrNotAcquired) {
			t.Errorf("others hold two of three nodes: %v", err)
		}
	})
}

// TestEvictedVote: a claim that waits has no vote of a node where it was taken out.
func TestEvictedVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		eng, _ := all.client(t, nil)
		they, s := others(t, all), sessiontest.Open(t, eng, ttl)
		enter(t, they[1], ".1", true)
		enter(t, they[2], ".1", true)
		enter(t, s, ".1", false)
		if err := they[0].Leave(t.Context(), "r", s.ID()+".1"); err != nil {
			t.Fatal(err)
		}
		enter(t, they[0], ".1", true)
		if _, err := s.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		leave(t, they[1], ".1")
		ctx, cancel := context.WithTimeout(t.Context(), ttl/2)
		defer cancel()
		if g, err := s.Await(ctx, claimOf(s, ".1")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("others hold two of three nodes: %v, %v", g, err)
		}
	})
}

// TestNodesLoseWaiter: that a majority of the nodes ended a session, one after the other, is no
// eviction. A waiter goes on.
func TestNodesLoseWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		var clients []*pawl.Client
		for range 2 {
			eng, _ := all.client(t, nil)
			c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(t.Context()) //nolint:errcheck // checked elsewhere
			clients = append(clients, c)
		}
		held, err := clients[0].Mutex("r").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(ttl / 6) // half a heartbeat
		done := make(chan error)
		go func() {
			_, err := clients[1].Mutex("r").Lock(t.Context())
			done <- err
		}()
		for i, pause := range []time.Duration{ttl / 50, ttl / 4} { // the heartbeat is between
			<-time.After(pause)
			r, err := all[i].eng.Show(t.Context(), "r")
			if err != nil || len(r.Claims) != 2 {
				t.Fatalf("%+v, %v", r, err)
			}
			all[i].eng.Expire(r.Claims[1].Session)
		}
		<-time.After(2 * ttl)
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
