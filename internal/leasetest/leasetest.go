// Package leasetest holds the shared tests of lease mode on database servers. One client holds a
// lock and another waits for it. Something happens, and then the lock is handed over all the same.
package leasetest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TTL is long compared with every wait of these tests. So a short wait did not wait for the end of
// a TTL.
const TTL = 10 * time.Second

// name is not ASCII; a connection must not change it.
const name = "名"

// Opened returns an engine, unless it could not be opened. The end of the test
// closes it.
func Opened(t testing.TB, e engine.Engine, err error) engine.Engine {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Pair is two clients that want the same lock.
type Pair struct {
	holder, waiter *pawl.Client
	engine         engine.Engine
}

// NewPair returns a client of each engine.
func NewPair(t testing.TB, holder, waiter engine.Engine) Pair {
	t.Helper()
	client := func(e engine.Engine) *pawl.Client {
		t.Helper()
		c, err := pawl.New(t.Context(), e, &pawl.Options{TTL: TTL})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(context.Background()) }) //nolint:errcheck // its store may be away by then
		return c
	}
	return Pair{client(holder), client(waiter), holder}
}

// Lock lets one client lock and the other wait, and returns when it waits. next returns the result
// of the waiter.
func (p Pair) Lock(t testing.TB) (held *pawl.Lease, next func() *pawl.Lease) {
	t.Helper()
	held, err := p.holder.Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *pawl.Lease, 1)
	go func() {
		l, err := p.waiter.Mutex(name).Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	sessiontest.Until(t, "it waits", func() bool {
		r, err := p.engine.Show(t.Context(), name)
		return err == nil && len(r.Claims) == 2
	})
	return held, func() *pawl.Lease {
		t.Helper()
		l := <-got
		if l == nil {
			t.FailNow()
		}
		return l
	}
}

// HandsOver unlocks, and the next client has the lock long before the end of a TTL.
func HandsOver(t testing.TB, held *pawl.Lease, next func() *pawl.Lease) {
	t.Helper()
	if err := held.Err(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := next()
	if took := time.Since(start); took > TTL/4 {
		t.Errorf("handed over after %v", took)
	}
	if l.Token() <= held.Token() {
		t.Errorf("token %v after %v", l.Token(), held.Token())
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// Complete uses everything: locks, between two engines, values and names.
func Complete(t testing.TB, a, b engine.Engine) {
	t.Helper()
	held, next := NewPair(t, a, b).Lock(t)
	HandsOver(t, held, next)
	values := a.(engine.Values)
	if v, err := values.Put(t.Context(), "value", []byte("x"), 0); err != nil || v == 0 {
		t.Errorf("put: %v", err)
	}
	if v, err := values.Get(t.Context(), "value"); err != nil || string(v.Data) != "x" {
		t.Errorf("get: %+v, %v", v, err)
	}
	for name, err := range a.List(t.Context(), "") {
		t.Errorf("%q, %v", name, err)
	}
}

// Documented finds each line of the rights, which a test is about to grant, in the documentation of
// the package.
func Documented(t testing.TB, file, rights string) {
	t.Helper()
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.TrimSpace(rights)) {
		if !strings.Contains(string(doc), strings.TrimSpace(line)) {
			t.Errorf("the package documentation does not say %s", line)
		}
	}
}
