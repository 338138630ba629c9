package inbox

import (
	"cmp"
	"slices"
	"time"
)

// plan decides which messages run now. A plan is pure: the consumer tells the plan what the broker delivered and how the runs
// ended. One message of a lane runs at most. A lane is a key, or a message without a key.
//
// A lane is stalled while its first message has failed. A stalled lane gives messages back to the broker, so that other lanes have
// room in memory. If many lanes are stalled, some give their first message back as well. The plan keeps the IDs of those. The
// messages are taken in their order when they come again.
type plan struct {
	workers int // messages that run at most
	window  int // messages in memory at most
	perLane int // of one stalled lane

	items    []*item            // in the order in which they came
	known    map[string]*item   // the same by ID
	lanes    map[string][]*item // the same by lane
	running  map[string]bool    // lanes of which a message runs
	returned map[string]*line   // messages that were given back, by lane

	last  time.Time     // when the consumer began or ended to receive
	deaf  time.Duration // for which nothing could come
	swept time.Time     // when lines were last looked through
}

// item is a message in memory.
type item struct {
	Message
	lane       string
	deliveries []Delivery // not settled
	count      int        // deliveries by the broker
	returns    int        // how often it was given back before
	trials
}

// trials are what the plan remembers of the runs of a message.
type trials struct {
	failures int       // runs that failed and counted
	tries    int       // runs in a row that failed, counted or not
	wait     time.Time // no run before this time
}

// leaving are deliveries that the consumer has to give back in their order, with a delay.
type leaving struct {
	deliveries []Delivery
	delay      time.Duration
}

const (
	returnDelay = time.Second      // of the first return; it doubles
	maxReturn   = 15 * time.Second // longest delay of a return
	patience    = time.Minute      // for which a lane waits for a message after its delay, while the consumer receives
	mostLines   = 16               // times the window are the lanes that have given messages back, before no more give their first one back
)

func newPlan(workers, window int) *plan {
	return &plan{workers: workers, window: window, perLane: max(1, window/4), known: make(map[string]*item), lanes: make(map[string][]*item),
		running: make(map[string]bool), returned: make(map[string]*line)}
}

// laneOf returns the lane of a message. A message without a key is alone, and so is one without an ID.
func laneOf(m Message) string {
	if m.Key == "" {
		return "\x00" + m.ID
	}
	return m.Key
}

// free is how many deliveries have room.
func (p *plan) free() int { return max(0, p.window-len(p.items)) }

// receive notes that the consumer begins to receive, or has received. Came says that deliveries could come since the last call. Patience lasts
// while messages can come, so it stops while the window is full or the broker is away. Short pauses of a busy consumer count.
func (p *plan) receive(now time.Time, came bool) {
	if pause := now.Sub(p.last) - returnDelay; !came && pause > 0 && !p.last.IsZero() {
		p.deaf += pause
	}
	p.last = now
	if came && p.heard(now).Sub(p.swept) >= patience {
		p.swept = p.heard(now)
		for lane := range p.returned {
			p.expire(lane, now)
		}
	}
}

// heard is a clock that stops while nothing can come.
func (p *plan) heard(now time.Time) time.Time { return now.Add(-p.deaf) }

// add takes a delivery, in the order in which it came. Add reports whether the message has to be given back,
// and for how long.
func (p *plan) add(d Delivery, now time.Time) (giveBack bool, delay time.Duration) {
	m := d.Message()
	if it := p.known[m.ID]; it != nil && m.ID != "" {
		it.deliveries = append(it.deliveries, d)
		return false, 0
	}
	lane := laneOf(m)
	first := p.expire(lane, now)
	ahead := first != nil && first.id != m.ID
	if m.ID != "" && (ahead || len(p.lanes[lane]) >= p.perLane && p.stalled(lane)) {
		return true, p.giveBack(lane, m.ID, now)
	}
	it := &item{Message: m, lane: lane, deliveries: []Delivery{d}, count: d.Count()}
	if first != nil && !ahead {
		it.returns, it.trials = first.times, first.trials
		p.pop(lane)
	}
	p.items = append(p.items, it)
	if m.ID != "" {
		p.known[m.ID] = it
	}
	p.lanes[lane] = append(p.lanes[lane], it)
	return false, 0
}

