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
	sent    []int64 // what the consumer got
	reading bool
	replies bool // the consumer's replies to repeats arrive
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
				if key(seq) == r.Key && !r.again && w.states[seq] != Confirmed && w.states[seq] != Done {
					return fmt.Sprintf("%d is sent before %d", r.seq, seq)
				}
			}
			if r.again && w.states[r.seq] != Confirmed && w.states[r.seq] != Done {
				return fmt.Sprintf("%d is sent again, and was never confirmed", r.seq)
			}
			w.flying = append(w.flying, r)
			w.sent = append(w.sent, r.seq)
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
		w.land(step, r)
	default:
		w.others(step)
	}
	return ""
}

// others takes a step that concerns no broker.
func (w *world) others(step byte) {
	switch step {
	case 'o': // a reply arrives
		for _, seq := range w.sent {
			if w.states[seq] != Done {
				w.states[seq] = Done
				break
			}
		}
	case 'a': // look for a message to be sent again
		for seq := int64(1); seq <= worldMessages; seq++ {
			if w.states[seq] == Confirmed && !w.plan.repeating() {
				w.plan.repeat([]Entry{entry(seq)})
			}
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
}

// idle reports whether a step would do nothing.
func (w *world) idle(step byte) bool {
	switch step {
	case 'c', 'e', 'd':
		return len(w.flying) == 0
	case 'q':
		return len(w.dead()) == 0
	case 'n':
		return w.visible[worldMessages]
	}
	return false
}

// land writes what became of a message, as the owner does.
func (w *world) land(step byte, r *row) {
	switch {
	case w.states[r.seq] == Done || r.again:
		if r.again && w.replies && step == 'c' {
			w.states[r.seq] = Done
		}
		w.plan.confirm(r)
	case step == 'c':
		w.states[r.seq] = Confirmed
		w.plan.confirm(r)
	case step == 'e':
		w.plan.retry(r, w.now.Add(time.Second))
		w.now = w.now.Add(time.Second)
	case step == 'd':
		w.states[r.seq] = Dead
		w.plan.die(r)
	}
}

func entry(seq int64) Entry {
	return Entry{Message: Message{ID: fmt.Sprint(seq), Key: key(seq)}, seq: seq}
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
			page = append(page, entry(seq))
		}
	}
	w.plan.add(page)
	w.reading = len(page) == free
}

// finish lets everything be confirmed, and reports whether all messages become done. Only replies to repeats arrive.
func (w *world) finish() string {
	w.replies = true
	for range 40 {
		for _, step := range []byte("nqrrfrrsccrsccasc") {
			if fault := w.step(step); fault != "" {
				return fault
			}
		}
		w.now = w.now.Add(time.Second)
		if w.done() == worldMessages {
			return ""
		}
	}
	return "some are never done"
}

func (w *world) done() (n int) {
	for _, state := range w.states {
		if state == Done {
			n++
		}
	}
	return n
}

// TestPlan takes all series of steps up to a length. No message is sent for the first time before an earlier one of its key is
// confirmed or done. Whatever happened, all messages are done in the end.
func TestPlan(t *testing.T) {
	const steps, length = "rfscedqnoa", 5
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
		known := false
		for i, rest := 0, n; i < length && fault == ""; i, rest = i+1, rest/len(steps) {
			step := steps[rest%len(steps)]
			if w.idle(step) { // the rest is a shorter series, which is taken once
				known = rest/len(steps) > 0
				break
			}
			done = append(done, step)
			fault = w.step(step)
		}
		if known {
			continue
		}
		if fault == "" {
			fault = w.finish()
		}
		if fault != "" {
			t.Fatalf("after %s: %s", done, fault)
		}
	}
}
