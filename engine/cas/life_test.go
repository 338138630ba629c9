package cas

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// counting is a Store with lives that counts how often the mark is read.
type counting struct {
	*forgetting
	marks atomic.Int64
}

func newCounting() *counting { return &counting{forgetting: &forgetting{newInMemory(false), "first"}} }

func (c *counting) Load(ctx context.Context, key string) (Item, error) {
	if key == storeKey {
		c.marks.Add(1)
	}
	return c.forgetting.Load(ctx, key)
}

// reads fails the test unless calls read the mark n times.
func (c *counting) reads(t *testing.T, n int64, what string, calls func()) {
	t.Helper()
	before := c.marks.Load()
	calls()
	if is := c.marks.Load() - before; is != n {
		t.Errorf("%s read the mark %d times, want %d", what, is, n)
	}
}

var forgets = Options{Caps: engine.Caps{Forgets: true}}

func graceOf(t *testing.T, e *Engine) engine.Grace {
	t.Helper()
	r, err := e.Show(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	return r.Grace
}

// TestGraceOfAnIdleSession: the grace begins when a session opens, and the heartbeats end it. So the grace ends also
// while nobody takes a lock.
func TestGraceOfAnIdleSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCounting()
		e, operator := newEngine(t, store, forgets), newEngine(t, store, forgets)
		alive(t, openOn(t, e))
		<-time.After(ttl / 2)
		if g := graceOf(t, e); g.Left != ttl/2 || g.Age != engine.Unknown {
			t.Errorf("in the middle of the grace: %+v", g)
		}
		if g := graceOf(t, operator); !g.On() {
			t.Error("another client tells of no grace")
		}
		<-time.After(ttl/2 + ttl/3 + time.Second)
		if g := graceOf(t, operator); g.On() {
			t.Errorf("after the TTL and a heartbeat another client tells of %+v", g)
		}
		store.reads(t, 0, "an operator that has seen the end", func() { graceOf(t, operator) })
	})
}

// TestGraceIsOverWithoutHeartbeats: the store shows no grace as soon as a claim would be granted, although
// nobody has marked the end yet.
func TestGraceIsOverWithoutHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, newCounting(), forgets)
		s := openOn(t, e)
		<-time.After(ttl)
		if g := graceOf(t, e); g.On() {
			t.Errorf("%+v", g)
		}
		mustHold(t, s, claimOf(s, "x", 1))
	})
}

// TestGraceThatNobodyBegan: as long as no client has a session, the rest of the grace does not shrink.
func TestGraceThatNobodyBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, newCounting(), forgets)
		first := graceOf(t, e)
		<-time.After(time.Hour)
		if g := graceOf(t, e); g != first || !g.On() {
			t.Errorf("%+v, and an hour later %+v", first, g)
		}
	})
}

// TestGraceOfTheLongestBelief: a store that forgot its last writes still knows for how long holders may trust their
// locks. A client with a short TTL does not end the grace before that time.
func TestGraceOfTheLongestBelief(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const longest = 6 * ttl
		store := newCounting()
		e := newEngine(t, store, forgets)
		if err := e.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, opts := range []engine.SessionOptions{{TTL: longest + time.Second, Delay: time.Second}, {TTL: ttl}} {
			if _, err := e.Open(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
		}
		mark, err := store.Load(t.Context(), storeKey)
		if err != nil {
			t.Fatal(err)
		}
		store.forget("second")
		if _, err := store.Swap(t.Context(), storeKey, mark.Data, 0); err != nil {
			t.Fatal(err)
		}

		if g := graceOf(t, newEngine(t, store, forgets)); g.Left != longest {
			t.Errorf("an operator is told of %v", g.Left)
		}
		s := openOn(t, newEngine(t, store, forgets))
		alive(t, s)
		for _, passed := range []time.Duration{0, ttl, longest - ttl - time.Second} {
			<-time.After(passed)
			var grace *engine.GraceError
			if _, err := try(t, s, claimOf(s, "x", 1)); !errors.As(err, &grace) {
				t.Fatalf("%v later a try returned %v", passed, err)
			}
		}
		<-time.After(time.Second)
		mustHold(t, s, claimOf(s, "x", 2))
	})
}

// TestLookAfterTheGrace: a client that comes after the grace reads the mark once.
func TestLookAfterTheGrace(t *testing.T) {
	store := newCounting()
	if err := newEngine(t, store, forgets).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, store, forgets)
	store.reads(t, 1, "an operator", func() { graceOf(t, e); graceOf(t, e) })
	e = newEngine(t, store, forgets)
	store.reads(t, 1, "a holder", func() {
		s := openOn(t, e)
		mustHold(t, s, claimOf(s, "x", 1))
		graceOf(t, e)
	})
}

// TestFormatOfEachLife: what a client knows of the format ends with the life of the store.
func TestFormatOfEachLife(t *testing.T) {
	store := newCounting()
	e := newEngine(t, store, forgets)
	put := func() error {
		_, err := e.Put(t.Context(), "value", []byte("x"), 0)
		return err
	}
	marked := func() bool {
		item, err := store.forgetting.Load(t.Context(), storeKey)
		return err == nil && strings.Contains(string(item.Data), `"format":"`+engine.Format()+`"`)
	}
	if err := put(); err != nil || !marked() {
		t.Fatal(err)
	}
	store.reads(t, 0, "a later put", func() { put() }) //nolint:errcheck // the value is there already
	store.forget("second")
	if err := put(); err != nil || !marked() {
		t.Errorf("in the second life: %v, and there is a mark: %v", err, marked())
	}
	store.forget("third")
	if _, err := store.Swap(t.Context(), storeKey, []byte(`{"format":"9"}`), 0); err != nil {
		t.Fatal(err)
	}
	_, showing := e.Show(t.Context(), "job")
	for verb, err := range map[string]error{
		"put": put(), "show": showing, "resize": e.Resize(t.Context(), "job", 2), "evict": e.Evict(t.Context(), "job", "claim"),
		"init": e.Init(t.Context()),
	} {
		if !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("%s in the third life: %v", verb, err)
		}
	}
}

// TestInitAfterValues: a store that has values only is still new to locks. A store that has had a session is not.
func TestInitAfterValues(t *testing.T) {
	store := newCounting()
	e := newEngine(t, store, forgets)
	if _, err := e.Put(t.Context(), "value", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := e.Init(t.Context()); err != nil {
		t.Error(err)
	}
	s := openOn(t, e)
	mustHold(t, s, claimOf(s, "x", 1))

	used := newCounting()
	e = newEngine(t, used, forgets)
	openOn(t, e)
	if err := e.Init(t.Context()); !errors.Is(err, engine.ErrUsed) {
		t.Errorf("after a session: %v", err)
	}
}
