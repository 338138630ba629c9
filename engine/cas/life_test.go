package cas

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

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
	} {
		if !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("%s in the third life: %v", verb, err)
		}
	}
}
