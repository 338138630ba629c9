package outbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// way is how an owner finds messages that have become visible behind the reader.
type way string

const (
	asksAll     way = "asks for all earlier messages"
	lifts       way = "lifts the floor, and asks for open messages"
	asksNothing way = "asks for nothing"
	committed   way = "lifts the floor, and does not see open transactions"
	skips       way = "lifts the floor, and goes on behind what is yet to be read"
	forgets     way = "lifts the floor, and forgets a message that the page at hand lacks"
)

// world is a table, a plan and what the broker got. All of it is in memory, and each step is a step of the owner.
type world struct {
	plan    *plan
	states  map[int64]State
	visible map[int64]bool // committed
	flying  []*row
	sent    []int64 // what the consumer got
	reading bool
	between bool // a producer commits between the next page and the question for earlier messages
	replies bool // the consumer's replies to repeats arrive
	way     way
	horizon horizon
	now     time.Time
}

// key is the key of a message: a for odd numbers, b for even ones.
func key(seq int64) string { return []string{"b", "a"}[seq%2] }

// One message is in a transaction that is open at first. The last of its key is enqueued after that transaction.
const (
	worldMessages = 6
	worldLate     = 3
	worldLast     = 5
)

func newWorld() *world {
	w := &world{plan: newPlan(2, 1<<20, false, time.Second), states: make(map[int64]State), visible: make(map[int64]bool), now: time.Unix(1, 0)}
	w.plan.room, w.plan.perLane = 3, 1
	for seq := int64(1); seq <= worldMessages; seq++ {
		w.visible[seq] = seq != worldLate && seq != worldLast
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
	case 'r', 'p': // read a page, or begin a pass; p: a producer commits late, just after the page was read
		w.between = step == 'p'
		if !w.reading {
			w.plan.again(w.now, w.horizon.floor)
			w.plan.missed(w.appeared())
			w.reading = true
		}
		w.read()
	case 'f': // begin a full pass
		w.plan.full(w.dead(), w.now)
		w.reading = true
	case 's': // send
		send, _ := w.plan.next(w.now, 0)
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
	case 'n': // a producer commits, late
		w.visible[worldLate] = true
	case 'm': // the next producer of the same key
		w.visible[worldLast] = w.visible[worldLate]
	case 'l': // look for open transactions
		w.lift()
	}
}

// lift lifts the floor, as owner.lift does. The late message is in the table from the start.
func (w *world) lift() {
	found := make(map[int64]string)
	for seq := int64(1); seq <= worldMessages; seq++ {
		_, open := w.horizon.open[seq]
		there := w.visible[seq] || seq == worldLate && w.way != committed
		if in := seq > w.horizon.floor && seq <= w.plan.newest; there && (in || open) && w.states[seq] == Pending {
			found[seq] = key(seq)
		}
	}
	w.horizon.look(w.plan, max(w.horizon.floor, w.plan.newest), found)
}

// appeared returns the messages of open transactions that the pass has missed.
func (w *world) appeared() (earlier []place) {
	var visible []int64
	for seq := range w.horizon.open {
		if w.visible[seq] && w.states[seq] == Pending {
			visible = append(visible, seq)
		}
	}
	slices.Sort(visible)
	if w.way == skips {
		for _, seq := range visible {
			earlier = append(earlier, place{seq, key(seq)})
		}
	}
	earlier = append(earlier, w.horizon.appeared(w.plan, visible)...)
	if w.way == forgets || w.way == skips {
		maps.DeleteFunc(w.horizon.open, func(seq int64, _ string) bool { return slices.Contains(visible, seq) })
	}
	return earlier
}

// earlier returns what the owner learns of messages before a page.
func (w *world) earlier(keys []string) (earlier []place) {
	floor := int64(0)
	switch w.way {
	case asksNothing:
		return nil
	case lifts, committed, skips, forgets:
		floor = w.horizon.floor
		earlier = w.appeared()
	}
	for seq := floor + 1; seq <= w.plan.pos; seq++ {
		if w.visible[seq] && w.states[seq] == Pending && slices.Contains(keys, key(seq)) {
			earlier = append(earlier, place{seq, key(seq)})
		}
	}
	return earlier
}

