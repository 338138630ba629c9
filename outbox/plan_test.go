package outbox

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// world is a table, a plan and what the broker got. All of it is in memory, and each step is a step of the owner.
type world struct {
	plan    *plan
	states  map[int64]State
	visible map[int64]bool // committed
	flying  []*row
	sent    []int64
	reading bool
	now     time.Time
}

// key is the key of a message: a for odd numbers, b for even ones.
func key(seq int64) string { return []string{"b", "a"}[seq%2] }

const worldMessages = 5

func newWorld() *world {
	w := &world{plan: newPlan(2, false, time.Second), states: make(map[int64]State), visible: make(map[int64]bool), now: time.Unix(1, 0)}
	w.plan.room, w.plan.perLane = 3, 1
	for seq := int64(1); seq < worldMessages; seq++ {
		w.visible[seq] = true
	}
	return w
}

// dead returns the keys that have a dead message.
func (w *world) dead() (lanes []string) {
	for seq, state := range w.states {
		if state == Dead {
			lanes = append(lanes, key(seq))
		}
	}
	return lanes
}

// step takes a step, and returns a fault.
func (w *world) step(step byte) string {
	switch step {
	case 'r': // read a page, or begin a pass
		if !w.reading {
			w.plan.again(w.now)
			w.reading = true
		}
		w.read()
	case 'f': // begin a full pass
		w.plan.full(w.dead())
		w.reading = true
	case 's': // send
		send, _ := w.plan.next(w.now)
		for _, r := range send {
			for _, other := range w.flying {
				if other.Key == r.Key {
					return fmt.Sprintf("%d and %d of a key are under way at once", other.seq, r.seq)
				}
			}
			for seq := int64(1); seq < r.seq; seq++ {
				if key(seq) == r.Key && w.states[seq] != Confirmed {
					return fmt.Sprintf("%d is sent before %d", r.seq, seq)
				}
			}
			w.flying = append(w.flying, r)
		}
		if len(w.flying) > w.plan.window {
			return "the window is too large"
		}
	case 'c', 'e', 'd': // the first that is under way is confirmed, fails, is dead
		if len(w.flying) == 0 {
			return ""
		}
		r := w.flying[0]
		w.flying = w.flying[1:]
		switch step {
		case 'c':
			w.states[r.seq] = Confirmed
			w.plan.confirm(r)
		case 'e':
			w.plan.retry(r, w.now.Add(time.Second))
			w.now = w.now.Add(time.Second)
		case 'd':
			w.states[r.seq] = Dead
			w.plan.die(r)
		}
	case 'q': // an operator requeues
		for seq, state := range w.states {
			if state == Dead {
				w.states[seq] = Pending
			}
		}
	case 'n': // a producer commits
		w.visible[worldMessages] = true
	}
	return ""
}

// read reads a page, as Table.page does.
func (w *world) read() {
	free := min(w.plan.free(), 2)
	if free == 0 {
		return
	}
	dead, left := w.dead(), w.plan.left()
	var page []Entry
	for seq := w.plan.pos + 1; seq <= worldMessages && len(page) < free; seq++ {
		if w.visible[seq] && w.states[seq] == Pending && !slices.Contains(dead, key(seq)) && !slices.Contains(left, key(seq)) {
			page = append(page, Entry{Message: Message{ID: fmt.Sprint(seq), Key: key(seq)}, seq: seq})
		}
	}
	w.plan.add(page)
	w.reading = len(page) == free
}

// finish lets everything be confirmed, and reports whether all messages were.
func (w *world) finish() string {
	for range 40 {
		for _, step := range []byte("nqrrfrrsccrscc") {
			if fault := w.step(step); fault != "" {
				return fault
			}
		}
		w.now = w.now.Add(time.Second)
		if w.confirmed() == worldMessages {
			return ""
		}
	}
	return "some are never confirmed"
}

func (w *world) confirmed() (n int) {
	for _, state := range w.states {
		if state == Confirmed {
			n++
		}
	}
	return n
}

// TestPlan takes all series of steps up to a length. No message is sent before an earlier one of its key is confirmed. Whatever
// happened, all messages are confirmed in the end.
func TestPlan(t *testing.T) {
	const steps, length = "rfscedqn", 5
	series := 1
	for range length {
		series *= len(steps)
	}
	for n := range series {
		w := newWorld()
		done := []byte("rs")
		fault := ""
		for _, step := range done {
			fault += w.step(step)
		}
		for i, rest := 0, n; i < length && fault == ""; i, rest = i+1, rest/len(steps) {
			done = append(done, steps[rest%len(steps)])
			fault = w.step(done[len(done)-1])
		}
		if fault == "" {
			fault = w.finish()
		}
		if fault != "" {
			t.Fatalf("after %s: %s", done, fault)
		}
	}
}
