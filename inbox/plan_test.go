package inbox

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// parcel is a delivery in memory.
type parcel struct {
	m        Message
	number   int // of the message
	unloaded bool
}

func (p *parcel) Message() Message                      { return p.m }
func (p *parcel) Count() int                            { return 1 }
func (p *parcel) Unload()                               { p.unloaded, p.m.Payload = true, nil }
func (p *parcel) Load(context.Context) (Message, error) { return p.m, nil }
func (p *parcel) Ack(context.Context) error             { return nil }
func (p *parcel) Nack(context.Context) error            { return nil }
func (p *parcel) Dead(context.Context, string) error    { return nil }

// world is a broker in memory, a plan and what took effect. Each step is a step of the consumer.
type world struct {
	plan    *plan
	queue   []int            // of the broker
	feed    int              // the broker forgets the deliveries of earlier feeds, and delivers again
	open    map[*parcel]bool // deliveries of this feed that the broker is not told of
	running []*item
	ending  []settled        // the broker is told of them
	effects map[string][]int // by key
	noted   map[string]int   // the messages that took effect, by ID
	dead    map[int]bool     // messages whose ID another one has
	failed  map[int]int      // runs of messages that are not settled
	last    int
	now     time.Time
}

// worldMessages are of key a for odd numbers, and for even ones of key b or, every fourth, of none. Some have the ID of an earlier one, of their key or
// another.
const worldMessages = 7

func worldKey(n int) string { return []string{"", "a", "b", "a"}[n%4] }

func worldID(n int) string { return []string{"", "x", "y", "x", "4", "y", "6", "7"}[n] }

func newWorld(window int) *world {
	w := &world{plan: newPlan(2, window), open: make(map[*parcel]bool), effects: make(map[string][]int), noted: make(map[string]int), dead: make(map[int]bool),
		failed: make(map[int]int), now: time.Unix(1, 0)}
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
	case 'o': // another feed opens
		w.reopen()
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
			w.failed[number(it)]++
			w.plan.retry(it, w.now.Add(time.Second))
		}
	case 's': // the broker was told of the first
		if len(w.ending) > 0 {
			s := w.ending[0]
			w.ending = w.ending[1:]
			for _, d := range s.item.deliveries[:s.n] {
				delete(w.open, d.Delivery.(*parcel))
			}
			delete(w.failed, number(s.item))
			w.plan.done(s.item, s.n)
		}
	case 't':
		w.now = w.now.Add(time.Second)
	}
	return w.counts()
}

// reopen lets the broker deliver all again that it is not told of, before new messages.
func (w *world) reopen() {
	var again []int
	for p := range w.open {
		again = append(again, p.number)
	}
	slices.Sort(again)
	w.queue = append(slices.Compact(again), w.queue...)
	w.open = make(map[*parcel]bool)
	w.feed++
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
		if it.failures != w.failed[number(it)] || it.lane.wait.After(w.now) {
			return fmt.Sprintf("%s has failed %d times, and %d runs failed", it.ID, it.failures, w.failed[number(it)])
		}
		w.running = append(w.running, it)
	}
	w.plan.rest()
	if p := w.plan; len(w.running) > p.workers || 2*p.stalled > p.window {
		return fmt.Sprintf("%d run, and %d are stalled", len(w.running), p.stalled)
	}
	return w.counts()
}

