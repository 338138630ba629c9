package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

var valueCases = []Case{
	{"a value changes if nobody else changed it", "read, then write: the lost update", compareAndSet, needs(engine.FeatureValues)},
	{"a value is any bytes", "binary data and sizes that a store folds or cuts", anyBytes, needs(engine.FeatureValues)},
	{"values are kept apart", "keys that a store folds or cuts; a lock and a value of one name are one key", keysApart, needs(engine.FeatureValues)},
	{"versions only grow", "a deleted and remade value is taken for the old one", versionsGrow, needs(engine.FeatureValues)},
	{"values are listed", "patterns in a prefix; deleted keys; locks among the values", valuesListed, needs(engine.FeatureValues)},
	{"a watch sees the change", "the watch starts after the change, and waits for ever", watchSees, needs(engine.FeatureValues)},
	{"counting with values", "optimistic locking that loses updates under contention", counting, needs(engine.FeatureValues)},
}

// freshCase is for stores of which a test can have an unused one.
var freshCase = Case{"a value may be the first thing in a store", "a program that only counts in values makes the store useless for all locks", valueFirst, needs(engine.FeatureValues)}

// valueFirst writes a value through an engine without a session. The store must then have all marks
// that sessions look for, or none.
func valueFirst(t *testing.T, h *Harness) {
	need(t, h.Fresh != nil, "Fresh", orSayWhy)
	open := h.Fresh(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	version, err := valuesOf(t, open(t)).Put(ctx, "first", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	p := h.partyOn(t, open(t), h.TTL, nil)
	if v := p.value("first"); v.Version != version || string(v.Data) != "1" {
		t.Errorf("the value is %+v, want version %d", v, version)
	}
	c := p.claim("first", mutex)
	p.hold(c)
	p.leave(c)
	p.put("first", []byte("2"), version)
}

func (p *party) put(key string, data []byte, version uint64) uint64 {
	p.t.Helper()
	v, err := valuesOf(p.t, p.engine).Put(p.ctx, key, data, version)
	if err != nil {
		p.t.Fatalf("put %q at %d: %v", key, version, err)
	}
	return v
}

func (p *party) value(key string) engine.Value {
	p.t.Helper()
	v, err := valuesOf(p.t, p.engine).Get(p.ctx, key)
	if err != nil {
		p.t.Fatalf("get %q: %v", key, err)
	}
	return v
}

func compareAndSet(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	const key = "cas/{1}"
	if v := a.value(key); v.Version != 0 || v.Data != nil {
		t.Fatalf("a value that was never written: %+v", v)
	}
	one := a.put(key, []byte("one"), 0)
	if _, err := valuesOf(b.t, b.engine).Put(b.ctx, key, []byte("x"), 0); !means(err, engine.ErrConflict) {
		t.Errorf("make what is there: %v", err)
	}
	two := b.put(key, []byte("two"), one)
	if _, err := valuesOf(a.t, a.engine).Put(a.ctx, key, []byte("x"), one); !means(err, engine.ErrConflict) {
		t.Errorf("write at an old version: %v", err)
	}
	if _, err := valuesOf(a.t, a.engine).Put(a.ctx, key, nil, one); !means(err, engine.ErrConflict) {
		t.Errorf("delete at an old version: %v", err)
	}
	if v := a.value(key); string(v.Data) != "two" || v.Version != two || two <= one {
		t.Errorf("value %+v, versions %d and %d", v, one, two)
	}
	a.put(key, nil, two)
}

func anyBytes(t *testing.T, h *Harness) {
	p := h.party(t)
	all := make([]byte, engine.MaxValue)
	for i := range all {
		all[i] = byte(i)
	}
	for i, data := range [][]byte{{}, {0}, []byte("\x1f\x00\xff'\""), all} {
		key := fmt.Sprintf("bytes %d", i)
		version := p.put(key, data, 0)
		v := p.value(key)
		if !bytes.Equal(v.Data, data) || v.Version != version {
			t.Errorf("%s: %d bytes at %d, want %d at %d", key, len(v.Data), v.Version, len(data), version)
		}
		w, err := valuesOf(p.t, p.engine).Watch(p.ctx, key, 0) // a replica that lags may show that there is nothing yet
		if err != nil || !bytes.Equal(w.Data, data) || w.Version != version {
			t.Errorf("%s: watched %d bytes at %d, %v", key, len(w.Data), w.Version, err)
		}
		if v.Data == nil || w.Data == nil {
			t.Errorf("%s: to put what was read would delete it", key)
		}
		p.put(key, nil, version)
	}
}

func keysApart(t *testing.T, h *Harness) {
	p := h.party(t)
	c := p.claim("a lock and a value", mutex)
	p.hold(c)
	versions := make(map[string]uint64)
	for _, name := range append(slices.Clone(names), c.Resource) {
		versions[name] = p.put(name, []byte(name), 0)
	}
	p.leave(c)
	for name, version := range versions {
		if v := p.value(name); string(v.Data) != name || v.Version != version {
			t.Errorf("%q: %q at %d, want version %d", name, v.Data, v.Version, version)
		}
		p.put(name, nil, version)
	}
}

func versionsGrow(t *testing.T, h *Harness) {
	p := h.party(t)
	last := uint64(0)
	for range 5 {
		version := p.put("grow", []byte("v"), 0)
		if version <= last {
			t.Fatalf("version %d after %d", version, last)
		}
		last = p.put("grow", []byte("w"), version)
		if gone := p.put("grow", nil, last); gone != 0 {
			t.Fatalf("version %d of a deleted value", gone)
		}
	}
}

func valuesListed(t *testing.T, h *Harness) {
	p := h.party(t)
	c := p.claim("listed/lock", mutex)
	p.hold(c)
	versions := make(map[string]uint64)
	for _, name := range append(slices.Clone(names), "", "*", "a", "b", "B", "[ab]", "%", "_") {
		key := "listed/" + name
		if len(key) > pawl.MaxName {
			continue
		}
		versions[key] = p.put(key, []byte{}, 0)
	}
	version := p.put("listed/gone", []byte("1"), 0)
	p.put("listed/gone", nil, version)
	p.put("listed", []byte("1"), 0)
	for _, prefix := range []string{"listed/", "listed/*", "listed/[", "listed/%", "listed/_", "listed/b", "listed/x", "listed//", "listed/" + names[0]} {
		var want []string
		for key := range versions {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		var got []string
		for key, err := range valuesOf(t, p.engine).ListValues(p.ctx, prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if key != "" {
				got = append(got, key)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("with prefix %q\n%q are listed,\n%q are there", prefix, got, want)
		}
	}
	for range valuesOf(t, p.engine).ListValues(p.ctx, "listed/") {
		break // a caller may have enough
	}
	dead, cancel := context.WithCancel(p.ctx)
	cancel()
	for key, err := range valuesOf(t, p.engine).ListValues(dead, "listed/") {
		if err == nil {
			t.Errorf("%q is listed with a context that has ended", key)
		}
	}
	p.leave(c)
	for key, version := range versions {
		p.put(key, nil, version)
	}
	p.put("listed", nil, p.value("listed").Version)
}

func watchSees(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	const key = "watched"
	watch := func(version uint64) <-chan engine.Value {
		got := make(chan engine.Value, 1)
		go func() {
			v, err := valuesOf(a.t, a.engine).Watch(a.ctx, key, version)
			if err != nil {
				t.Error(err)
			}
			got <- v
		}()
		return got
	}
	version := uint64(0)
	for _, text := range []string{"one", "two", ""} {
		got := watch(version)
		before := version
		var data []byte
		if text != "" {
			data = []byte(text)
		}
		version = b.put(key, data, before)
		if v := <-got; v.Version != version || string(v.Data) != text {
			t.Fatalf("watched %+v, want %q at %d", v, text, version)
		}
		if v := <-watch(before); v.Version != version {
			t.Fatalf("a watch from before the change: %+v, want version %d", v, version)
		}
	}
	ctx, cancel := context.WithCancel(a.ctx)
	cancel()
	if v, err := valuesOf(a.t, a.engine).Watch(ctx, key, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a watch that was cancelled: %+v, %v", v, err)
	}
}

func counting(t *testing.T, h *Harness) {
	const parties, rounds = 3, 15
	var wg sync.WaitGroup
	var last *party
	for range parties {
		p := h.party(t)
		last = p
		wg.Go(func() {
			for n := 0; n < rounds; {
				v, err := valuesOf(p.t, p.engine).Get(p.ctx, "count")
				if err != nil {
					t.Error(err)
					return
				}
				switch _, err := valuesOf(p.t, p.engine).Put(p.ctx, "count", append(v.Data, '.'), v.Version); {
				case err == nil:
					n++
				case !means(err, engine.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if v := last.value("count"); len(v.Data) != parties*rounds {
		t.Errorf("counted %d of %d", len(v.Data), parties*rounds)
	}
}
