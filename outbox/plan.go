package outbox

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"time"
)

// plan decides which messages of a partition are sent now. A plan is pure: the owner of the partition tells the plan what
// the table and the broker said. A pass reads the pending messages in the order of their numbers, page by page. One
// message of a lane is under way at most.
type plan struct {
	window    int  // messages under way at most
	room      int  // messages in memory at most
	maxBytes  int  // of their payloads and headers, and one message more
	perLane   int  // of one lane
	continues bool // a dead message does not halt its lane
	lag       time.Duration

	rows    []*row               // pending, in the order of seq
	bytes   int                  // of rows
	known   map[int64]*row       // the same by seq
	inLane  map[string]int       // how many of a lane are in rows
	halted  map[string]bool      // lanes behind a dead message
	resting map[string]time.Time // lanes that wait after a failure, of which no row is in memory: read by the full pass after that time
	awaited map[string]bool      // lanes that have rested, and that this full pass has not brought yet
	flying  map[string]bool      // lanes of the messages that are under way
	skipped map[string]bool      // lanes of which this pass has left out a message
	lowest  int64                // number of the first message that was left out
	pos     int64                // the pass has read the table up to this number
	newest  int64                // largest number that was seen
	pages   mean                 // of the last page
	repeats mean                 // of the last repeats
	marks   []mark               // the newest number at a time
}

type row struct {
	Entry
	wait  time.Time // no sending before this time
	tries int       // sendings in a row that failed, counted or not
	gone  bool      // the message is no longer pending
	again bool      // the message is confirmed, and is sent again because it is not done
	kept  bool      // the broker has confirmed this sending, and the message could not be marked
	calm  uint64    // one more than the confirms of the relay when the message failed last, or when its first try began
	fails bool      // the broker has failed for this message, and has neither confirmed nor refused it since
}

// size is how many bytes of a message vary much.
func (r *row) size() int { return r.weight + len(r.ID) + len(r.Topic) + len(r.Key) }

type mark struct {
	at  time.Time
	seq int64
}

func newPlan(window, maxBytes int, continues bool, lag time.Duration) *plan {
	p := &plan{window: window, room: 4 * window, maxBytes: maxBytes, perLane: max(2, window/2), continues: continues, lag: lag, known: make(map[int64]*row),
		inLane: make(map[string]int), resting: make(map[string]time.Time), flying: make(map[string]bool)}
	p.full(nil, time.Time{})
	return p
}

// full begins a pass from the start of the table. Dead are the lanes of dead messages, as they were before the
// first page of the pass is read. A lane that an operator has freed is thus read from its first message.
func (p *plan) full(dead []string, now time.Time) {
	p.halted = make(map[string]bool)
	p.awaited = make(map[string]bool)
	maps.DeleteFunc(p.resting, func(lane string, until time.Time) bool {
		if until.After(now) {
			return false
		}
		p.awaited[lane] = true
		return true
	})
	for _, lane := range dead {
		p.halted[lane] = true
	}
	p.begin(0)
}

// begin begins a pass after a number.
func (p *plan) begin(pos int64) {
	p.skipped, p.lowest, p.pos = make(map[string]bool), math.MaxInt64, pos
}

// again begins the next pass. That pass begins behind the newest number of a lag ago, because transactions that
// began before may have committed smaller numbers since. Later ones are found by the next full pass. Nothing is missed up to floor.
func (p *plan) again(now time.Time, floor int64) {
	from := int64(0)
	for len(p.marks) > 1 && now.Sub(p.marks[1].at) >= p.lag {
		p.marks = p.marks[1:]
	}
	if len(p.marks) > 0 && now.Sub(p.marks[0].at) >= p.lag {
		from = p.marks[0].seq
	}
	if n := len(p.marks); n == 0 || now.Sub(p.marks[n-1].at) >= p.lag/16 {
		p.marks = append(p.marks, mark{now, p.newest})
	}
	p.begin(min(max(from, floor), p.lowest-1))
}

// hidden reports whether the last pass left out messages of a lane that has room again.
func (p *plan) hidden() bool {
	for lane := range p.skipped {
		if p.inLane[lane] <= p.perLane/2 {
			return true
		}
	}
	return false
}

// left returns keys whose messages this pass leaves out, so that the next page need not have more of them.
func (p *plan) left() (keys []string) {
	for _, lanes := range []iter.Seq[string]{maps.Keys(p.skipped), maps.Keys(p.resting)} {
		for lane := range lanes {
			if len(keys) == 50 {
				break
			}
			if lane[0] != 0 { // a lane without a key is one message
				keys = append(keys, lane)
			}
		}
	}
	slices.Sort(keys) // so that the database can keep the statement prepared
	return slices.Compact(keys)
}

// free is how many messages the next page may have, and how many bytes. Few at a time are not worth a page.
func (p *plan) free() (n, bytes int) {
	n, bytes = p.room-len(p.rows), p.maxBytes-p.bytes
	if n < p.room/2 || bytes < p.maxBytes/4 {
		return 0, 0
	}
	return p.pages.limit(n, bytes), bytes
}

