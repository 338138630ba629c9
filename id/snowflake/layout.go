package snowflake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

// Layout says how an ID is made. From the highest bit to the lowest it has a time, the number of a
// worker and a sequence number. The sign bit is 0. All users of a name must have the same layout.
// The zero Layout is the default, and so is each of the bits together, the unit and the epoch.
type Layout struct {
	// The bits of each part, together 63: 1 to 52 of the time, 0 to 12 of the worker. Default
	// 41, 10 and 12.
	TimeBits, WorkerBits, SeqBits int

	// Unit of the time: whole milliseconds, 1 ms to 1 s. Default 1 ms, with which 41 bits last for
	// 69 years.
	Unit time.Duration

	// Epoch is time 0, in whole milliseconds, from 1970 on and not in the future. Default
	// 2024-01-01 UTC.
	Epoch time.Time
}

var defaultEpoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

func (l Layout) withDefaults() Layout {
	if l.TimeBits == 0 && l.WorkerBits == 0 && l.SeqBits == 0 {
		l.TimeBits, l.WorkerBits, l.SeqBits = 41, 10, 12
	}
	if l.Unit == 0 {
		l.Unit = time.Millisecond
	}
	if l.Epoch.IsZero() {
		l.Epoch = defaultEpoch
	}
	return l
}

const maxWorkerBits = 12 // pawl has slots for so many

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", pawl.ErrInvalid, fmt.Sprintf(format, args...))
}

func (l Layout) validate(now time.Time) error {
	switch {
	case l.TimeBits < 1 || l.TimeBits > 52:
		return invalid("Layout.TimeBits is %d: 1 to 52 are allowed", l.TimeBits)
	case l.WorkerBits < 0 || l.WorkerBits > maxWorkerBits:
		return invalid("Layout.WorkerBits is %d: 0 to %d are allowed", l.WorkerBits, maxWorkerBits)
	case l.SeqBits < 0 || l.TimeBits+l.WorkerBits+l.SeqBits != 63:
		return invalid("Layout: %d + %d + %d bits of time, worker and sequence are %d: they must be 63 together, and none negative",
			l.TimeBits, l.WorkerBits, l.SeqBits, l.TimeBits+l.WorkerBits+l.SeqBits)
	case l.Unit < time.Millisecond || l.Unit > time.Second || l.Unit%time.Millisecond != 0:
		return invalid("Layout.Unit is %v: whole milliseconds from 1ms to 1s are allowed", l.Unit)
	case l.Epoch.After(now):
		return invalid("Layout.Epoch is %v, and the clock says %v: an epoch in the future is not allowed", stamp(l.Epoch), stamp(now))
	case l.Epoch.UnixMilli() < 0 || l.Epoch.Nanosecond()%int(time.Millisecond) != 0:
		return invalid("Layout.Epoch is %v: whole milliseconds from 1970 on are allowed", stamp(l.Epoch))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// maxTick is the last time that an ID has room for, in units.
func (l Layout) maxTick() int64 { return 1<<l.TimeBits - 1 }

// tick is a time in units since the epoch. Subtracting times would stop at 292 years.
func (l Layout) tick(t time.Time) int64 {
	return (t.UnixMilli() - l.Epoch.UnixMilli()) / l.Unit.Milliseconds()
}

// time is the start of a unit.
func (l Layout) time(tick int64) time.Time {
	return time.UnixMilli(l.Epoch.UnixMilli() + tick*l.Unit.Milliseconds()).UTC()
}

// ticks is how many units a duration has, rounded up.
func (l Layout) ticks(d time.Duration) int64 { return int64((d + l.Unit - 1) / l.Unit) }

// id makes an ID of a position, which is a time and a sequence number in one.
func (l *Layout) id(position uint64, worker int) int64 {
	return int64(position>>l.SeqBits<<(l.WorkerBits+l.SeqBits) | uint64(worker)<<l.SeqBits | position&(1<<l.SeqBits-1))
}

// Parts are what an ID is made of.
type Parts struct {
	Time     time.Time // start of the unit, UTC
	Worker   int
	Sequence int64 // in that unit
}

// Decompose returns the parts of an ID that a generator with this layout made. Decompose fails with
// [pawl.ErrInvalid] if the ID is negative or the layout is no layout.
func (l Layout) Decompose(id int64) (Parts, error) {
	l = l.withDefaults()
	if err := l.validate(l.Epoch); err != nil {
		return Parts{}, err
	}
	if id < 0 {
		return Parts{}, invalid("the ID %d is negative", id)
	}
	return Parts{
		Time:     l.time(id >> (l.WorkerBits + l.SeqBits)),
		Worker:   int(id >> l.SeqBits & (1<<l.WorkerBits - 1)),
		Sequence: id & (1<<l.SeqBits - 1),
	}, nil
}

// The layout is recorded as a number: 6 bits of time, 4 of the worker, 10 of the unit, 42 of the
// epoch.
const epochBits, unitBits, workerBitsBits = 42, 10, 4

func (l Layout) record() int64 {
	return ((int64(l.TimeBits)<<workerBitsBits|int64(l.WorkerBits))<<unitBits|l.Unit.Milliseconds())<<epochBits | l.Epoch.UnixMilli()
}

// String gives the bits, the unit and the epoch.
func (l Layout) String() string {
	return fmt.Sprintf("%d/%d/%d bits, a unit of %v and the epoch %v", l.TimeBits, l.WorkerBits, l.SeqBits, l.Unit, stamp(l.Epoch))
}

func layoutOf(record int64) (l Layout) {
	take := func(bits int) int64 {
		part := record & (1<<bits - 1)
		record >>= bits
		return part
	}
	l.Epoch = time.UnixMilli(take(epochBits))
	l.Unit = time.Duration(take(unitBits)) * time.Millisecond
	l.WorkerBits, l.TimeBits = int(take(workerBitsBits)), int(take(6))
	l.SeqBits = 63 - l.TimeBits - l.WorkerBits
	return l
}

// agree records the layout at the first use of a name, and refuses every other layout from then on.
func (l Layout) agree(ctx context.Context, mark id.Mark) error {
	for {
		is, err := mark.Load(ctx)
		if err == nil && is.Version == 0 {
			is, err = mark.Raise(ctx, l.record(), is)
		}
		switch {
		case errors.Is(err, pawl.ErrConflict): // another generator is the first
			continue
		case err != nil:
			return fmt.Errorf("record the layout: %w", err)
		case is.Value != l.record():
			return fmt.Errorf("%w: IDs of this name have %v, not %v", pawl.ErrMismatch, layoutOf(is.Value), l)
		}
		return nil
	}
}
