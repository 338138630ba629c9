package outbox

import (
	"cmp"
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
	perLane   int  // of one lane
	continues bool // a dead message does not halt its lane
	lag       time.Duration

	rows    []*row          // pending, in the order of seq
	known   map[int64]*row  // the same by seq
	inLane  map[string]int  // how many of a lane are in rows
	halted  map[string]bool // lanes behind a dead message
	flying  map[string]bool // lanes of the messages that are under way
	skipped map[string]bool // lanes of which this pass has left out a message
	lowest  int64           // number of the first message that was left out
	pos     int64           // the pass has read the table up to this number
	newest  int64           // largest number that was seen
	marks   []mark          // the newest number at a time
}

type row struct {
	Entry
	wait  time.Time // no sending before this time
	tries int       // sendings in a row that failed, counted or not
	again bool      // the message is confirmed, and is sent again because it is not done
}

type mark struct {
	at  time.Time
	seq int64
}

func newPlan(window int, continues bool, lag time.Duration) *plan {
	p := &plan{window: window, room: 4 * window, perLane: max(2, window/2), continues: continues, lag: lag, known: make(map[int64]*row), inLane: make(map[string]int), flying: make(map[string]bool)}
	p.full(nil)
	return p
}

// full begins a pass from the start of the table. Dead are the lanes of dead messages, as they were before the
// first page of the pass is read. A lane that an operator has freed is thus read from its first message.
func (p *plan) full(dead []string) {
	p.halted = make(map[string]bool)
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
// began before may have committed smaller numbers since. Later ones are found by the next full pass.
func (p *plan) again(now time.Time) {
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
	p.begin(min(from, p.lowest-1))
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

// left returns keys of which this pass has left out a message, so that the next page need not have more of them.
func (p *plan) left() (keys []string) {
	for lane := range p.skipped {
		if lane[0] != 0 && len(keys) < 50 { // a lane without a key is one message
			keys = append(keys, lane)
		}
	}
	slices.Sort(keys) // so that the database can keep the statement prepared
	return keys
}

// free is how many messages the next page may have.
func (p *plan) free() int { return p.room - len(p.rows) }

// add takes a page, which the table gave in the order of seq.
func (p *plan) add(page []Entry) {
	for _, e := range page {
		p.pos, p.newest = max(p.pos, e.seq), max(p.newest, e.seq)
		lane := e.lane()
		switch {
		case p.known[e.seq] != nil || p.halted[lane]:
		case p.skipped[lane] || p.inLane[lane] >= p.perLane:
			p.skipped[lane] = true
			p.lowest = min(p.lowest, e.seq)
		default:
			p.insert(&row{Entry: e})
		}
	}
}

func (p *plan) insert(r *row) {
	at, _ := slices.BinarySearchFunc(p.rows, r.seq, func(r *row, seq int64) int { return cmp.Compare(r.seq, seq) })
	p.rows = slices.Insert(p.rows, at, r)
	p.known[r.seq] = r
	p.inLane[r.lane()]++
}

// next returns the messages that are to be sent now, and counts them as under way. Wait is the time at which
// another one may be sent again, or zero.
func (p *plan) next(now time.Time) (send []*row, wait time.Time) {
	seen := make(map[string]bool, len(p.rows))
	for _, r := range p.rows {
		if len(p.flying) >= p.window {
			break
		}
		lane := r.lane()
		if seen[lane] {
			continue
		}
		seen[lane] = true
		switch {
		// The message under way need not be the first of its lane: a transaction may have committed a smaller number since.
		case p.flying[lane]:
		case r.wait.After(now):
			if wait.IsZero() || r.wait.Before(wait) {
				wait = r.wait
			}
		default:
			p.flying[lane] = true
			send = append(send, r)
		}
	}
	return send, wait
}

// confirm takes a message that the table has as confirmed or done.
func (p *plan) confirm(r *row) {
	p.land(r)
	p.remove(func(o *row) bool { return o == r })
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
		p.remove(func(o *row) bool { return o == r })
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
		if lane := r.lane(); p.inLane[lane] > 1 {
			p.inLane[lane]--
		} else {
			delete(p.inLane, lane)
		}
		return true
	})
}
