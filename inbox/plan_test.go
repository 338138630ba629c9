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
	failed  map[int]int      // runs of messages that are not settled
	last    int
	now     time.Time
}

// worldMessages are of key a for odd numbers, and for even ones of key b or, every fourth, of none.
const worldMessages = 7

func worldKey(n int) string { return []string{"", "a", "b", "a"}[n%4] }

func newWorld(window int) *world {
	w := &world{plan: newPlan(2, window), effects: make(map[string][]int), failed: make(map[int]int), now: time.Unix(1, 0)}
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
		return w.run()
	case 'c', 'e': // the first ends well, or fails
		if len(w.running) > 0 {
			it := w.running[0]
			w.running = w.running[1:]
			if step == 'c' {
				w.ending = append(w.ending, settled{item: it, n: len(it.deliveries)})
				return w.effect(it)
			}
			it.tries++
			it.failures++
			w.failed[w.number(it.ID)]++
			w.giveBack(w.plan.retry(it, w.now, w.now.Add(time.Second)).deliveries)
		}
	case 's': // the broker was told of the first
		if len(w.ending) > 0 {
			s := w.ending[0]
			w.ending = w.ending[1:]
			w.open -= s.n
			delete(w.failed, w.number(s.item.ID))
			w.giveBack(w.plan.done(s.item, s.n))
		}
	case 't':
		w.now = w.now.Add(time.Second)
	case 'l': // for long, nothing is received
		w.now = w.now.Add(2 * patience)
	}
	return ""
}

// run lets messages run, as a round of the consumer does.
func (w *world) run() string {
	start, _ := w.plan.next(w.now)
	for _, it := range start {
		for _, other := range w.running {
			if other.lane == it.lane {
				return fmt.Sprintf("%s and %s of a lane run at once", other.ID, it.ID)
			}
		}
		if it.failures != w.failed[w.number(it.ID)] || it.wait.After(w.now) {
			return fmt.Sprintf("%s has %+v, and %d runs failed", it.ID, it.trials, w.failed[w.number(it.ID)])
		}
		w.running = append(w.running, it)
	}
	for _, l := range w.plan.rest(w.now) {
		w.giveBack(l.deliveries)
	}
	stalled := 0
	for _, items := range w.plan.lanes {
		if items[0].wait.After(w.now) {
			stalled += len(items)
		}
	}
	if len(w.running) > w.plan.workers || 2*stalled > w.plan.window {
		return fmt.Sprintf("%d run, and %d are stalled", len(w.running), stalled)
	}
	return ""
}

func (w *world) giveBack(all []Delivery) {
	w.open -= len(all)
	for _, d := range all {
		w.delayed = append(w.delayed, w.number(d.Message().ID))
	}
}

func (w *world) deliver(n int) {
	w.last = n
	w.open++
	m := Message{ID: fmt.Sprint(n), Key: worldKey(n), Time: w.now}
	w.plan.receive(w.now, false)
	w.plan.receive(w.now, true)
	if back, _ := w.plan.add(parcel{m}, w.now); back {
		w.open--
		w.delayed = append(w.delayed, n)
	}
}

func (w *world) number(id string) (n int) {
	fmt.Sscan(id, &n) //nolint:errcheck // it was made by Sprint
	return n
}

// effect notes the first effect of a message, which is in order within its key.
func (w *world) effect(it *item) string {
	n := w.number(it.ID)
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
		if len(w.queue)+len(w.delayed)+w.open == 0 {
			break
		}
		for _, step := range []byte("fdncsfdncst") {
			if fault := w.step(step); fault != "" {
				return fault
			}
		}
	}
	if n := len(w.effects["a"]) + len(w.effects["b"]) + len(w.effects[""]); n != worldMessages {
		return fmt.Sprintf("%d of %d took effect", n, worldMessages)
	}
	if len(w.plan.items)+len(w.plan.known)+len(w.plan.lanes)+len(w.plan.running)+len(w.plan.returned) > 0 {
		return "the plan forgets nothing"
	}
	if w.open != 0 {
		return fmt.Sprintf("the broker is not told of %d deliveries", w.open)
	}
	return ""
}

// TestPlan takes all series of steps up to a length. Messages of a key take effect one after another, in the order in which
// they came, whatever is given back and repeated. All take effect in the end, and the broker is told of each delivery. Failed runs are
// not forgotten. Half of the window is for lanes that are not stalled.
func TestPlan(t *testing.T) {
	const steps = "drbfncsetl"
	for _, start := range []struct {
		window int
		steps  string
		length int
	}{{4, "ddn", 5}, {4, "ddneeddne", 5}, {8, "dddddddneene", 4}} { // messages run, or three lanes are stalled
		series := 1
		for range start.length {
			series *= len(steps)
		}
		for n := range series {
			w := newWorld(start.window)
			done := []byte(start.steps)
			fault := ""
			for _, step := range done {
				fault += w.step(step)
			}
			for i, rest := 0, n; i < start.length && fault == ""; i, rest = i+1, rest/len(steps) {
				done = append(done, steps[rest%len(steps)])
				fault = w.step(done[len(done)-1])
			}
			if fault == "" {
				fault = w.finish()
			}
			if fault != "" {
				t.Fatalf("window %d, after %s: %s", start.window, done, fault)
			}
		}
	}
}

// A message that was given back and went to another process stops its key for a while only.
func TestPlanForgets(t *testing.T) {
	w := newWorld(4)
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
	w.plan.receive(w.now, false)
	if back, _ := w.plan.add(later, w.now); !back {
		t.Error("a message overtook one that was given back")
	}
	w.now = w.now.Add(returnDelay + patience + maxReturn)
	w.plan.receive(w.now, true) // nothing came all the time
	if back, _ := w.plan.add(later, w.now); back {
		t.Error("the key waits for ever")
	}
}

// A key that has given very many messages back costs no more for each of them.
func TestPlanManyGivenBack(t *testing.T) {
	const messages, most = 100_000, 20 * time.Second
	w := newWorld(4)
	began := time.Now()
	for round := range 2 {
		for n := range messages {
			if back, _ := w.plan.add(parcel{Message{ID: fmt.Sprint("m", n), Key: "k"}}, w.now); back != (n > 0) && round == 0 {
				t.Fatal(n, back)
			}
			if n == 0 && round == 0 {
				start, _ := w.plan.next(w.now)
				start[0].tries++
				w.plan.retry(start[0], w.now, w.now.Add(time.Hour))
			}
			if time.Since(began) > most {
				t.Fatalf("%d messages take %v", n, most)
			}
		}
	}
	if l := w.plan.returned["k"]; len(l.byID) != messages-1 || l.order.Len() != messages-1 {
		t.Error(len(l.byID), l.order.Len())
	}
}
