package group

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
)

// replace puts a newer member of the same ID into its page, and does not break the lock of the older member.
func replace(t *testing.T, g *Group, id string) {
	t.Helper()
	newer := entry{Member: Member{ID: id, Weight: 1, Token: 1 << 60}, Lock: "another"}
	if err := g.changePage(t.Context(), pageOf(id), func(p *pageValue) error { p.Members = []entry{newer}; return nil }); err != nil {
		t.Fatal(err)
	}
}

// evict takes the lock of a member away.
func evict(t *testing.T, eng engine.Engine, m *Membership) {
	t.Helper()
	is, err := eng.Show(t.Context(), m.lease.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := eng.Evict(t.Context(), m.lease.Name(), is.Claims[0].ID); err != nil {
		t.Fatal(err)
	}
}

// leaves leaves no goroutine behind.
func leaves(ctx context.Context, t *testing.T, m *Membership) {
	t.Helper()
	m.Leave(ctx) //nolint:errcheck // only its time counts
	select {
	case <-m.done:
	default:
		t.Error("the sweeper goes on")
	}
}

// hangs are calls on a store that hangs when it has heard a part of them. The member of ID a has joined.
var hangs = map[string]func(*testing.T, *faulty.Store, *Membership) func(context.Context){
	"join": func(_ *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		store.Set(faulty.Hangs, faulty.Get, faulty.Put, faulty.Leave)
		return func(ctx context.Context) { m.group.Join(ctx, Member{ID: "b"}) } //nolint:errcheck // only its time counts
	},
	"leave": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		store.Set(faulty.Hangs, faulty.Get, faulty.Put, faulty.Leave)
		return func(ctx context.Context) { leaves(ctx, t, m) }
	},
	"leave when replaced": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		replace(t, m.group, "a")
		store.Set(faulty.Hangs, faulty.Leave)
		<-time.After(m.group.client.TTL()) // it looks then
		synctest.Wait()
		return func(ctx context.Context) { leaves(ctx, t, m) }
	},
	"leave while it joins again": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		store.Set(faulty.Hangs, faulty.Enter, faulty.Leave)
		evict(t, store.Engine, m)
		<-m.lease.Context().Done()
		synctest.Wait()
		return func(ctx context.Context) { leaves(ctx, t, m) }
	},
	"watch while the last member leaves": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		store.Set(faulty.Hangs, faulty.Leave)
		go m.Leave(t.Context()) //nolint:errcheck // it hangs
		synctest.Wait()
		return func(ctx context.Context) {
			for range m.group.Watch(ctx) {
				return
			}
			t.Error("it yields nothing")
		}
	},
	"update while it looks": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		store.Set(faulty.Hangs, faulty.Get)
		<-time.After(m.group.client.TTL())
		synctest.Wait()
		return func(ctx context.Context) {
			err := m.Update(ctx, Member{Weight: 7})
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, pawl.ErrUnavailable) || m.Member().Weight != 1 || m.Err() != nil {
				t.Errorf("it may be made: %v, %v, %v", err, m.Member(), m.Err())
			}
		}
	},
	"update after its ctx": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		store.Set(faulty.Hangs, faulty.Get)
		return func(ctx context.Context) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			for weight := 2; weight < 22; weight++ {
				if err := m.Update(ctx, Member{Weight: weight}); !errors.Is(err, pawl.ErrUnavailable) || m.Member().Weight != weight {
					t.Errorf("it is never made: %v, %v", err, m.Member())
				}
			}
		}
	},
	"leave while it changes": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		store.Set(faulty.Hangs, faulty.Get, faulty.Leave)
		go m.Update(t.Context(), Member{Weight: 7}) //nolint:errcheck // it hangs
		synctest.Wait()
		return func(ctx context.Context) { leaves(ctx, t, m) }
	},
	"watch when its turn begins": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		if err := m.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, other := range []string{"/1", "/2"} { // withdrawn when the first lock is granted
			store.Set(faulty.Hangs, faulty.Enter+" "+m.group.sweeps.Mutex(m.group.name+other).Name())
		}
		store.Set(faulty.Hangs, faulty.Leave)
		return func(ctx context.Context) {
			for range m.group.Watch(ctx) { //nolint:revive // only its time counts
			}
		}
	},
	"watch": func(t *testing.T, store *faulty.Store, m *Membership) func(context.Context) {
		if err := m.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) {
			for range m.group.Watch(ctx) { //nolint:revive // only its time counts
				<-time.After(10 * time.Millisecond) // so that its client sweeps
				store.Set(faulty.Hangs, faulty.Get, faulty.Put, faulty.Leave)
			}
		}
	},
}

// TestCallsEndWithTheirContext: on a store that hangs each call returns within 100 ms of the end of its ctx.
func TestCallsEndWithTheirContext(t *testing.T) {
	for name, prepare := range hangs {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := faulty.New(memengine.New())
				client, err := pawl.New(t.Context(), store, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close(context.Background()) //nolint:errcheck // the test is over
				m, err := New(client, "g").Join(t.Context(), Member{ID: "a"})
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // its client sweeps
				call := prepare(t, store, m)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				call(ctx)
				if took := time.Since(start); took > 150*time.Millisecond {
					t.Errorf("took %v", took)
				}
				store.Heal()
				if err := m.Leave(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestLeaveDuringRejoin: a member that lost its lock leaves while it joins again. The new entry is in the page already, and goes with the old entry.
func TestLeaveDuringRejoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		store := faulty.New(eng)
		client, err := pawl.New(t.Context(), store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(context.Background()) //nolint:errcheck // the test is over
		g := New(client, "g")
		m, err := g.Join(t.Context(), Member{ID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		store.Set(faulty.First(1, nil, faulty.RepliesLate(time.Second)), faulty.Put) // after the token
		lock := m.lease.Name()
		evict(t, eng, m)
		<-time.After(500 * time.Millisecond)
		list := newList(g)
		if _, err := list.read(t.Context(), true); err != nil || len(list.entries[pageOf("a")]) != 1 || list.entries[pageOf("a")][0].Lock == lock {
			t.Fatalf("it has not joined again: %v, %v", list.entries, err)
		}
		store.Heal()
		if err := m.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := list.read(t.Context(), true); err != nil || len(list.entries[pageOf("a")]) != 0 {
			t.Errorf("it stays: %v, %v", list.entries, err)
		}
	})
}