// counts compares the numbers of the plan with its messages.
func (w *world) counts() string {
	p := w.plan
	inMemory, stalled, present := 0, 0, 0
	here := make(map[int]bool)
	for _, l := range p.lanes {
		n := slices.IndexFunc(l.items, func(it *item) bool { return it.parked })
		if n < 0 {
			n = len(l.items)
		}
		for i, it := range l.items {
			if here[number(it)] {
				return fmt.Sprintf("%d is two messages of the plan", number(it))
			}
			here[number(it)] = true
			if of := it.deliveries; of[0].feed != of[len(of)-1].feed && (i > 0 || !l.running) {
				return fmt.Sprintf("message %d of a lane has deliveries of several feeds", i)
			}
			if it.parked != (i >= n) || it.parked && (it.Payload != nil || !it.deliveries[0].Delivery.(*parcel).unloaded) {
				return fmt.Sprintf("message %d of a lane: parked is %v, after %d that are not", i, it.parked, n)
			}
			if !it.parked && it.Payload == nil {
				return fmt.Sprintf("message %d of a lane is not parked, and has no content", i)
			}
		}
		inMemory += n
		if l.at >= 0 {
			stalled += n
		}
		present += min(n, 1)
		if l.inMemory != n {
			return fmt.Sprintf("a lane has %d messages in memory, and counts %d", n, l.inMemory)
		}
	}
	if p.inMemory != inMemory || p.stalled != stalled || p.present != present {
		return fmt.Sprintf("%d, %d and %d are counted, want %d, %d and %d", p.inMemory, p.stalled, p.present, inMemory, stalled, present)
	}
	return ""
}

func (w *world) deliver(n int) {
	w.last = n
	d := &parcel{m: Message{ID: worldID(n), Key: worldKey(n), Time: w.now, Payload: []byte{byte(n)}}, number: n}
	w.open[d] = true
	w.plan.add(d, w.feed)
}

func number(it *item) int { return it.deliveries[0].Delivery.(*parcel).number }

// effect notes the first effect of an ID, which is in order within its key. Another message of the ID is a dead letter.
func (w *world) effect(it *item) string {
	n := number(it)
	switch w.noted[it.ID] {
	case n:
		return "" // the inbox absorbs it
	case 0:
		w.noted[it.ID] = n
	default:
		w.dead[n] = true
		return ""
	}
	all := w.effects[it.Key]
	if it.Key != "" && len(all) > 0 && all[len(all)-1] > n {
		return fmt.Sprintf("%d took effect after %d", n, all[len(all)-1])
	}
	w.effects[it.Key] = append(all, n)
	return ""
}

// finish lets everything run, and reports whether all took effect or are dead letters.
func (w *world) finish() string {
	for range 60 {
		if len(w.queue)+len(w.open) == 0 {
			break
		}
		for _, step := range []byte("dncsdncst") {
			if fault := w.step(step); fault != "" {
				return fault
			}
		}
	}
	if n := len(w.noted) + len(w.dead); n != worldMessages {
		return fmt.Sprintf("%d of %d took effect or are dead letters", n, worldMessages)
	}
	if len(w.plan.known)+len(w.plan.lanes)+len(w.plan.ready)+len(w.plan.waiting)+w.plan.running > 0 {
		return "the plan forgets nothing"
	}
	if n := len(w.open); n > 0 {
		return fmt.Sprintf("the broker is not told of %d deliveries", n)
	}
	return ""
}

