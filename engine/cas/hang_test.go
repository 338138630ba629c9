package cas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// hangs is a Store in which some keys hang: requests to them have no answer, and writes take effect.
type hangs struct {
	*inMemory
	key           string // the prefix of keys that hang
	loads, writes atomic.Bool
}

func (h *hangs) wait(ctx context.Context, on *atomic.Bool, key string) error {
	if !on.Load() || !strings.HasPrefix(key, h.key) {
		return nil
	}
	<-ctx.Done()
	return engine.Unavailable("ask", ctx.Err())
}

func (h *hangs) Load(ctx context.Context, key string) (Item, error) {
	if err := h.wait(ctx, &h.loads, key); err != nil {
		return Item{}, err
	}
	return h.inMemory.Load(ctx, key)
}

func (h *hangs) Swap(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	written, err := h.inMemory.Swap(ctx, key, data, version)
	return written, errors.Join(err, h.wait(ctx, &h.writes, key))
}

// TestNamesThatHang: a session is renewed in time while more names hang than are read at once. The late claims
// of the session are found when the names answer again.
func TestNamesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const names = loads + 4
		store := &hangs{inMemory: newInMemory(true), key: resourceKey + "hangs/"}
		var found []string
		eng := newEngine(t, store, Options{})
		s, err := eng.Open(t.Context(), engine.SessionOptions{TTL: ttl, Found: func(_, claim string) { found = append(found, claim) }})
		if err != nil {
			t.Fatal(err)
		}
		claim := func(name, id string) *engine.Claim {
			return &engine.Claim{Spec: engine.Spec{Kind: engine.KindLock, Capacity: 1}, Resource: name, ID: id, Owner: id, Weight: 1}
		}
		held := claim("held", "a")
		if g, err := s.Enter(t.Context(), held, false); err != nil || !g.Held() {
			t.Fatal(g, err)
		}
		store.writes.Store(true)
		var late []string
		for i := range names {
			id := fmt.Sprint("late", i)
			late = append(late, id)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := s.Enter(ctx, claim(fmt.Sprint("hangs/", i), id), false); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("a claim of a name that hangs: %v", err)
			}
			cancel()
		}
		store.loads.Store(true)
		for range 4 { // for longer than the TTL
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), ttl/2)
			if gone, err := s.Renew(ctx, []*engine.Claim{held}); err != nil || len(gone) > 0 {
				t.Errorf("a renewal beside names that hang: %v, %v", gone, err)
			}
			cancel()
			if took := time.Since(began); took > ttl/6 {
				t.Errorf("a renewal beside names that hang took %v", took)
			}
			<-time.After(ttl / 3)
		}
		store.loads.Store(false)
		store.writes.Store(false)
		if gone, err := s.Renew(t.Context(), []*engine.Claim{held}); err != nil || len(gone) > 0 {
			t.Error(gone, err)
		}
		slices.Sort(late)
		if slices.Sort(found); !slices.Equal(found, late) {
			t.Errorf("the claims that were found are %q, want %q", found, late)
		}
	})
}
