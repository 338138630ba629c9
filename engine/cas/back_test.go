package cas

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// copied returns a function that puts the store back as it is now, and begins another life.
func (f *forgetting) copied() (back func(life string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	items, last := maps.Clone(f.items), f.last
	return func(life string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.items, f.last, f.life = maps.Clone(items), last, life
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// begun returns a store without a grace, far away.
func begun(t *testing.T, clock bool) *forgetting {
	t.Helper()
	store := &forgetting{newInMemory(clock).Far(), "first"}
	if err := newEngine(t, store, forgets).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store
}

// TestReleaseInTheGrace: after a restart that lost nothing, a release takes as many writes as before.
func TestReleaseInTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := begun(t, true)
		s := openOn(t, newEngine(t, store, forgets))
		c := claimOf(s, "x", 1)
		mustHold(t, s, c)
		store.copied()("second")
		before := store.writes
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Leave(ctx, "x", c.ID); err != nil {
			t.Error(err)
		}
		if n := store.writes - before; n > 2 {
			t.Errorf("%d writes, and the mark of the new life and the release are 2", n)
		}
		if item, err := store.Load(t.Context(), resourceKey+"x"); err != nil || item.Version != 0 {
			t.Errorf("the record stays: %+v, %v", item, err)
		}
	})
}

// TestOwnerInTheGrace: a store that came back with a released grant has forgotten the next holder. The owner of the released
// grant shares that grant with no new claim. An owner whose client believes its grant does.
func TestOwnerInTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := begun(t, true)
		s, other := openOn(t, newEngine(t, store, forgets)), openOn(t, newEngine(t, store, forgets))
		owned := func(name string, n int) *engine.Claim {
			c := claimOf(s, name, n)
			c.Owner = "owner"
			return c
		}
		believed := mustHold(t, s, owned("believed", 1))
		released := owned("x", 2)
		mustHold(t, s, released)
		back := store.copied()
		if err := s.Leave(t.Context(), "x", released.ID); err != nil {
			t.Fatal(err)
		}
		last := mustHold(t, other, claimOf(other, "x", 1))
		back("second")
		again := owned("x", 3)
		if g, err := s.Enter(t.Context(), again, true); !errors.Is(err, engine.ErrBusy) && (err != nil || g.Held()) {
			t.Errorf("a new claim of the owner beside a holder with the token %v: %+v, %v", last, g, err)
		}
		if g, err := s.Enter(t.Context(), owned("believed", 4), false); err != nil || g.Token != believed {
			t.Errorf("a claim beside the token %v that is believed: %+v, %v", believed, g, err)
		}
		r, err := s.(*session).engine.Show(t.Context(), "believed")
		if err != nil || len(r.Claims) != 2 || r.Claims[0].Owner != "owner" || r.Claims[1].Owner != "owner" {
			t.Errorf("%+v, %v", r.Claims, err)
		}
	})
}

// TestUpgradeInTheGrace: an owner wants more than it holds, by another client. In a grace the claim is refused, also if it may wait: two
// such claims would wait for each other.
func TestUpgradeInTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := begun(t, true)
		reads, writes := openOn(t, newEngine(t, store, forgets)), openOn(t, newEngine(t, store, forgets))
		reader := claimOf(reads, "x", 1)
		reader.Owner, reader.Weight = "owner", 1
		mustHold(t, reads, reader)
		store.copied()("second")
		for i, wait := range []bool{false, true} {
			writer := claimOf(writes, "x", i)
			writer.Owner = "owner"
			if g, err := writes.Enter(t.Context(), writer, wait); !errors.Is(err, engine.ErrGrace) {
				t.Errorf("a claim that may wait: %v; %+v, %v", wait, g, err)
			}
		}
		if r, err := writes.(*session).engine.Show(t.Context(), "x"); err != nil || len(r.Claims) != 1 || r.Claims[0].Owner != "owner" {
			t.Errorf("%+v, %v", r.Claims, err)
		}
	})
}

// TestReleaseInDoubtInTheGrace: a client cannot know whether a release arrived whose reply was lost. So a grant that it shares in the
// grace says so.
func TestReleaseInDoubtInTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := begun(t, true)
		losing := &losesWrites{forgetting: store}
		s, other := openOn(t, newEngine(t, losing, forgets)), openOn(t, newEngine(t, store, forgets))
		released, next := claimOf(s, "x", 1), claimOf(s, "x", 2)
		released.Owner, next.Owner = "owner", "owner"
		mustHold(t, s, released)
		back := store.copied()
		losing.now = true
		if err := s.Leave(t.Context(), "x", released.ID); !errors.Is(err, engine.ErrUnavailable) {
			t.Fatal("a lost reply:", err)
		}
		losing.now = false
		mustHold(t, other, claimOf(other, "x", 1))
		back("second")
		if g, err := s.Enter(t.Context(), next, true); err != nil || g.Held() && !g.Grace.On() {
			t.Errorf("beside the next holder: %+v, %v; want the grace with a shared grant", g, err)
		}
	})
}