// giveBack notes that a message goes back, in its place behind the others of its lane.
func (p *plan) giveBack(lane, id string, now time.Time) time.Duration {
	b := p.line(lane).find(id)
	delay := returnDelay / 4 // a lane that runs has room soon
	if p.stalled(lane) {
		delay = min(returnDelay<<min(b.times, 10), maxReturn)
	}
	b.times++
	b.until = p.heard(now).Add(delay + patience)
	return delay
}

// stalled reports whether the first message of a lane has failed.
func (p *plan) stalled(lane string) bool {
	if items := p.lanes[lane]; len(items) > 0 {
		return items[0].tries > 0
	}
	l := p.returned[lane]
	return l != nil && l.first().tries > 0
}

// leave removes messages of a lane that have so many before them. The removed messages stand before the messages that were given back
// earlier. Only the first message of a lane may have failed.
func (p *plan) leave(lane string, keep int, delay time.Duration, now time.Time) (out leaving) {
	var stay, gone []*item
	for _, it := range p.lanes[lane] {
		if it.ID == "" || len(stay) < keep {
			stay = append(stay, it)
			continue
		}
		gone = append(gone, it)
		delete(p.known, it.ID)
		out.deliveries = append(out.deliveries, it.deliveries...)
	}
	if len(gone) == 0 {
		return out
	}
	p.items = slices.DeleteFunc(p.items, func(it *item) bool { return it.ID != "" && p.known[it.ID] != it })
	p.stay(lane, stay)
	l := p.line(lane)
	for _, it := range slices.Backward(gone) {
		l.push(&back{id: it.ID, times: it.returns + 1, until: p.heard(now).Add(delay + patience), trials: it.trials})
	}
	out.delay = delay
	return out
}

func (p *plan) stay(lane string, items []*item) {
	if len(items) == 0 {
		delete(p.lanes, lane)
	} else {
		p.lanes[lane] = items
	}
}

// rest leaves half of the window to lanes that are not stalled: the lanes that wait longest leave memory with all of their messages. There is
// a bound, so that a database that is away does not bring the whole queue through memory.
func (p *plan) rest(now time.Time) (out []leaving) {
	n := 0
	var waiting []*item
	for _, it := range p.items {
		all := p.lanes[it.lane]
		if it == all[0] && !p.running[it.lane] && it.wait.After(now) && !slices.ContainsFunc(all, func(it *item) bool { return it.ID == "" }) {
			n += len(all)
			waiting = append(waiting, it)
		}
	}
	if 2*n <= p.window {
		return nil
	}
	slices.SortStableFunc(waiting, func(a, b *item) int { return cmp.Compare(b.wait.UnixNano(), a.wait.UnixNano()) })
	for _, it := range waiting {
		if 2*n <= p.window || len(p.returned) >= mostLines*p.window {
			break
		}
		n -= len(p.lanes[it.lane])
		out = append(out, p.leave(it.lane, 0, it.wait.Sub(now), now))
	}
	return out
}

// next returns the messages that run now, and counts them as running. Wait is the time at which another may run
// again, or zero.
func (p *plan) next(now time.Time) (start []*item, wait time.Time) {
	for _, it := range p.items {
		if len(p.running) >= p.workers {
			break
		}
		switch {
		case it != p.lanes[it.lane][0] || p.running[it.lane]:
		case it.wait.After(now):
			if wait.IsZero() || it.wait.Before(wait) {
				wait = it.wait
			}
		default:
			p.running[it.lane] = true
			start = append(start, it)
		}
	}
	return start, wait
}

// retry takes a message that has failed and runs again at a time. The caller gives those of its lane back for which there is no room.
func (p *plan) retry(it *item, now, at time.Time) leaving {
	delete(p.running, it.lane)
	it.wait = at
	return p.leave(it.lane, p.perLane, returnDelay, now)
}

// done takes a message of which n deliveries are settled, and lets the next of its lane run. The caller gives the later deliveries
// back, because the plan does not know their fate. The message may be a dead letter, and a later one may have its ID.
func (p *plan) done(it *item, n int) (late []Delivery) {
	delete(p.running, it.lane)
	is := func(other *item) bool { return other == it }
	p.items = slices.DeleteFunc(p.items, is)
	if it.ID != "" {
		delete(p.known, it.ID)
	}
	p.stay(it.lane, slices.DeleteFunc(p.lanes[it.lane], is))
	return it.deliveries[n:]
}