// arrivals returns the keys of which a page brings a message. Before add, the owner asks the table for the numbers of
// earlier pending messages of these keys. The transaction of such a message may have ended after its place was read.
func (p *plan) arrivals(page []Entry) (keys []string) {
	for _, e := range page {
		if e.Key != "" && p.known[e.seq] == nil && !p.leaves(e.Key) {
			keys = append(keys, e.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// place is where a pending message is.
type place struct {
	seq int64
	key string
}

// misses reports whether the pass has gone past a pending message, and comes to that message no more. A lane that is left out is
// read later, from its first message on.
func (p *plan) misses(at place) bool { return p.known[at.seq] == nil && !p.leaves(at.key) }

// missed reports whether the pass misses an earlier message, and lets the pass go on at the first such message.
func (p *plan) missed(earlier []place) bool {
	first := int64(math.MaxInt64)
	for _, at := range earlier {
		if p.misses(at) {
			first = min(first, at.seq)
		}
	}
	if first == math.MaxInt64 {
		return false
	}
	p.begin(min(first, p.lowest) - 1)
	return true
}

// whole reports whether this pass has taken all messages that it has read.
func (p *plan) whole() bool { return len(p.skipped)+len(p.resting)+len(p.halted) == 0 }

// leaves reports whether this pass takes no message of a lane.
func (p *plan) leaves(lane string) bool {
	_, rests := p.resting[lane]
	return rests || p.halted[lane] || p.skipped[lane]
}

// add takes a page, which the table gave in the order of seq.
func (p *plan) add(page []Entry) {
	for _, e := range page {
		p.pos, p.newest = max(p.pos, e.seq), max(p.newest, e.seq)
		lane := e.lane()
		_, rests := p.resting[lane]
		switch {
		case p.known[e.seq] != nil || p.halted[lane] || rests:
		case p.skipped[lane] || p.inLane[lane] >= p.perLane:
			p.skipped[lane] = true
			p.lowest = min(p.lowest, e.seq)
		default:
			p.insert(&row{Entry: e, tries: e.Attempt, fails: p.awaited[lane]})
			delete(p.awaited, lane)
		}
	}
}

// mean is how many bytes a message of a page has.
type mean int

func (m *mean) learn(page []Entry) {
	sum := 0
	for _, e := range page {
		sum += e.weight
	}
	if len(page) > 0 {
		*m = mean(sum / len(page))
	}
}

// limit is how many messages of that size have so many bytes, between 1 and n.
func (m mean) limit(n, bytes int) int { return max(1, min(n, bytes/(int(m)+1))) }

func (p *plan) insert(r *row) {
	at, _ := slices.BinarySearchFunc(p.rows, r.seq, func(r *row, seq int64) int { return cmp.Compare(r.seq, seq) })
	p.rows = slices.Insert(p.rows, at, r)
	p.known[r.seq] = r
	p.inLane[r.lane()]++
	p.bytes += r.size()
}

// rest makes room: lanes that wait after a failure leave the memory, until the next full pass that finds their time come.
// There are at most 16 times as many of them as fit into memory, so a broker that is away does not fill the memory.
func (p *plan) rest(waiting map[string]time.Time) {
	if n, _ := p.free(); n > 0 || len(p.resting) > 16*p.room {
		return
	}
	rows, bytes := 0, 0
	for _, r := range p.rows {
		if _, waits := waiting[r.lane()]; waits {
			rows, bytes = rows+1, bytes+r.size()
		}
	}
	if 2*rows < len(p.rows) && 2*bytes < p.bytes {
		return
	}
	maps.Copy(p.resting, waiting)
	p.remove(func(r *row) bool { _, waits := waiting[r.lane()]; return waits })
}

// failing is how many messages the broker has failed for, and has neither confirmed nor refused since.
func (p *plan) failing() (n int) {
	for _, r := range p.rows {
		if r.fails {
			n++
		}
	}
	return n + len(p.resting) + len(p.awaited)
}

// next returns the messages that are to be sent now, and counts them as under way. So many places of the window are
// taken otherwise. Wait is the time at which another message may be sent again, or zero. A repeat does not wait for an earlier
// message that waits after a failure, because the broker has confirmed the repeated message before that one.
func (p *plan) next(now time.Time, taken int) (send []*row, wait time.Time) {
	seen := make(map[string]bool, len(p.rows))
	waiting := make(map[string]time.Time)
	for _, r := range p.rows {
		if len(p.flying)+taken >= p.window {
			break
		}
		lane := r.lane()
		if _, waits := waiting[lane]; seen[lane] && !(waits && r.again) {
			continue
		}
		seen[lane] = true
		switch {
		// The message under way need not be the first of its lane: a transaction may have committed a smaller number since.
		case p.flying[lane]:
		case r.wait.After(now):
			waiting[lane] = r.wait
			if wait.IsZero() || r.wait.Before(wait) {
				wait = r.wait
			}
		default:
			p.flying[lane] = true
			delete(waiting, lane) // a lane with a message under way does not leave the memory
			send = append(send, r)
		}
	}
	if len(waiting) > 0 {
		p.rest(waiting)
	}
	return send, wait
}

// confirm takes messages that the table has as confirmed or done.
func (p *plan) confirm(rows ...*row) {
	for _, r := range rows {
		p.land(r)
		r.gone = true
	}
	p.remove(func(r *row) bool { return r.gone })
}

// retry takes a message that is to be sent again at a time.
func (p *plan) retry(r *row, at time.Time) {
	p.land(r)
	r.wait = at
}

// die takes a message that the table has as dead, and halts its key.
func (p *plan) die(r *row) {
	p.land(r)
	lane := r.lane()
	if p.continues || r.Key == "" {
		p.confirm(r)
		return
	}
	p.halted[lane] = true
	p.remove(func(o *row) bool { return o.lane() == lane })
}

func (p *plan) land(r *row) {
	delete(p.flying, r.lane())
}

func (p *plan) remove(leaves func(*row) bool) {
	p.rows = slices.DeleteFunc(p.rows, func(r *row) bool {
		if !leaves(r) {
			return false
		}
		delete(p.known, r.seq)
		p.bytes -= r.size()
		if lane := r.lane(); p.inLane[lane] > 1 {
			p.inLane[lane]--
		} else {
			delete(p.inLane, lane)
		}
		return true
	})
}
