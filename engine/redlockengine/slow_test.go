package redlockengine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestSlowNodesRestart: each step on a node takes nearly as long as it may. A lock survives when one node after the other is
// restarted without its data.
func TestSlowNodesRestart(t *testing.T) {
	for _, row := range []struct{ ttl, slow, timeout time.Duration }{
		{time.Second, 100 * time.Millisecond, 0}, {2 * time.Second, 200 * time.Millisecond, 0},
		{15 * time.Second, 1400 * time.Millisecond, 1500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			all := newNodes(3)
			eng, links := all.client(t, &redlockengine.Options{NodeTimeout: row.timeout})
			for _, l := range links {
				l.slow = row.slow
			}
			l, err := clientOf(t, eng, row.ttl).Mutex("r").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, node := range all {
				<-time.After(4 * row.ttl)
				node.forget(row.ttl)
			}
			<-time.After(4 * row.ttl)
			if err := l.Err(); err != nil {
				t.Errorf("%+v: %v", row, err)
			}
		})
	}
}

// TestNodeMissesUnlock: a node misses an Unlock that succeeds, and answers again at the next renewal. That renewal leaves the
// claim there, whatever time a node may take.
func TestNodeMissesUnlock(t *testing.T) {
	const ttl = 15 * time.Second
	for _, timeout := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			eng, links := newNodes(3).client(t, &redlockengine.Options{NodeTimeout: timeout})
			l, err := clientOf(t, eng, ttl).Mutex("r").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(ttl/3 - time.Second) // the next renewal is in a second
			links[0].set(fails)
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			links[0].set(none)
			<-time.After(2 * time.Second)
			if names := collect(t, links[0]); len(names) > 0 {
				t.Errorf("NodeTimeout %v: the node still has %v", timeout, names)
			}
		})
	}
}

// TestLossIsToldBeforeRepairs: a claim is lost while many claims are to be entered on a slow node. The holder is told at once, and
// has three tenths of a heartbeat to stop before the rest of its claim goes.
func TestLossIsToldBeforeRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const beat = 5 * time.Second
		all := newNodes(3)
		eng, links := all.client(t, nil)
		s := sessiontest.Open(t, eng, 3*beat)
		held := []*engine.Claim{claimOf(s, ".1")}
		enter(t, s, ".1", true)
		for i := range 40 {
			c := claimOf(s, fmt.Sprint(".other", i))
			c.Resource = fmt.Sprint("other/", i)
			if g, err := s.Enter(t.Context(), c, true); err != nil || !g.Held() {
				t.Fatal(g, err)
			}
			held = append(held, c)
		}
		all[2].forget(0)
		s.Renew(t.Context(), held) //nolint:errcheck // learns that one node has ended the session
		if err := links[1].Evict(t.Context(), "r", held[0].ID); err != nil {
			t.Fatal(err)
		}
		var requests atomic.Int64
		links[2].set(trouble{call: func(ctx context.Context, do func(context.Context) error) error {
			if requests.Add(1) > 1 { // the session is opened at once
				if err := pause(ctx, beat/4-50*time.Millisecond); err != nil {
					return err
				}
			}
			return do(ctx)
		}})
		began := time.Now()
		gone, err := s.Renew(t.Context(), held)
		if took := time.Since(began); err != nil || len(gone) != 1 || took > 0 {
			t.Fatalf("%d are gone, %v, after %v", len(gone), err, took)
		}
		for len(collect(t, links[0])) == len(held) {
			s.Renew(t.Context(), held[1:]) //nolint:errcheck // repairs
			<-time.After(50 * time.Millisecond)
		}
		if took := time.Since(began); took < beat*3/10 {
			t.Errorf("the rest of the claim was left after %v", took)
		}
	})
}
