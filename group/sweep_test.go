package group

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
)

// untold is a store that does not tell how long sessions have left.
type untold struct{ *memengine.Engine }

func (u untold) Show(ctx context.Context, name string) (engine.Resource, error) {
	r, err := u.Engine.Show(ctx, name)
	for i := range r.Claims {
		r.Claims[i].Left = engine.Unknown
	}
	return r, err
}

// TestSweepAsksByName: a list searches all keys of a Redis server. So a sweeper, and Members, ask for the locks of members by name, at most 16 at
// once. A living member is asked for when its session may have ended, where the store tells that. A dead member is gone in time all the same.
func TestSweepAsksByName(t *testing.T) {
	for name, tells := range map[string]bool{"the store tells": true, "the store does not tell": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { asksByName(t, tells) })
		})
	}
}

func asksByName(t *testing.T, tells bool) {
	const members = 50
	ttls := 10
	shared := memengine.New()
	var eng engine.Engine = shared
	if !tells {
		eng, ttls = untold{shared}, 1
	}
	doomed, store := faulty.New(eng), faulty.New(eng)
	var asking, most atomic.Int64
	store.Set(func(ctx context.Context, do func(context.Context) error) error {
		most.Store(max(most.Load(), asking.Add(1)))
		defer asking.Add(-1)
		<-time.After(time.Millisecond)
		return do(ctx)
	}, faulty.Show)
	store.Set(faulty.Fails, faulty.List)
	g := New(dial(t, store), "g")
	for i := range members {
		join(t, g, Member{ID: fmt.Sprint(i)})
	}
	dying := New(dial(t, doomed), "g")
	for i := range members {
		join(t, dying, Member{ID: fmt.Sprint("dying ", i)})
	}
	ttl := g.client.TTL()
	<-time.After(2 * ttl) // a sweeper is patient first
	before := len(store.Called(faulty.Show))
	<-time.After(time.Duration(ttls) * ttl)
	asked := float64(len(store.Called(faulty.Show))-before) / float64(2*members*ttls)
	t.Logf("each member is asked for %.1f times in a TTL, at most %d at once", asked, most.Load())
	if tells && asked > 2 || asked < 0.5 || most.Load() > 16 {
		t.Error("so often")
	}
	doomed.Cut()
	<-time.After(ttl + time.Second)
	list := newList(New(g.client, "g"))
	if _, err := list.read(t.Context(), true); err != nil || len(list.members(func(entry) bool { return true })) != members {
		t.Errorf("%d stay, %v", len(list.members(func(entry) bool { return true })), err)
	}
	if all, err := g.Members(t.Context()); err != nil || len(all) != members {
		t.Errorf("%d members, %v", len(all), err)
	}
	doomed.Heal()
}

// TestSweepsNobodyInGrace: a store restarts so fast that no request fails, keeps its values, and forgets its locks. Members cannot join again
// before the grace has ended, so a sweeper takes nobody off the list until a TTL after that.
func TestSweepsNobodyInGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Minute
		g := New(dial(t, graceful{memengine.New(), time.Now().Add(grace)}), "g")
		s := &sweeper{Group: g}
		if err := s.testify(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := g.changePage(t.Context(), pageOf("a"), func(p *pageValue) error {
			p.Members = []entry{{Member: Member{ID: "a", Weight: 1}, Lock: "a"}}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		r, ttl := &round{sweeper: s, list: newList(g)}, g.client.TTL()
		left := func() int {
			if err := r.sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			page, err := g.pages[pageOf("a")].Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			is, err := parsePage(page)
			if err != nil {
				t.Fatal(err)
			}
			return len(is.Members)
		}
		for end := time.Now().Add(grace + ttl/2); time.Now().Before(end); <-time.After(sweepEvery) {
			if left() != 1 {
				t.Fatal("swept")
			}
		}
		<-time.After(ttl)
		left() // which reads the page
		if left() != 0 {
			t.Error("not swept")
		}
	})
}
