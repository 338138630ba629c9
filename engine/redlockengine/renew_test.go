package redlockengine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

func clientOf(t *testing.T, eng engine.Engine, ttl time.Duration) *pawl.Client {
	t.Helper()
	c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) }) //nolint:errcheck // checked elsewhere
	return c
}

// TestManyHeld: a client keeps more locks than a node can look at within the time of a step. The client
// does so also when a node is away, and when it is back.
func TestManyHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, n = 15 * time.Second, 1000
		eng, links := newNodes(3).client(t, nil)
		for _, l := range links {
			l.look = time.Millisecond
		}
		c := clientOf(t, eng, ttl)
		var held []*pawl.Lease
		for i := range n {
			l, err := c.Mutex(fmt.Sprint("held/", i)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, l)
		}
		for _, trouble := range []trouble{none, hangs, none} {
			links[0].set(trouble)
			<-time.After(3 * ttl)
			for _, l := range held {
				if l.Err() != nil {
					t.Fatalf("of %d locks one is lost: %v", n, l.Err())
				}
			}
		}
		for i, l := range links {
			if names := len(collect(t, l)); names != n {
				t.Errorf("node %d has %d of %d", i, names, n)
			}
		}
	})
}

// TestVoteThatIsNotKnownYet: a holder waits on a node, and is granted there while another node
// loses its data. The holder stands on a majority and keeps the lock.
func TestVoteThatIsNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		they := others(t, all)
		enter(t, they[2], ".1", true)
		eng, _ := all.client(t, nil)
		l, err := clientOf(t, eng, ttl).Mutex("r").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(ttl / 2)
		leave(t, they[2], ".1")
		all[0].forget(0) // there is nobody else who could have its vote
		<-time.After(3 * ttl)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

// TestBusyMachine: most nodes take longer than they usually may, as on a machine with other work.
// Clients come to hold all the same, and keep their locks.
func TestBusyMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 15 * time.Second
		eng, links := newNodes(3).client(t, nil)
		for _, l := range links[1:] {
			l.slow = 400 * time.Millisecond
		}
		c := clientOf(t, eng, ttl)
		l, err := c.Mutex("busy").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(3 * ttl)
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestSlowNodeStepsIn: of two slow nodes one is too late for every step that the others complete. A third node, which is
// fast, stops answering. The slow node takes its place, and the lock stays.
func TestSlowNodeStepsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 15 * time.Second
		eng, links := newNodes(3).client(t, nil)
		links[1].slow, links[2].slow = 400*time.Millisecond, 900*time.Millisecond
		l, err := clientOf(t, eng, ttl).Mutex("busy").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * ttl)
		links[0].set(hangs)
		<-time.After(3 * ttl)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

// TestSlowNodes: all nodes are slow, each request by another time. No node misses a step because others complete a
// majority: claims are granted with the first request, and renewals find them.
func TestSlowNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng, links := newNodes(5).client(t, nil)
		s := sessiontest.Open(t, eng, 15*time.Second)
		for _, l := range links {
			l.set(trouble{call: func(ctx context.Context, do func(context.Context) error) error {
				if err := pause(ctx, 300*time.Millisecond+rand.N(300*time.Millisecond)); err != nil {
					return err
				}
				return do(ctx)
			}})
		}
		for i := range 20 {
			c := claimOf(s, fmt.Sprint(".", i))
			c.Resource = fmt.Sprint("r/", i)
			if g, err := s.Enter(t.Context(), c, false); err != nil || !g.Held() {
				t.Fatalf("%v, %v", g, err)
			}
			if _, err := s.Renew(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestLeaveBesideRenewal: a renewal ends while the caller's Leave is on its way to slow nodes. The renewal's repair does
// not overtake that Leave, so the nodes tell the caller that the claim was there.
func TestLeaveBesideRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 100 * time.Millisecond
		eng, links := newNodes(5).client(t, nil)
		s := sessiontest.Open(t, eng, 15*time.Second)
		enter(t, s, ".1", true)
		all := func(slow time.Duration) {
			for _, l := range links {
				l.mu.Lock()
				l.slow = slow
				l.mu.Unlock()
			}
		}
		all(slow)
		renewed, left := make(chan error), make(chan error)
		go func() {
			_, err := s.Renew(t.Context(), nil)
			renewed <- err
		}()
		<-time.After(slow / 2)
		go func() { left <- s.Leave(t.Context(), "r", s.ID()+".1") }()
		synctest.Wait()
		all(0) // a later request arrives earlier
		if err := errors.Join(<-renewed, <-left); err != nil {
			t.Error(err)
		}
		for i, l := range links {
			if names := collect(t, l); len(names) > 0 {
				t.Errorf("node %d still has %v", i, names)
			}
		}
	})
}

