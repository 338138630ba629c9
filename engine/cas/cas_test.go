package cas_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/cas"
	"github.com/pawl-go/pawl/enginetest/model"
)

// opener returns a function that opens engines on one store.
func opener(store cas.Store, clock bool) func(t *testing.T) engine.Engine {
	caps := engine.Caps{Name: "map", Failover: engine.FailoverNone, Processes: engine.ReachProcess, MinTTL: 100 * time.Millisecond}
	if clock {
		caps.Expiry = engine.ExpiryMonotonic
	}
	return func(t *testing.T) engine.Engine {
		e := cas.New(store, cas.Options{Caps: caps})
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		return e
	}
}

func TestAgainstQueue(t *testing.T) {
	model.Run(t, opener(cas.NewInMemory(false), false)(t), nil)
}

// TestOtherFormat: open, show, put, resize and evict refuse a store of another format, and the error names both. Get,
// List, ListValues and Watch read there without a look at the mark.
func TestOtherFormat(t *testing.T) {
	store := cas.NewInMemory(false)
	if _, err := store.Swap(t.Context(), "store", []byte(`{"format":"9"}`), 0); err != nil {
		t.Fatal(err)
	}
	e := opener(store, false)(t)
	refuses(t, e)
	if v, err := e.(engine.Values).Get(t.Context(), "value"); err != nil || v.Version != 0 {
		t.Errorf("put wrote %+v, %v", v, err)
	}
}

// TestPutMarksTheStore: values without a mark would be taken for those of any format.
func TestPutMarksTheStore(t *testing.T) {
	store := cas.NewInMemory(false)
	e := opener(store, false)(t)
	if _, err := e.(engine.Values).Put(t.Context(), "value", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if item, err := store.Load(t.Context(), "store"); err != nil || !strings.Contains(string(item.Data), `"format":"`+engine.Format()+`"`) {
		t.Errorf("the mark is %q, %v", item.Data, err)
	}
}

// refuses fails the test unless an engine refuses a store of format 9.
func refuses(t *testing.T, e engine.Engine) {
	t.Helper()
	_, opening := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
	_, showing := e.Show(t.Context(), "job")
	_, putting := e.(engine.Values).Put(t.Context(), "value", []byte("x"), 0)
	for verb, err := range map[string]error{
		"open": opening, "show": showing, "put": putting,
		"resize": e.(engine.Resizer).Resize(t.Context(), "job", 2), "evict": e.Evict(t.Context(), "job", "claim"),
	} {
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "format 9 ") || !strings.Contains(err.Error(), "format "+engine.Format()+":") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}