// losesWrites is a store that loses the replies of writes.
type losesWrites struct {
	*forgetting
	now bool
}

func (l *losesWrites) Swap(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	version, err := l.forgetting.Swap(ctx, key, data, version)
	return version, l.lost(err)
}

func (l *losesWrites) Delete(ctx context.Context, key string, version uint64) error {
	return l.lost(l.forgetting.Delete(ctx, key, version))
}

func (l *losesWrites) lost(err error) error {
	if l.now && err == nil {
		return engine.Unavailable("write", errors.New("the reply was lost"))
	}
	return err
}

// TestWatchOfAnOlderValue: a value that came back at a smaller version is another value.
func TestWatchOfAnOlderValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := begun(t, true)
		e := newEngine(t, store, forgets)
		version := uint64(0)
		var back func(string)
		for i := range 3 {
			var err error
			if version, err = e.Put(t.Context(), "v", []byte(fmt.Sprint(i)), version); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				back = store.copied()
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		got := make(chan engine.Value, 1)
		go func() {
			v, err := e.Watch(ctx, "v", version)
			if err != nil {
				t.Error(err)
			}
			got <- v
		}()
		synctest.Wait()
		back("second")
		if v := <-got; string(v.Data) != "0" || v.Version >= version {
			t.Errorf("after version %d: %+v", version, v)
		}
	})
}

// TestSeenBeforeARestart: a store that lost heartbeats gives their versions to later heartbeats. A client that observed the version
// before does not take the session for dead.
func TestSeenBeforeARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := begun(t, false)
		s, observer := openOn(t, newEngine(t, store, forgets)), openOn(t, newEngine(t, store, forgets))
		c := claimOf(s, "x", 1)
		mustHold(t, s, c)
		renew := func() {
			t.Helper()
			if _, err := s.Renew(t.Context(), []*engine.Claim{c}); err != nil {
				t.Fatal(err)
			}
		}
		observe := func() {
			t.Helper()
			if _, err := try(t, observer, claimOf(observer, "x", 1)); !errors.Is(err, engine.ErrBusy) && !errors.Is(err, engine.ErrGrace) {
				t.Fatal(err)
			}
		}
		back := store.copied()
		renew()
		seen := s.(*session).version
		observe()
		<-time.After(ttl / 2)
		renew()
		renew()
		<-time.After(ttl / 3)
		back("first") // a cluster has one life
		renew()
		if is := s.(*session).version; is != seen {
			t.Fatalf("version %d, and %d was seen", is, seen)
		}
		<-time.After(ttl / 4)
		observe()
		renew()
	})
}

// small is a store that refuses items above a size.
type small struct {
	*inMemory
	most int
}

func (s *small) Swap(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	if len(data) > s.most {
		return 0, engine.Unavailable("swap", errors.New("the item is too large"))
	}
	return s.inMemory.Swap(ctx, key, data, version)
}

// TestAFullNameIsHandedOver: a name with as many waiters as fit can be handed to all of them, and each can leave.
func TestAFullNameIsHandedOver(t *testing.T) {
	store := &small{newInMemory(false), engine.MaxValue}
	store.last = 1 << 40 // so that tokens are long
	e := newEngine(t, store, Options{MaxData: engine.MaxValue})
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Hour}) // nothing renews the session, and a busy machine takes its time
	if err != nil {
		t.Fatal(err)
	}
	writer := claimOf(s, "x", 0)
	mustHold(t, s, writer)
	n := 0
	for err == nil && n < MaxClaims {
		n++
		c := claimOf(s, "x", n)
		c.Weight = 1
		_, err = s.Enter(t.Context(), c, true)
	}
	if !errors.Is(err, engine.ErrUnsupported) {
		t.Fatalf("%d readers wait: %v", n, err)
	}
	for i := range n {
		if err := s.Leave(t.Context(), "x", claimOf(s, "x", i).ID); err != nil {
			t.Fatalf("claim %d of %d leaves: %v", i, n, err)
		}
	}
}
