package inbox

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/pawl-go/pawl/idem"
)

// plan decides which messages run now. A plan is pure: the consumer tells the plan what the broker delivered and how the runs
// ended. One message of a lane runs at most. A lane is a key, or a message without a key.
//
// A lane is stalled while its first message has failed. Most messages of a stalled lane are parked, so that other lanes have room in
// memory. A parked message keeps its place, and its content is loaded for its run. If many lanes are stalled, some park all messages.
type plan struct {
	workers int // messages that run at most
	window  int // messages that are not parked at most
	perLane int // of one stalled lane

	known   map[identity]*item
	lanes   map[string]*lane
	ready   []*lane // their first message may run; the lane that waits longest is first
	waiting waiting // their first message has failed
	running int

	inMemory int // messages that are not parked
	stalled  int // of those, the ones in waiting lanes
	present  int // lanes with such a message
	places   int // given to messages so far
}

// identity is what all deliveries of a message have in common. Another message may have the same ID by mistake.
type identity struct {
	id  string
	sum idem.Fingerprint
}

// item is a message that the broker has delivered.
type item struct {
	Message
	identity   identity // kept here, because the content may leave memory
	lane       *lane
	place      int       // by which all messages came
	deliveries []handed  // not settled
	count      int       // deliveries by the broker
	parked     bool      // the content is not in memory
	failures   int       // runs that failed and counted
	tries      int       // runs in a row that failed, counted or not
	taken      time.Time // since then no dead letter is made, because the broker delivers the message again
}

// handed is a delivery by a feed.
type handed struct {
	Delivery
	feed int
}

// lane is messages that run one after another.
type lane struct {
	name     string
	items    []*item // in their order; the first ones are in memory, and the others are parked
	inMemory int
	running  bool
	wait     time.Time // no run before this time
	at       int       // in the heap of waiting lanes, or -1
}

// mostParked times the window are the lanes with all messages parked, before no more lanes park their first one.
const mostParked = 16

func newPlan(workers, window int) *plan {
	return &plan{workers: workers, window: window, perLane: max(1, window/4), known: make(map[identity]*item), lanes: make(map[string]*lane)}
}

// laneOf returns the name of the lane of a message. A message without a key is alone. A message without an ID becomes a dead letter, which
// is left out of the order of its key.
func laneOf(m Message) string {
	if m.Key == "" || m.ID == "" {
		return "\x00" + m.ID
	}
	return m.Key
}

// free is how many deliveries have room.
func (p *plan) free() int { return max(0, p.window-p.inMemory) }

// add takes a delivery of a feed, in the order in which it came.
func (p *plan) add(d Delivery, feed int) {
	m := d.Message()
	p.place(d, feed, identity{m.ID, m.sum()}, false)
}

// place takes a delivery, whose content may have left memory.
func (p *plan) place(d Delivery, feed int, is identity, unloaded bool) {
	m := d.Message()
	if it := p.known[is]; it != nil && m.ID != "" {
		it.again(handed{d, feed})
		return
	}
	name := laneOf(m)
	l := p.lanes[name]
	if l == nil {
		l = &lane{name: name, at: -1}
		p.lanes[name] = l
		p.ready = append(p.ready, l)
	}
	it := &item{Message: m, identity: is, lane: l, place: p.places, deliveries: []handed{{d, feed}}, count: d.Count()}
	p.places++
	if m.ID != "" {
		p.known[is] = it
	}
	if unloaded || l.inMemory < len(l.items) || l.inMemory >= p.perLane && l.items[0].tries > 0 {
		it.park()
	} else {
		p.remember(l, 1)
	}
	l.items = append(l.items, it)
}

// again takes another delivery of a message.
func (it *item) again(d handed) {
	it.deliveries, it.taken = append(it.deliveries, d), time.Time{}
	if it.parked {
		d.Unload()
	}
	if l := it.lane; !l.running || l.items[0] != it {
		it.forget()
	}
}

// forget removes deliveries of earlier feeds. The broker delivers all again that an earlier feed has not settled.
func (it *item) forget() {
	last := it.deliveries[len(it.deliveries)-1].feed
	it.deliveries = slices.DeleteFunc(it.deliveries, func(d handed) bool { return d.feed != last })
}

