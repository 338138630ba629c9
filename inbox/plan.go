package inbox

import (
	"slices"
	"time"
)

// plan decides which messages run now. A plan is pure: the consumer tells the plan what the broker delivered and how the runs
// ended. One message of a lane runs at most. A lane is a key, or a message without a key.
//
// A lane is stalled while its first message has failed. A stalled lane gives messages back to the broker, so that other lanes have
// room in memory. The plan keeps the IDs of those. The messages are taken in their order when they come again.
type plan struct {
	workers int // messages that run at most
	window  int // messages in memory at most
	perLane int // of one stalled lane

	items    []*item          // in the order in which they came
	known    map[string]*item // the same by ID
	inLane   map[string]int   // how many of a lane are in items
	running  map[string]bool  // lanes of which a message runs
	returned map[string][]*back
}

// item is a message in memory.
type item struct {
	Message
	lane       string
	deliveries []Delivery // not settled
	count      int        // deliveries by the broker, without the ones given back
	failures   int        // runs that failed and counted
	tries      int        // runs in a row that failed, counted or not
	wait       time.Time  // no run before this time
	returns    int        // how often it was given back before
}

// back is a message that was given back.
type back struct {
	id    string
	times int
	until time.Time // the lane does not wait for it any longer
}

const (
	returnDelay = time.Second      // of the first return; it doubles
	maxReturn   = 15 * time.Second // longest delay of a return
	patience    = time.Minute      // for which a lane waits for a message after its delay
)

func newPlan(workers, window int) *plan {
	return &plan{workers: workers, window: window, perLane: max(1, window/4), known: make(map[string]*item), inLane: make(map[string]int),
		running: make(map[string]bool), returned: make(map[string][]*back)}
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

// add takes a delivery, in the order in which it came. Add reports whether the message has to be given back,
// and for how long.
func (p *plan) add(d Delivery, now time.Time) (giveBack bool, delay time.Duration) {
	m := d.Message()
	if it := p.known[m.ID]; it != nil && m.ID != "" {
		it.deliveries = append(it.deliveries, d)
		return false, 0
	}
	lane := laneOf(m)
	gone := p.expire(lane, now)
	at := slices.IndexFunc(gone, func(b *back) bool { return b.id == m.ID })
	ahead := len(gone) > 0 && at != 0
	if m.ID != "" && (ahead || p.inLane[lane] >= p.perLane && p.stalled(lane)) {
		return true, p.giveBack(lane, m.ID, at, now)
	}
	it := &item{Message: m, lane: lane, deliveries: []Delivery{d}, count: d.Count()}
	if at == 0 {
		it.returns = gone[0].times
		it.count -= it.returns
		p.forget(lane, gone[1:])
	}
	p.items = append(p.items, it)
	if m.ID != "" {
		p.known[m.ID] = it
	}
	p.inLane[lane]++
	return false, 0
}

// giveBack notes that a message goes back, in its place behind the others of its lane.
func (p *plan) giveBack(lane, id string, at int, now time.Time) time.Duration {
	if at < 0 {
		at = len(p.returned[lane])
		p.returned[lane] = append(p.returned[lane], &back{id: id})
	}
	b := p.returned[lane][at]
	delay := returnDelay / 4 // a lane that runs has room soon
	if p.stalled(lane) {
		delay = min(returnDelay<<min(b.times, 10), maxReturn)
	}
	b.times++
	b.until = now.Add(delay + patience)
	return delay
}

// stalled reports whether the first message of a lane has failed.
func (p *plan) stalled(lane string) bool {
	i := slices.IndexFunc(p.items, func(it *item) bool { return it.lane == lane })
	return i >= 0 && p.items[i].tries > 0
}

// shed removes messages of a stalled lane that have too many before them. The removed messages stand before the messages that were given back earlier.
func (p *plan) shed(lane string, now time.Time) (shed []*item) {
	n := 0
	p.items = slices.DeleteFunc(p.items, func(it *item) bool {
		if it.lane != lane || it.ID == "" {
			return false
		}
		if n++; n <= p.perLane {
			return false
		}
		shed = append(shed, it)
		return true
	})
	var gone []*back
	for _, it := range shed {
		delete(p.known, it.ID)
		p.inLane[lane]--
		gone = append(gone, &back{it.ID, it.returns + 1, now.Add(returnDelay + patience)})
	}
	p.forget(lane, append(gone, p.returned[lane]...))
	return shed
}

// expire forgets messages that were given back and did not come again: other processes have them.
func (p *plan) expire(lane string, now time.Time) []*back {
	gone := p.returned[lane]
	if len(gone) > 0 {
		gone = slices.DeleteFunc(gone, func(b *back) bool { return !now.Before(b.until) })
		p.forget(lane, gone)
	}
	return gone
}

func (p *plan) forget(lane string, rest []*back) {
	if len(rest) == 0 {
		delete(p.returned, lane)
	} else {
		p.returned[lane] = rest
	}
}

// next returns the messages that run now, and counts them as running. Wait is the time at which another may run
// again, or zero.
func (p *plan) next(now time.Time) (start []*item, wait time.Time) {
	seen := make(map[string]bool, len(p.items))
	for _, it := range p.items {
		if len(p.running) >= p.workers {
			break
		}
		if seen[it.lane] {
			continue
		}
		seen[it.lane] = true
		switch {
		case p.running[it.lane]:
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

// retry takes a message that has failed and runs again at a time. The caller gives those of its lane back that retry returns, in
// their order and for returnDelay.
func (p *plan) retry(it *item, now, at time.Time) (shed []*item) {
	delete(p.running, it.lane)
	it.wait = at
	return p.shed(it.lane, now)
}

// done takes a message of which n deliveries are settled, and lets the next of its lane run. The caller gives the later deliveries
// back, because the plan does not know their fate. The message may be a dead letter, and a later one may have its ID.
func (p *plan) done(it *item, n int) (late []Delivery) {
	delete(p.running, it.lane)
	p.items = slices.DeleteFunc(p.items, func(other *item) bool { return other == it })
	if it.ID != "" {
		delete(p.known, it.ID)
	}
	if p.inLane[it.lane]--; p.inLane[it.lane] == 0 {
		delete(p.inLane, it.lane)
	}
	return it.deliveries[n:]
}
