package readable

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

// Daily are counters that start anew each day, in a store that all machines share. Daily has
// a ring of 400 marks, and each mark says which day it is of. The counter of a day gives way to
// the counter of the day 400 days later, so nothing piles up. A machine whose clock is ahead takes
// marks of other days. Only a clock that is ahead by 400 days, or a multiple, takes the mark of
// today. Then the counter of today is [ErrDay], and never starts anew. Daily is safe for concurrent use.
type Daily struct {
	registers id.Registers
	name      string
}

// ErrDay says that the counter of a day was given up. A machine has used the counter of a
// day 400 or more days later. The clock of that machine or of this machine is wrong. No number
// was handed out.
var ErrDay = errors.New("the counter of the day was given up")

const (
	ring      = 400 // days
	countBits = 36  // of a mark; the rest is the day
)

// NewDaily returns the counters of a name. Nothing is asked of the store. Name has 1 to 190 bytes of UTF-8 without
// control characters.
func NewDaily(registers id.Registers, name string) (*Daily, error) {
	if err := id.CheckName(name); err != nil || len(name) > id.MaxName-10 {
		return nil, fmt.Errorf("%w: name %.80q: 1 to %d bytes of UTF-8 without control characters are allowed", pawl.ErrInvalid, name, id.MaxName-10)
	}
	return &Daily{registers, name}, nil
}

// Generator returns the numbers of a day, as "20261122", in the order of all machines: see
// [id.NewStrict]. Generator is what [Options] take as Counter. The day "" is a counter that never
// starts anew.
func (d *Daily) Generator(day string) id.Generator[int64] { return id.NewStrict(d.Counter(day)) }

// Counter returns the counter of a day. Package segment takes it. A day has up to
// 68,719,476,735 numbers.
func (d *Daily) Counter(day string) id.Counter {
	if day == "" {
		return d.registers.Counter(d.name)
	}
	t, err := time.Parse("20060102", day)
	if err == nil && t.Year() < 1970 {
		err = errors.New("it is before 1970")
	}
	if err != nil {
		return id.CounterOf(dayMark{err: fmt.Errorf("%w: day %q: %w", pawl.ErrInvalid, day, err)})
	}
	n := t.Unix() / (24 * 60 * 60)
	return id.CounterOf(dayMark{mark: d.registers.Mark(d.name + "/day/" + strconv.FormatInt(n%ring, 10)), day: n})
}

// dayMark is what a mark of the ring says of one day: numbers of an earlier day are none.
type dayMark struct {
	mark id.Mark
	day  int64 // since 1970
	err  error
}

func (m dayMark) Load(ctx context.Context) (id.Reading, error) {
	if m.err != nil {
		return id.Reading{}, m.err
	}
	is, err := m.mark.Load(ctx)
	if err != nil {
		return id.Reading{}, err
	}
	switch day := is.Value >> countBits; {
	case day > m.day:
		return id.Reading{}, fmt.Errorf("%w: %s is asked for and %s was used", ErrDay, dayText(m.day), dayText(day))
	case day < m.day:
		is.Value = 0
	}
	is.Value &= 1<<countBits - 1
	return is, nil
}

func (m dayMark) Raise(ctx context.Context, to int64, from id.Reading) (id.Reading, error) {
	if to >= 1<<countBits {
		return id.Reading{}, fmt.Errorf("%w: %d on %s", id.ErrExhausted, to, dayText(m.day))
	}
	first := m.day << countBits
	is, err := m.mark.Raise(ctx, first+to, id.Reading{Value: first + from.Value, Version: from.Version})
	if err != nil {
		return id.Reading{}, err
	}
	return id.Reading{Value: to, Version: is.Version}, nil
}

func dayText(day int64) string { return time.Unix(day*24*60*60, 0).UTC().Format("20060102") }