func collect(t *testing.T, eng engine.Engine) (names []string) {
	t.Helper()
	for name, err := range eng.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// TestClaimsFromASnapshot: a node that was restarted from an old snapshot has claims again that
// were left, a held one and a waiting one. The node is rid of them with the next heartbeat, so that
// others have its vote.
func TestClaimsFromASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		eng, links := all.client(t, nil)
		c := clientOf(t, eng, ttl)
		l, err := c.Mutex("mine").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{".old/1", ".old/2"} {
			if _, err := links[0].last.Session.Enter(t.Context(), claimOf(links[0].last, id), true); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(ttl)
		if r, err := all[0].eng.Show(t.Context(), "r"); err != nil || len(r.Claims) != 0 {
			t.Errorf("the node still has %+v, %v", r.Claims, err)
		}
		if r, err := all[0].eng.Show(t.Context(), "mine"); err != nil || len(r.Claims) != 1 || l.Err() != nil {
			t.Errorf("what is held: %+v, %v, %v", r.Claims, err, l.Err())
		}
		other, links := all.client(t, nil)
		links[2].set(fails) // the vote of the node is needed
		if _, err := clientOf(t, other, ttl).Mutex("r").TryLock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestBreakBesideRenewals: a break reaches one node after the other, and the holder's client renews in between, because each
// node tells it of the break. The client does not enter the claim again where it was taken, so the break stands.
func TestBreakBesideRenewals(t *testing.T) {
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			all := newNodes(n)
			eng, _ := all.client(t, nil)
			s := sessiontest.Open(t, eng, ttl)
			held := claimOf(s, ".1")
			enter(t, s, ".1", true)
			var gone []*engine.Claim
			for _, node := range all {
				if err := node.eng.Evict(t.Context(), "r", held.ID); err != nil {
					t.Fatal(err)
				}
				var err error
				if gone, err = s.Renew(t.Context(), []*engine.Claim{held}); err != nil {
					t.Fatal(err)
				}
			}
			if len(gone) != 1 {
				t.Errorf("%d nodes: the holder does not learn that its claim was broken", n)
			}
		})
	}
}

// TestGivenUpBehindADoubt: an operator broke a lock, and no renewal succeeds because another lock is in doubt. The node that still
// has the broken lock keeps it until its holder was told, and had time to stop. The break stands meanwhile.
func TestGivenUpBehindADoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 30 * time.Second
		all := newNodes(3)
		eng, links := all.client(t, nil)
		s := sessiontest.Open(t, eng, ttl)
		broken, doubted := claimOf(s, ".a"), claimOf(s, ".b")
		doubted.Resource = "doubted"
		renew := func(held ...*engine.Claim) (gone []*engine.Claim, err error) { return s.Renew(t.Context(), held) }
		evict := func(node int, c *engine.Claim) {
			t.Helper()
			if err := all[node].eng.Evict(t.Context(), c.Resource, c.ID); err != nil {
				t.Fatal(err)
			}
		}
		stands := func(when string, want ...int) {
			t.Helper()
			for i, node := range all {
				if r, err := node.eng.Show(t.Context(), broken.Resource); err != nil || len(r.Claims) != want[i] {
					t.Errorf("%s: node %d has %v, %v", when, i, r.Claims, err)
				}
			}
		}
		sessiontest.Hold(t, s, broken)
		sessiontest.Hold(t, s, doubted)
		evict(2, broken)
		if gone, err := renew(broken, doubted); err != nil || len(gone) > 0 {
			t.Fatal(gone, err)
		}
		evict(0, broken)
		evict(0, doubted)
		links[2].set(hangs)
		<-time.After(ttl / 100) // else this renewal begins when the last one did
		for range 2 {
			if gone, err := renew(broken, doubted); !errors.Is(err, engine.ErrUnavailable) {
				t.Fatalf("gone %v, %v", gone, err)
			}
			stands("in doubt", 0, 1, 0)
			<-time.After(ttl / 8)
		}
		links[2].set(none)
		if gone, err := renew(broken, doubted); err != nil || len(gone) != 1 || gone[0] != broken {
			t.Fatalf("gone %v, %v", gone, err)
		}
		stands("told", 0, 1, 0)
		if _, err := renew(doubted); err != nil {
			t.Fatal(err)
		}
		stands("just told", 0, 1, 0)
		<-time.After(ttl / 8)
		if _, err := renew(doubted); err != nil {
			t.Fatal(err)
		}
		stands("told some time ago", 0, 0, 0)
	})
}

// TestClaimThatOneNodeLost: a node that lost a held claim gets it again, when a break would have reached the others.
func TestClaimThatOneNodeLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		eng, _ := all.client(t, nil)
		l, err := clientOf(t, eng, ttl).Mutex("mine").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := all[0].eng.Show(t.Context(), "mine")
		if err == nil {
			err = all[0].eng.Evict(t.Context(), "mine", r.Claims[0].ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(3 * ttl)
		if r, err := all[0].eng.Show(t.Context(), "mine"); err != nil || len(r.Claims) != 1 || l.Err() != nil {
			t.Errorf("%+v, %v, %v", r.Claims, err, l.Err())
		}
	})
}