// TestPlan takes all series of steps up to a length. Messages of a key take effect one after another, in the order in which
// they came, whatever is parked, repeated and delivered by another feed. All take effect in the end, or are dead letters because another message has taken
// their ID. The broker is told of each delivery. Failed runs are not forgotten. Half of the window is for lanes that are not stalled.
func TestPlan(t *testing.T) {
	const steps = "drncseto"
	for _, start := range []struct {
		window int
		steps  string
		length int
	}{{4, "ddn", 5}, {4, "ddneeddne", 5}, {8, "dddddddneene", 4}, {4, "ddndetnccssn", 4}} { // messages run, or three lanes are stalled, or a parked message runs
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

// A key that fails costs no more for each message the more messages it has. All are in this process, and few are in memory.
func TestPlanManyParked(t *testing.T) {
	const messages, most = 100_000, 20 * time.Second
	w := newWorld(64)
	began := time.Now()
	for n := range messages {
		w.plan.add(&parcel{m: Message{ID: fmt.Sprint("m", n), Key: "k"}}, 0)
		if n == 0 {
			start, _ := w.plan.next(w.now)
			start[0].tries++
			w.plan.retry(start[0], w.now.Add(time.Second))
		}
		if time.Since(began) > most {
			t.Fatalf("%d messages take %v", n, most)
		}
	}
	if n := w.plan.free(); n != 64-16 {
		t.Errorf("there is room for %d", n)
	}
	for n := range messages {
		w.now = w.now.Add(time.Second)
		start, _ := w.plan.next(w.now)
		if len(start) != 1 || start[0].ID != fmt.Sprint("m", n) || start[0].parked != (n >= 16) {
			t.Fatalf("message %d: %+v", n, start)
		}
		w.plan.done(start[0], 1)
		if time.Since(began) > most {
			t.Fatalf("%d messages take %v", messages+n, most)
		}
	}
}

// TestPlanManyStalled: very many keys that fail cost no more for each failure the more of them are parked.
func TestPlanManyStalled(t *testing.T) {
	const window, most = 10_000, time.Minute
	w := newWorld(window)
	began := time.Now()
	for n := 0; w.plan.free() > 0; {
		for ; w.plan.free() > 0; n++ {
			w.plan.add(&parcel{m: Message{ID: fmt.Sprint("m", n), Key: fmt.Sprint(n)}}, 0)
		}
		for start, _ := w.plan.next(w.now); len(start) > 0; start, _ = w.plan.next(w.now) {
			for _, it := range start {
				it.tries++
				w.plan.retry(it, w.now.Add(time.Second))
				w.plan.rest()
			}
			if time.Since(began) > most {
				t.Fatalf("%d keys take %v", n, most)
			}
		}
	}
	if n := len(w.plan.lanes); n < mostParked*window {
		t.Errorf("the window is full after %d keys", n)
	}
}

// TestPlanNoID: a message without an ID becomes a dead letter at once, beside a message of its key that fails.
func TestPlanNoID(t *testing.T) {
	w := newWorld(4)
	w.plan.add(&parcel{m: Message{ID: "1", Key: "k"}}, 0)
	start, _ := w.plan.next(w.now)
	start[0].tries++
	w.plan.retry(start[0], w.now.Add(time.Hour))
	w.plan.add(&parcel{m: Message{ID: "2", Key: "k"}}, 0)
	for feed := range 2 { // which cannot know that the message is here
		w.plan.add(&parcel{m: Message{Key: "k"}}, feed)
		start, _ = w.plan.next(w.now)
		if len(start) != 1 || start[0].ID != "" {
			t.Fatal(start)
		}
		w.plan.done(start[0], 1)
	}
}

// TestPlanLateRepeat: a parked message comes again while the broker is told of its end. The repeat has no content in memory, so its run has to load that.
func TestPlanLateRepeat(t *testing.T) {
	w := newWorld(4)
	send := func(id string) {
		w.plan.add(&parcel{m: Message{ID: id, Key: "k", Payload: []byte("x")}}, 0)
	}
	next := func(id string) *item {
		t.Helper()
		start, _ := w.plan.next(w.now)
		if len(start) != 1 || start[0].ID != id {
			t.Fatal(start)
		}
		return start[0]
	}
	send("1")
	it := next("1")
	it.tries++
	w.plan.retry(it, w.now)
	send("2")
	w.plan.done(next("1"), 1)
	it = next("2")
	if !it.parked {
		t.Fatal("the message is not parked")
	}
	send("2")
	w.plan.done(it, 1)
	if fault := w.counts(); fault != "" {
		t.Fatal(fault)
	}
	if it := next("2"); !it.parked {
		t.Error("the repeat would run without its content")
	}
	send("2")
	if n := len(w.plan.lanes["k"].items); n != 1 {
		t.Errorf("a further repeat makes %d messages of it", n)
	}
}
