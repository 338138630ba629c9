package snowflake

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

// term is the time for which a generator has a worker number. A position is a time in units, and
// below it the sequence number. So the number after the last of a unit is the first of the next.
type term struct {
	layout *Layout
	slot   *pawl.Slot
	worker int
	mark   id.Mark
	from   id.Reading // as this term raised the mark last
	first  int64      // the time of the term, in units, when it began
	began  time.Time
	burst  int64 // in units

	state atomic.Uint64 // the last position that was handed out, or sealed
	limit atomic.Int64  // the last time that the mark covers, in units
}

// sealed is the state of a term that hands out no more.
const sealed = math.MaxUint64

// now is the time of the term in units. That time follows no clock that can be set.
func (t *term) now() int64 { return t.first + int64(time.Since(t.began)/t.layout.Unit) }

// span is from the first position after old that can be had now to the first that cannot. The latter is a matter of
// the clock, or else of the mark.
func (t *term) span(old uint64) (first, end uint64, clock bool) {
	now, limit := t.now(), t.limit.Load()
	if now > limit {
		return 0, 0, false
	}
	most := min(limit, now+t.burst)
	return max(old+1, uint64(now)<<t.layout.SeqBits), uint64(most+1) << t.layout.SeqBits, most < limit
}

// reserve reserves up to n positions. reserve returns 0 if there are none now, see wait.
func (t *term) reserve(n uint64) (first, got uint64) {
	for {
		old := t.state.Load()
		if old == sealed {
			return 0, 0
		}
		first, end, _ := t.span(old)
		if first >= end {
			return 0, 0
		}
		got = min(n, end-first)
		if t.state.CompareAndSwap(old, first+got-1) {
			return first, got
		}
	}
}

// wait reports whether there are positions, and else how long the clock takes until there are some. 0 is not a
// matter of the clock.
func (t *term) wait() (ready bool, pause time.Duration) {
	old := t.state.Load()
	if old == sealed {
		return false, 0
	}
	first, end, clock := t.span(old)
	switch {
	case first < end:
		return true, 0
	case clock:
		return false, time.Duration((first-end)>>t.layout.SeqBits+1) * t.layout.Unit
	}
	return false, 0
}

// used is the last time that was handed out.
func (t *term) used(state uint64) int64 { return int64(state >> t.layout.SeqBits) }

// follow has the term begin after everything that another term has handed out, so that the IDs of
// a caller rise.
func (t *term) follow(used int64) {
	t.first = max(t.first, used+1-int64(time.Since(t.began)/t.layout.Unit))
	t.state.Store(max(t.state.Load(), uint64(used+1)<<t.layout.SeqBits-1))
}

// errFought says that the mark was raised, and perhaps not by this term.
var errFought = errors.New("the mark was raised by another request")

// raise reserves the time to come. If the outcome of a request is unknown, and the mark was raised
// since, raise cannot tell by which generator: the term ends.
func (t *term) raise(ctx context.Context, ahead int64) error {
	return t.reach(ctx, max(t.now(), t.used(t.state.Load()))+ahead)
}

// reach raises the mark to this time.
func (t *term) reach(ctx context.Context, to int64) error {
	if to = min(to, t.layout.maxTick()); to <= t.from.Value {
		return nil // the time is used up, or a clock stood still
	}
	is, err := t.mark.Raise(ctx, to, t.from)
	if errors.Is(err, pawl.ErrConflict) {
		return fmt.Errorf("%w: %w", errFought, err)
	}
	if err != nil {
		return err
	}
	t.from = is
	t.limit.Store(to)
	return nil
}

// settle ends the term: it writes the last time in use.
func (t *term) settle(ctx context.Context, used int64) error {
	m, can := t.mark.(id.Settler)
	if used = max(used, 1); !can || used >= t.from.Value {
		return nil
	}
	err := m.Settle(ctx, used, t.from)
	if errors.Is(err, pawl.ErrConflict) { // the next holder has begun, above the reserve
		return nil
	}
	return err
}