// TestMemoryWhileANodeIsDown: what clients remember of a contended lock does not grow
// with each turn while a node does not answer.
func TestMemoryWhileANodeIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		ctx, cancel := context.WithCancel(t.Context())
		var users sync.WaitGroup
		var caught []*catching
		turns := 0
		var mu sync.Mutex
		for range 2 {
			eng, links := all.client(t, nil)
			caught = append(caught, &catching{Engine: eng})
			c := clientOf(t, caught[len(caught)-1], 15*time.Second)
			links[2].set(fails)
			for range 2 {
				users.Go(func() {
					for ctx.Err() == nil {
						l, err := c.Mutex("contended").Lock(ctx)
						if err != nil {
							continue
						}
						<-time.After(5 * time.Millisecond)
						l.Unlock(ctx) //nolint:errcheck // at the end ctx has ended
						mu.Lock()
						turns++
						mu.Unlock()
					}
				})
			}
		}
		<-time.After(time.Minute)
		for _, c := range caught {
			if n := redlockengine.Remembered(c.session); n > 20 {
				t.Errorf("after %d turns of 4 that wait: %d claims are remembered", turns, n)
			}
		}
		cancel()
		users.Wait()
		if turns < 1000 {
			t.Errorf("only %d turns", turns)
		}
	})
}

// catching keeps the session that was opened last.
type catching struct {
	*redlockengine.Engine
	session engine.Session
}

func (c *catching) Open(ctx context.Context, opts engine.SessionOptions) (s engine.Session, err error) {
	s, err = c.Engine.Open(ctx, opts)
	c.session = s
	return s, err
}

// TestBeliefOfNodes: a node is told how long a holder believes, and by how much its
// clock may be off: its restart grace covers that. Nobody believes in the session of an
// operator.
func TestBeliefOfNodes(t *testing.T) {
	for _, opts := range []engine.SessionOptions{
		{TTL: 10 * time.Second}, {TTL: 40 * time.Second, Delay: 30 * time.Second, Heartbeat: 3 * time.Second}, {TTL: 10 * time.Second, Delay: 10 * time.Second},
	} {
		eng, links := newNodes(3).client(t, nil)
		s, err := eng.Open(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context()) //nolint:errcheck // checked elsewhere
		for _, l := range links {
			is := l.opts
			if is.TTL <= opts.TTL || opts.Belief() == 0 && is.Belief() != 0 || opts.Belief() > 0 && (is.Belief() <= opts.Belief() || is.Belief() > 2*opts.Belief()) {
				t.Errorf("%+v: a node believes for %v of %v", opts, is.Belief(), is.TTL)
			}
		}
	}
}

// TestNodeOfAnotherFormat: a node that refuses this build is not merely down. Nothing is granted
// beside it, and the error says why; held locks stay.
func TestNodeOfAnotherFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := engine.CheckFormat("0")
		eng, links := newNodes(3).client(t, nil)
		links[1].refuse(other)
		if _, err := eng.Open(t.Context(), engine.SessionOptions{TTL: ttl}); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("opened beside a node of another format: %v", err)
		}
		links[1].refuse(nil)
		c := clientOf(t, eng, ttl)
		l, err := c.Mutex("r").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		links[1].refuse(other) // it is replaced by a server with another format
		links[1].server.forget(0)
		<-time.After(2 * ttl)
		if _, err := c.Mutex("other").TryLock(t.Context()); !errors.Is(err, engine.ErrUnsupported) || l.Err() != nil {
			t.Errorf("locked: %v; what is held: %v", err, l.Err())
		}
		links[1].refuse(nil)
		<-time.After(ttl)
		if _, err := c.Mutex("other").TryLock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestOwnerThatIsAClaim: the owner of a claim that was entered without an owner is that claim's id.
// That owner re-enters as long as a claim of it is there.
func TestOwnerThatIsAClaim(t *testing.T) {
	for _, opts := range []*redlockengine.Options{nil, {NoTokens: true}} {
		all := newNodes(3)
		eng, _ := all.client(t, opts)
		other, _ := all.client(t, opts)
		a, b := sessiontest.Open(t, eng, time.Minute), sessiontest.Open(t, other, time.Minute)
		first := claimOf(a, ".1")
		g, err := a.Enter(t.Context(), first, false)
		if err != nil {
			t.Fatal(err)
		}
		again := func(id string) {
			t.Helper()
			c := claimOf(a, id)
			c.Owner = first.Owner
			if same, err := a.Enter(t.Context(), c, false); err != nil || same != g {
				t.Fatalf("%s enters again: %v, %v, want %v", id, same, err, g)
			}
		}
		again(".2")
		leave(t, a, ".1")
		if _, err := b.Enter(t.Context(), claimOf(b, ".1"), false); !errors.Is(err, engine.ErrBusy) {
			t.Errorf("another, while the second holds: %v", err)
		}
		again(".3")
		leave(t, a, ".2")
		leave(t, a, ".3")
		enter(t, b, ".1", true)
	}
}
