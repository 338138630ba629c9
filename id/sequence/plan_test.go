package sequence

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// world is a plan with the time at which it is.
type world struct {
	plan
	now time.Duration
}

func (w world) clone() world {
	w.lanes = slices.Clone(w.lanes)
	return w
}

// key tells worlds apart that may go on in different ways.
func (w world) key() string {
	text := fmt.Sprint(w.turn)
	for _, h := range w.lanes {
		text += fmt.Sprint(" ", h.good, h.busy, h.failures, max(w.now-h.failed, 0))
	}
	return text
}

// TestPlanExhaustively takes every step that three databases, their callers and time can take after
// one another, and holds every promise in every state.
func TestPlanExhaustively(t *testing.T) {
	start := world{plan: plan{lanes: make([]health, 3), turn: 2}}
	seen := map[string]bool{}
	var explore func(w world, depth int)
	explore = func(w world, depth int) {
		key := fmt.Sprint(depth, w.key())
		if seen[key] || t.Failed() {
			return
		}
		seen[key] = true
		held(t, w)
		if depth == 0 {
			return
		}
		for i, h := range w.lanes {
			if !h.busy {
				continue
			}
			for _, how := range []outcome{failed, map[bool]outcome{true: gave, false: looked}[h.good]} {
				next := w.clone()
				next.end(i, how, w.now)
				explore(next, depth-1)
			}
		}
		if i, ok := w.next(); ok {
			next := w.clone()
			next.begin(i)
			explore(next, depth-1)
		}
		for _, waiting := range []bool{true, false} {
			if i, ok := w.due(w.now, waiting); ok {
				next := w.clone()
				next.begin(i)
				explore(next, depth-1)
			}
		}
		for _, d := range []time.Duration{firstPause, lastPause} {
			next := w.clone()
			next.now += d
			explore(next, depth-1)
		}
	}
	explore(start, 9)
	if len(seen) < 10_000 {
		t.Errorf("%d states only", len(seen))
	}
	t.Logf("%d states", len(seen))
}

// held fails unless the plan is right in this state.
func held(t *testing.T, w world) {
	t.Helper()
	free := -1 // the first good one in turn that has nothing under way
	for k := range w.lanes {
		i := (w.turn + 1 + k) % len(w.lanes)
		if free < 0 && w.lanes[i].good && !w.lanes[i].busy {
			free = i
		}
	}
	if i, ok := w.next(); ok != (free >= 0) || ok && i != free {
		t.Errorf("next is %d, %t in %+v; %d is free", i, ok, w, free)
	}
	for _, waiting := range []bool{true, false} {
		i, due := w.due(w.now, waiting)
		if due {
			h := w.lanes[i]
			if h.good || h.busy || h.failures > 0 && w.now-h.failed < firstPause {
				t.Errorf("%d is due in %+v", i, w)
			}
		}
		at, ok := w.wake(waiting)
		down := slices.ContainsFunc(w.lanes, func(h health) bool { return !h.good && !h.busy })
		if ok != down || due != (ok && at <= w.now) {
			t.Errorf("wake at %v, %t; due %t in %+v", at, ok, due, w)
		}
		if ok {
			if _, due := w.due(at, waiting); !due || at > w.now+lastPause {
				t.Errorf("nothing is due at %v in %+v", at, w)
			}
		}
	}
	if at, ok := w.wake(true); ok && !w.anyGood() && at > w.now+firstPause {
		t.Errorf("callers wait until %v in %+v", at, w)
	}
}

// TestPausesDouble up to their bound.
func TestPausesDouble(t *testing.T) {
	p := plan{lanes: []health{{good: true}, {}}}
	now, before := time.Duration(0), firstPause/2
	for range 100 {
		p.end(1, failed, now)
		p.end(1, looked, now) // which does not show that it gives numbers
		p.end(1, failed, now)
		p.lanes[1].failures--
		at, ok := p.wake(true)
		if pause := at - now; !ok || pause != min(2*before, lastPause) {
			t.Fatalf("%v after %v", pause, before)
		}
		before, now = at-now, at
	}
	p.end(1, gave, now)
	p.end(1, failed, now)
	if at, _ := p.wake(true); at-now != firstPause {
		t.Errorf("%v after it was good", at-now)
	}
}

// TestRecordsExhaustively: whatever clients name, a database of a set is taken at one place and
// with one step only. So no two databases have a number in common.
func TestRecordsExhaustively(t *testing.T) {
	ids := []string{"a", "b", "c"}
	var lists [][]string // all rows of different members, and none
	var extend func([]string)
	extend = func(list []string) {
		lists = append(lists, list)
		for _, m := range ids {
			if !slices.Contains(list, m) {
				extend(append(slices.Clone(list), m))
			}
		}
	}
	extend(nil)
	tried, taken := 0, 0
	for _, recorded := range lists {
		for _, member := range append([]string{""}, ids...) {
			for _, step := range []int64{3, 4} {
				r := record{Format: format, Member: member, Members: recorded, Step: step}
				for _, list := range lists {
					for place := range 4 {
						for _, wanted := range []int64{3, 4} {
							tried++
							err := r.check(place, list, wanted)
							one := len(recorded) > 0
							fits := !one && (place >= len(list) || list[place] == member) ||
								one && step == wanted && slices.Index(recorded, member) == place && (begins(list, recorded) || begins(recorded, list))
							if (err == nil) != fits {
								t.Fatalf("%+v at place %d of %v, step %d: %v", r, place, list, wanted, err)
							}
							if err == nil {
								taken++
							}
						}
					}
				}
			}
		}
	}
	if err := (record{Format: 2, Member: "a"}).check(0, nil, 3); err == nil {
		t.Error("another format is taken")
	}
	t.Logf("%d cases, %d taken", tried, taken)
}
