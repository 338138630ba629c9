package etcdengine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/lines"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

func TestValues(t *testing.T) {
	e := New(newClient(t), nil)
	key := "value/" + rand.Text()
	put := func(data []byte, version uint64, want error) uint64 {
		t.Helper()
		got, err := e.Put(ctx, key, data, version)
		if !errors.Is(err, want) {
			t.Fatalf("put at %d: %d, %v; want %v", version, got, err, want)
		}
		return got
	}
	if v, err := e.Get(ctx, key); err != nil || v.Version != 0 || v.Data != nil {
		t.Fatalf("got %+v, %v", v, err)
	}
	put([]byte("x"), 7, engine.ErrConflict)
	one := put([]byte("one"), 0, nil)
	put([]byte("again"), 0, engine.ErrConflict)
	two := put([]byte{}, one, nil)
	if v, err := e.Get(ctx, key); err != nil || v.Version != two || v.Data == nil || len(v.Data) > 0 {
		t.Fatalf("got %+v, %v", v, err)
	}
	seen := make(chan engine.Value)
	go func() {
		v, err := e.Watch(sessiontest.Soon(t), key, two)
		if err != nil {
			t.Error(err)
		}
		seen <- v
	}()
	if put(nil, two, nil) != 0 {
		t.Error("a deleted value has a version")
	}
	if v := <-seen; v.Version != 0 {
		t.Errorf("watched %+v", v)
	}
	if three := put([]byte("three"), 0, nil); three <= two {
		t.Errorf("version %d after %d", three, two)
	}
	put(nil, 1, engine.ErrConflict)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := e.Watch(ended, key, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("watch: %v", err)
	}
}

func TestListAndShow(t *testing.T) {
	e := New(newClient(t), &Options{Prefix: "other/"})
	s := sessiontest.Open(t, e, 10*time.Second)
	names := []string{"a", "a/b", "a/b/c", "a%2Fb", "ab", "ä ö", "../x", "z?*["}
	for i, name := range names {
		for range i%3 + 1 {
			c := sessiontest.Claim(t, five, 1, "")
			c.Resource = name
			sessiontest.Hold(t, s, c)
		}
	}
	for prefix, want := range map[string]int{"": 8, "a": 5, "a/": 2, "a%": 1, "ä": 1, "..": 1, "q": 0} {
		got := make(map[string]bool)
		for name, err := range e.List(ctx, prefix) {
			if err != nil || got[name] {
				t.Errorf("list %q: %q, %v", prefix, name, err)
			}
			got[name] = true
		}
		if len(got) != want {
			t.Errorf("list %q: %v, want %d", prefix, got, want)
		}
	}
	r, err := e.Show(ctx, "a/b/c")
	if err != nil || r.Name != "a/b/c" || r.Spec != five || len(r.Claims) != 3 {
		t.Fatalf("show: %+v, %v", r, err)
	}
	c := r.Claims[0]
	if c.Session != s.ID() || c.Token == 0 || c.Weight != 1 || c.Owner != c.ID || c.Label != "label of "+c.ID || c.Age >= 0 {
		t.Errorf("show: %+v", c)
	}
	if r, err := e.Show(ctx, "nobody"); err != nil || len(r.Claims) != 0 {
		t.Errorf("show: %+v, %v", r, err)
	}
	for name, err := range e.List(ctx, "") {
		_, _ = name, err
		break // must not hang or go on
	}
}

// More names and more claims of one than fit in a page.
func TestListPages(t *testing.T) {
	e := New(newClient(t), &Options{Prefix: "pages/"})
	s := sessiontest.Open(t, e, time.Minute).(*session)
	var ops []clientv3.Op
	put := func(name string, i int) {
		c := stored{Note: lines.Note{ID: fmt.Sprint(i), Session: s.id}, Weight: 1}
		key := s.place(&engine.Claim{Spec: five, Resource: name, ID: c.ID}, i).queue
		ops = append(ops, s.ops(&place{}, &move{put: c, key: key}, nil)...)
		if len(ops) == 100 {
			if _, err := e.commit(ctx, "put", nil, ops, nil); err != nil {
				t.Fatal(err)
			}
			ops = nil
		}
	}
	for i := range listPage + 500 {
		put("many", i)
		put(fmt.Sprintf("name %d", i), i)
	}
	n := 0
	for _, err := range e.List(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != listPage+501 {
		t.Errorf("%d names", n)
	}
}
