package lbprocesstest

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

const (
	ttl  = 3 * time.Second
	step = 50 * time.Millisecond
)

// fact is noted at each step.
type fact func(b *books, at time.Duration)

func never(*books, time.Duration) {}

func sweeping(labels ...string) fact {
	return func(b *books, _ time.Duration) { b.swept(web, labels) }
}

// cases are requests to A, which is dead from the start.
var cases = []struct {
	name string
	last time.Duration // request, after the death
	is   fact
	late bool
}{
	{"in time", ttl + 900*time.Millisecond, never, false},
	{"late", ttl + 1100*time.Millisecond, never, true},
	{"a sweeper lives", ttl + 1100*time.Millisecond, sweeping("A", "B"), true},
	{"nobody is a sweeper", ttl + 1100*time.Millisecond, sweeping(), true},
	{"all sweepers are dead", ttl + 3*time.Second, sweeping("A"), false},
	{"a sweeper lives again", ttl + 3*time.Second, func(b *books, at time.Duration) {
		if at < ttl+1500*time.Millisecond {
			b.swept(web, []string{"A"})
		}
	}, true},
	{"the sweepers of another group are dead", ttl + 1100*time.Millisecond, func(b *books, _ time.Duration) { b.swept(rpc, []string{"A"}) }, true},
	{"the sweeper had no answer", ttl + 3*time.Second, func(b *books, at time.Duration) {
		if at < ttl {
			b.silent("B")
		}
		b.swept(web, []string{"B"})
	}, false},
	{"the sweeper had no answer long ago", 2*ttl + 1100*time.Millisecond, func(b *books, at time.Duration) {
		if at < ttl/2 {
			b.silent("B")
		}
		b.swept(web, []string{"B"})
	}, true},
	{"another server had no answer", ttl + 1100*time.Millisecond, func(b *books, _ time.Duration) {
		b.silent("C")
		b.swept(web, []string{"B"})
	}, true},
	{"the balancers had no answer", ttl + 3*time.Second, func(b *books, _ time.Duration) { b.silent(watcher) }, false},
	{"the balancers had an answer a second ago", ttl + 3*time.Second, func(b *books, at time.Duration) {
		if at < ttl+1500*time.Millisecond {
			b.silent(watcher)
		}
	}, true},
	{"the store has the session", ttl + 3*time.Second, func(b *books, at time.Duration) { b.alive(map[string]bool{"A": at < ttl+2500*time.Millisecond}, 0) }, false},
	{"the store had the session", ttl + 3*time.Second, func(b *books, at time.Duration) { b.alive(map[string]bool{"A": at < ttl+1500*time.Millisecond}, 0) }, true},
	{"lists are slow", ttl + 2*time.Second, func(b *books, _ time.Duration) { b.alive(nil, 200*time.Millisecond) }, false},
	{"a list is slow when the server should be gone", ttl + 4*time.Second, func(b *books, at time.Duration) {
		took := time.Duration(0)
		if at > ttl+3*time.Second {
			took = 500 * time.Millisecond
		}
		b.alive(nil, took)
	}, true},
	{"lists are not slow enough", ttl + 2*time.Second, func(b *books, _ time.Duration) { b.alive(nil, 100*time.Millisecond) }, true},
}

// TestBooks: the books find a request late, unless they have a fact that excuses the delay.
func TestBooks(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBooks(ttl)
				b.died("A")
				for at := time.Duration(0); at < c.last; at += step {
					time.Sleep(step)
					c.is(b, at)
				}
				b.sent(strict, "A", time.Now())
				if v := b.judge(strict); len(v.late) > 0 != c.late {
					t.Errorf("the books find %q", v.late)
				}
			})
		})
	}
}

// TestFailures: a request that fails has an excuse only if a server was listed that should not be any more.
func TestFailures(t *testing.T) {
	for dead, want := range map[time.Duration]int{ttl + 900*time.Millisecond: 0, ttl + 1100*time.Millisecond: 1} {
		synctest.Test(t, func(t *testing.T) {
			b := newBooks(ttl)
			b.died("A")
			time.Sleep(dead)
			b.ended(strict, false, errors.New("refused"))
			if b.excused[strict] != 0 {
				t.Error("a server that is not listed excuses a failure")
			}
			b.listed = func(string) []string { return []string{"A", "B"} }
			b.ended(strict, false, errors.New("refused"))
			if b.excused[strict] != want {
				t.Errorf("%d of the failures have an excuse, %v after the death", b.excused[strict], dead)
			}
		})
	}
}