// park lets the content leave memory.
func (it *item) park() {
	it.parked = true
	it.Headers, it.Payload = nil, nil
	for _, d := range it.deliveries {
		d.Unload()
	}
}

// remember counts messages of a lane that are in memory.
func (p *plan) remember(l *lane, n int) {
	was := l.inMemory > 0
	l.inMemory += n
	p.inMemory += n
	if l.at >= 0 {
		p.stalled += n
	}
	switch is := l.inMemory > 0; {
	case is && !was:
		p.present++
	case was && !is:
		p.present--
	}
}

// park parks the messages of a lane that have so many before them.
func (p *plan) park(l *lane, keep int) {
	if l.inMemory <= keep {
		return
	}
	for _, it := range l.items[keep:l.inMemory] {
		it.park()
	}
	p.remember(l, keep-l.inMemory)
}

// rest leaves half of the window to lanes that are not stalled: the lanes that wait longest park all of their messages. A few more do at once, so that
// the lanes are not sorted after each failure. There is a bound, so that a database that is away does not bring the whole queue into this process.
func (p *plan) rest() {
	full := func() bool { return len(p.lanes)-p.present >= mostParked*p.window }
	if 2*p.stalled <= p.window || full() {
		return
	}
	var all []*lane
	for _, l := range p.waiting {
		if l.inMemory > 0 {
			all = append(all, l)
		}
	}
	slices.SortStableFunc(all, func(a, b *lane) int { return b.wait.Compare(a.wait) })
	for _, l := range all {
		if 2*p.stalled <= p.window-p.window/8 || full() {
			break
		}
		p.park(l, 0)
	}
}

// next returns the messages that run now, and counts them as running. Wait is the time at which another may run
// again, or zero.
func (p *plan) next(now time.Time) (start []*item, wait time.Time) {
	for len(p.waiting) > 0 && !p.waiting[0].wait.After(now) {
		l := p.waiting[0]
		heap.Pop(&p.waiting)
		p.stalled -= l.inMemory
		p.ready = append(p.ready, l)
	}
	for len(p.ready) > 0 && p.running < p.workers {
		l := p.ready[0]
		p.ready = p.ready[1:]
		l.running = true
		p.running++
		start = append(start, l.items[0])
	}
	if len(p.waiting) > 0 {
		wait = p.waiting[0].wait
	}
	return start, wait
}

// retry takes a message that has failed and runs again at a time.
func (p *plan) retry(it *item, at time.Time) {
	l := it.lane
	l.running, l.wait = false, at
	p.running--
	heap.Push(&p.waiting, l)
	p.stalled += l.inMemory
	p.park(l, p.perLane)
	it.forget()
	if it.parked {
		it.park() // the run has loaded it
	}
}

// done takes a message of which n deliveries are settled, and lets the next of its lane run. Later deliveries are taken as those of another message,
// because the plan does not know their fate. The message may be a dead letter, and a later one may have its ID.
func (p *plan) done(it *item, n int) {
	l := it.lane
	l.running = false
	p.running--
	l.items[0] = nil
	l.items = l.items[1:]
	if !it.parked {
		p.remember(l, -1)
	}
	delete(p.known, it.identity)
	if len(l.items) == 0 {
		delete(p.lanes, l.name)
	} else {
		p.ready = append(p.ready, l)
	}
	for _, d := range it.deliveries[n:] {
		p.place(d.Delivery, d.feed, it.identity, it.parked)
	}
}

// all returns all messages in the order in which they came.
func (p *plan) all() (all []*item) {
	for _, l := range p.lanes {
		all = append(all, l.items...)
	}
	slices.SortFunc(all, func(a, b *item) int { return cmp.Compare(a.place, b.place) })
	return all
}

// waiting is a heap of lanes. The lane that runs soonest is first.
type waiting []*lane

func (w waiting) Len() int           { return len(w) }
func (w waiting) Less(i, j int) bool { return w[i].wait.Before(w[j].wait) }
func (w waiting) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].at, w[j].at = i, j
}

// Push implements [heap.Interface].
func (w *waiting) Push(x any) {
	l := x.(*lane)
	l.at = len(*w)
	*w = append(*w, l)
}

// Pop implements [heap.Interface].
func (w *waiting) Pop() any {
	old := *w
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	l.at = -1
	return l
}
