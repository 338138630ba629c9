package inbox

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// parcel is a delivery in memory.
type parcel struct{ m Message }

func (p parcel) Message() Message                          { return p.m }
func (p parcel) Count() int                                { return 1 }
func (p parcel) Ack(context.Context) error                 { return nil }
func (p parcel) Nack(context.Context, time.Duration) error { return nil }
func (p parcel) Dead(context.Context, string) error        { return nil }

// world is a broker in memory, a plan and what took effect. Each step is a step of the consumer.
type world struct {
	plan    *plan
	queue   []int // of the broker
	delayed []int // given back to the broker
	running []*item
	ending  []settled        // the broker is told of them
	open    int              // deliveries that the broker is not told of
	effects map[string][]int // by key
	last    int
	now     time.Time
}

// worldMessages are of key a for odd numbers, and for even ones of key b or, every fourth, of none.
const worldMessages = 7

func worldKey(n int) string { return []string{"", "a", "b", "a"}[n%4] }

func newWorld() *world {
	w := &world{plan: newPlan(2, 4), effects: make(map[string][]int), now: time.Unix(1, 0)}
	for n := 1; n <= worldMessages; n++ {
		w.queue = append(w.queue, n)
	}
	return w
}

// step takes a step, and returns a fault.
func (w *world) step(step byte) string {
	switch step {
	case 'd': // the broker delivers
		if len(w.queue) > 0 && w.plan.free() > 0 {
			w.deliver(w.queue[0])
			w.queue = w.queue[1:]
		}
	case 'r': // the broker repeats the last delivery
		if w.last > 0 && w.plan.free() > 0 {
			w.deliver(w.last)
		}
	case 'b', 'f': // the message that was given back last comes again, or the first
		if n := len(w.delayed); n > 0 && w.plan.free() > 0 {
			at := map[byte]int{'b': n - 1}[step]
			m := w.delayed[at]
			w.delayed = slices.Delete(w.delayed, at, at+1)
			w.deliver(m)
		}
	case 'n': // messages run
		start, _ := w.plan.next(w.now)
		for _, it := range start {
			for _, other := range w.running {
				if other.lane == it.lane {
					return fmt.Sprintf("%s and %s of a lane run at once", other.ID, it.ID)
				}
			}
			w.running = append(w.running, it)
		}
		if len(w.running) > w.plan.workers {
			return "too many run"
		}
	case 'c', 'e': // the first ends well, or fails
		if len(w.running) > 0 {
			it := w.running[0]
			w.running = w.running[1:]
			if step == 'c' {
				w.ending = append(w.ending, settled{item: it, n: len(it.deliveries)})
				return w.effect(it)
			}
			it.tries++
			for _, other := range w.plan.retry(it, w.now, w.now.Add(time.Second)) {
				w.giveBack(other, len(other.deliveries))
			}
		}
	case 's': // the broker was told of the first
		if len(w.ending) > 0 {
			s := w.ending[0]
			w.ending = w.ending[1:]
			w.open -= s.n
			w.giveBack(s.item, len(w.plan.done(s.item, s.n)))
		}
	case 't':
		w.now = w.now.Add(time.Second)
	}
	return ""
}

func (w *world) giveBack(it *item, n int) {
	w.open -= n
	for range n {
		w.delayed = append(w.delayed, w.number(it))
	}
}

func (w *world) deliver(n int) {
	w.last = n
	w.open++
	m := Message{ID: fmt.Sprint(n), Key: worldKey(n), Time: w.now}
	if back, _ := w.plan.add(parcel{m}, w.now); back {
		w.open--
		w.delayed = append(w.delayed, n)
	}
}

func (w *world) number(it *item) (n int) {
	fmt.Sscan(it.ID, &n) //nolint:errcheck // it was made by Sprint
	return n
}

// effect notes the first effect of a message, which is in order within its key.
func (w *world) effect(it *item) string {
	n := w.number(it)
	all := w.effects[it.Key]
	for _, other := range all {
		if other == n {
			return "" // the inbox absorbs it
		}
	}
	if it.Key != "" && len(all) > 0 && all[len(all)-1] > n {
		return fmt.Sprintf("%d took effect after %d", n, all[len(all)-1])
	}
	w.effects[it.Key] = append(all, n)
	return ""
}

// finish lets everything run, and reports whether all took effect.
func (w *world) finish() string {
	for range 60 {
		for _, step := range []byte("fdncsfdncst") {
			if fault := w.step(step); fault != "" {
				return fault
			}
		}
	}
	if n := len(w.effects["a"]) + len(w.effects["b"]) + len(w.effects[""]); n != worldMessages {
		return fmt.Sprintf("%d of %d took effect", n, worldMessages)
	}
	if len(w.plan.items)+len(w.plan.known)+len(w.plan.inLane)+len(w.plan.running)+len(w.plan.returned) > 0 {
		return "the plan forgets nothing"
	}
	if w.open != 0 {
		return fmt.Sprintf("the broker is not told of %d deliveries", w.open)
	}
	return ""
}

// TestPlan takes all series of steps up to a length. Messages of a key take effect one after another, in the order in which
// they came, whatever is given back and repeated. All take effect in the end, and the broker is told of each delivery.
func TestPlan(t *testing.T) {
	const steps, length = "drbfncset", 5
	series := 1
	for range length {
		series *= len(steps)
	}
	for n := range series {
		w := newWorld()
		done := []byte("ddn")
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

// A message that was given back and went to another process stops its key for a while only.
func TestPlanForgets(t *testing.T) {
	w := newWorld()
	for _, step := range []byte("ddned") { // a message fails, and its key has another
		w.step(step)
	}
	if len(w.delayed) != 1 {
		t.Fatalf("given back: %v", w.delayed)
	}
	for _, step := range []byte("cstncs") {
		w.step(step)
	}
	later := parcel{Message{ID: "9", Key: "a"}}
	if back, _ := w.plan.add(later, w.now); !back {
		t.Error("a message overtook one that was given back")
	}
	w.now = w.now.Add(returnDelay + patience + maxReturn)
	if back, _ := w.plan.add(later, w.now); back {
		t.Error("the key waits for ever")
	}
}
