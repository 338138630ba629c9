package sequence

import "time"

// plan says which database is asked next: a pure function of what happened. Times are
// since any one instant.
type plan struct {
	lanes []health
	turn  int // the database that was asked last
}

// health is the state of a database as calls found it.
type health struct {
	good     bool          // it may be asked for numbers: it was looked at, and answered since
	busy     bool          // one statement is under way, and there is no second
	failures int           // since it gave numbers
	failed   time.Duration // when it failed last
}

const (
	// firstPause is from a failure to the next try, where callers wait for it; and else from
	// the first failure.
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// next returns the database that is asked for numbers: the good ones in turn that have nothing
// under way.
func (p *plan) next() (i int, ok bool) {
	for k := range p.lanes {
		i = (p.turn + 1 + k) % len(p.lanes)
		if p.lanes[i].good && !p.lanes[i].busy {
			return i, true
		}
	}
	return 0, false
}

// due returns a database that is to be looked at again. When nobody could answer the callers
// that wait, a failed one is looked at sooner.
func (p *plan) due(now time.Duration, waiting bool) (i int, ok bool) {
	for i, h := range p.lanes {
		if !h.good && !h.busy && now >= p.again(h, waiting) {
			return i, true
		}
	}
	return 0, false
}

// again is when a failed database is looked at again: after pauses that double.
func (p *plan) again(h health, waiting bool) time.Duration {
	if h.failures == 0 {
		return 0
	}
	if waiting && !p.anyGood() {
		return h.failed + firstPause
	}
	return h.failed + min(firstPause<<min(h.failures-1, 10), lastPause)
}

// wake returns the time at which due has something to say, if only time has to pass.
func (p *plan) wake(waiting bool) (at time.Duration, ok bool) {
	for _, h := range p.lanes {
		if again := p.again(h, waiting); !h.good && !h.busy && (!ok || again < at) {
			at, ok = again, true
		}
	}
	return at, ok
}

func (p *plan) anyGood() bool {
	for _, h := range p.lanes {
		if h.good {
			return true
		}
	}
	return false
}

// begin notes a statement, which next or due chose.
func (p *plan) begin(i int) {
	p.lanes[i].busy = true
	if p.lanes[i].good {
		p.turn = i
	}
}

// outcome is how a statement ended.
type outcome int

const (
	failed outcome = iota
	looked         // it may be asked for numbers; only these show that it gives some
	gave
)

// end notes how the statement ended.
func (p *plan) end(i int, how outcome, now time.Duration) {
	h := &p.lanes[i]
	h.busy, h.good = false, how != failed
	switch how {
	case gave:
		h.failures = 0
	case failed:
		h.failures++
		h.failed = now
	}
}