// idle reports whether a step would do nothing.
func (w *world) idle(step byte) bool {
	switch step {
	case 'c', 'e', 'd':
		return len(w.flying) == 0
	case 'q':
		return len(w.dead()) == 0
	case 'n', 'p':
		return w.visible[worldLate]
	case 'm':
		return !w.visible[worldLate] || w.visible[worldLast]
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
	free, _ := w.plan.free()
	free = min(free, 2)
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
	w.visible[worldLate] = w.visible[worldLate] || w.between
	if keys := w.plan.arrivals(page); len(keys) > 0 && w.plan.missed(w.earlier(keys)) {
		return
	}
	w.plan.add(page)
	w.horizon.read(page)
	w.reading = len(page) == free
}

// finish lets everything be confirmed, and reports whether all messages become done. Only replies to repeats arrive.
func (w *world) finish() string {
	w.replies = true
	for range 40 {
		steps := "nmqrrfrrsccrscc"
		if w.are(Confirmed)+w.are(Done) == worldMessages {
			steps = "ascc"
		}
		for _, step := range []byte(steps) {
			if fault := w.step(step); fault != "" {
				return fault
			}
		}
		w.now = w.now.Add(time.Second)
		if w.are(Done) == worldMessages {
			return ""
		}
	}
	return "some are never done"
}

// are says how many messages are in a state.
func (w *world) are(state State) (n int) {
	for _, is := range w.states {
		if is == state {
			n++
		}
	}
	return n
}

// TestPlan takes all series of steps up to a length, from the start and from a full pass over confirmed messages. No message is sent for
// the first time before an earlier one of its key is confirmed or done. Whatever happened, all messages are done in the end. The naive
// owners are found to break the order.
func TestPlan(t *testing.T) {
	t.Parallel()
	const (
		start, confirmed = "rs", "rsrlccf"
		all              = "rfscedqnmoa"
		uncompleted      = "rfscedqnml" // completion has nothing to do with open transactions
		few              = "rfscnmlp"
	)
	for _, c := range []struct {
		way          way
		begin, steps string
		naive        bool
	}{{asksAll, start, all, false}, {lifts, start, uncompleted, false}, {lifts, confirmed, few, false},
		{asksNothing, start, all, true}, {committed, start, uncompleted, true}, {skips, start, uncompleted, true}, {forgets, confirmed, few, true}} {
		t.Run(string(c.way), func(t *testing.T) {
			t.Parallel()
			fault := everySeries(c.way, c.begin, c.steps)
			if t.Log(fault); c.naive != strings.Contains(fault, "is sent before") || !c.naive && fault != "" {
				t.Error(fault)
			}
		})
	}
}

// everySeries returns the first fault of the series that begin so and go on with up to five of the steps. No series has a step that
// would do nothing, because without that step it is a shorter series.
func everySeries(way way, begin, steps string) (fault string) {
	longest := len(begin) + 5
	var further func(series string) string
	further = func(series string) string {
		w := newWorld()
		w.way = way
		fault := ""
		for i := 0; i < len(series) && fault == ""; i++ {
			fault = w.step(series[i])
		}
		var next []string
		for i := 0; i < len(steps) && len(series) < longest; i++ {
			if !w.idle(steps[i]) {
				next = append(next, series+steps[i:i+1])
			}
		}
		if fault == "" {
			fault = w.finish()
		}
		if fault != "" {
			return fmt.Sprintf("after %s: %s", series, fault)
		}
		for _, series := range next {
			if fault := further(series); fault != "" {
				return fault
			}
		}
		return ""
	}
	return further(begin)
}

// The memory of a plan is bounded, by messages and by bytes, and lanes that wait after a failure leave the memory to others.
func TestPlanMemory(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	p := newPlan(8, 1000, false, time.Second)
	most := 0
	seq := int64(0)
	for round := range 200 {
		for {
			n, bytes := p.free()
			if n == 0 {
				break
			}
			var page []Entry
			for ; n > 0 && bytes > 0; n-- {
				seq++
				e := Entry{Message: Message{ID: fmt.Sprint(seq), Key: fmt.Sprint("k", seq)}, seq: seq, weight: []int{10, 100, 900}[seq%3]}
				page, bytes = append(page, e), bytes-e.weight
			}
			p.add(page)
		}
		most = max(most, p.bytes)
		if len(p.rows) > p.room || p.bytes > 1000+900+100*32 { // one message more, and the names
			t.Fatalf("%d messages, %d bytes", len(p.rows), p.bytes)
		}
		send, _ := p.next(now, 0)
		for i, r := range send {
			if (round+i)%2 == 0 {
				p.confirm(r)
			} else {
				p.retry(r, now.Add(time.Hour))
			}
		}
	}
	if len(p.resting) == 0 || seq < 250 || len(p.resting) > 17*p.room {
		t.Errorf("%d lanes rest, %d messages were read", len(p.resting), seq)
	}
	for range 10_000 { // a broker that is away
		if n, _ := p.free(); n > 0 {
			seq++
			p.add([]Entry{{Message: Message{ID: fmt.Sprint(seq)}, seq: seq, weight: 10}})
		}
		send, _ := p.next(now, 0)
		for _, r := range send {
			p.retry(r, now.Add(time.Hour))
		}
	}
	if len(p.resting) > 17*p.room {
		t.Errorf("%d lanes rest", len(p.resting))
	}
}

// A snapshot of PostgreSQL tells from where on to ask for earlier messages.
func TestWatch(t *testing.T) {
	var w watch
	for i, look := range []struct {
		seen          string
		newest, floor int64
	}{
		{"5:9:5,7", 0, 0},    // the first page: 5 and 7 may have any number
		{"5:12:5,11", 10, 0}, // 7 has ended
		{"5:12:5,11", 20, 0},
		{"5:20:5,15", 30, 0},  // 11 has ended, which came after the page that read up to 0
		{"5:20:5,15", 40, 20}, // nothing has ended: two pages
		{"5:30:5", 50, 20},    // 15 has ended, which came after the page that read up to 20
		{"5:30:5", 60, 40},
		{"40:40:", 70, 0}, // 5 has ended, after all that time
		{"40:40:", 80, 60},
	} {
		if w.look(look.seen, look.newest); w.floor > look.floor {
			t.Errorf("%d: floor %d, want at most %d", i, w.floor, look.floor)
		} else if look.floor-w.floor > 20 {
			t.Errorf("%d: floor %d, want %d", i, w.floor, look.floor)
		}
		w.asked()
	}
	if len(w.open) != 0 {
		t.Error(w.open)
	}
	for range 3 { // nobody asks
		w.look("40:41:", 200)
	}
	if w.floor > 70 {
		t.Errorf("floor %d, and nobody has asked for what became visible behind 70", w.floor)
	}
}

// A page is as large as the last page lets expect, also when no message is in memory. Repeats may have another size.
func TestSizeOfAPage(t *testing.T) {
	p := newPlan(64, 4<<20, false, time.Second)
	if n, _ := p.free(); n != 256 {
		t.Errorf("%d of the first page", n)
	}
	p.pages.learn([]Entry{{weight: 1 << 20}, {weight: 1 << 20}})
	p.repeats.learn([]Entry{{weight: 10}})
	if n, _ := p.free(); n != 3 || p.repeats.limit(16, 1<<20) != 16 {
		t.Errorf("%d of a page, %d repeats", n, p.repeats.limit(16, 1<<20))
	}
	p.pages.learn(nil)
	p.repeats.learn([]Entry{{weight: 8 << 20}})
	if n, _ := p.free(); n != 3 || p.repeats.limit(16, 1<<20) != 1 {
		t.Errorf("%d of a page, %d repeats", n, p.repeats.limit(16, 1<<20))
	}
}
