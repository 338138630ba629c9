package idtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

// Contract returns what registers do wrong. Those given stand for several processes: they
// are of one store, each by a client of its own. Prefix begins the names of the test.
func Contract(ctx context.Context, prefix string, all ...id.Registers) error {
	var errs []error
	for name, row := range map[string]func(context.Context, string, []id.Registers) error{
		"a mark is raised at the version that was read":  marks,
		"a mark is settled at the version that was read": settles,
		"names are kept apart":                           names,
		"a counter begins with 1 and ends":               counters,
		"writers count beside one another":               func(ctx context.Context, p string, all []id.Registers) error { return Race(ctx, p, 4, 25, all...) },
	} {
		if err := row(ctx, prefix+"/"+name, all); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func marks(ctx context.Context, name string, all []id.Registers) error {
	mine, theirs := all[0].Mark(name), all[len(all)-1].Mark(name)
	none, err := mine.Load(ctx)
	if err != nil || none != (id.Reading{}) {
		return fmt.Errorf("before the first raise: %+v, %w", none, err)
	}
	first, err := mine.Raise(ctx, 7, none)
	if err != nil || first.Value != 7 || first.Version == 0 {
		return fmt.Errorf("the first raise: %+v, %w", first, err)
	}
	if is, err := theirs.Load(ctx); err != nil || is != first {
		return fmt.Errorf("another client reads %+v, %w; written was %+v", is, err, first)
	}
	if _, err := theirs.Raise(ctx, 9, none); !errors.Is(err, pawl.ErrConflict) {
		return fmt.Errorf("a raise from an old value, after another raise: %w", err)
	}
	second, err := theirs.Raise(ctx, math.MaxInt64, first)
	if err != nil || second.Value != math.MaxInt64 || second.Version <= first.Version {
		return fmt.Errorf("the second raise: %+v, %w", second, err)
	}
	if _, err := mine.Raise(ctx, 8, first); !errors.Is(err, pawl.ErrConflict) {
		return fmt.Errorf("a raise at an old version: %w", err)
	}
	for _, to := range []int64{7, 6, 0, -1, math.MinInt64} {
		if _, err := mine.Raise(ctx, to, first); !errors.Is(err, pawl.ErrInvalid) {
			return fmt.Errorf("from 7 to %d: %w", to, err)
		}
	}
	if is, err := mine.Load(ctx); err != nil || is != second {
		return fmt.Errorf("at the end %+v, %w", is, err)
	}
	return nil
}

// settles: what a holder used is written by that holder only, and its late requests change nothing.
func settles(ctx context.Context, name string, all []id.Registers) error {
	mine, theirs := all[0].Mark(name), all[len(all)-1].Mark(name)
	settler, is := mine.(id.Settler)
	if !is {
		return errors.New("it cannot be settled")
	}
	first, err := mine.Raise(ctx, 10, id.Reading{})
	if err != nil {
		return err
	}
	for _, to := range []int64{11, 0, -1} {
		if err := settler.Settle(ctx, to, first); !errors.Is(err, pawl.ErrInvalid) {
			return fmt.Errorf("from 10 to %d: %w", to, err)
		}
	}
	if err := settler.Settle(ctx, 4, first); err != nil {
		return err
	}
	if _, err := mine.Raise(ctx, 20, first); !errors.Is(err, pawl.ErrConflict) {
		return fmt.Errorf("a late raise: %w", err)
	}
	used, err := theirs.Load(ctx)
	if err != nil || used.Value != 4 || used.Version <= first.Version {
		return fmt.Errorf("settled %+v, %w", used, err)
	}
	second, err := theirs.Raise(ctx, 8, used)
	if err != nil {
		return err
	}
	for _, old := range []id.Reading{first, {Value: 4, Version: used.Version}} {
		if err := settler.Settle(ctx, 3, old); !errors.Is(err, pawl.ErrConflict) {
			return fmt.Errorf("it is settled after another has begun: %w", err)
		}
	}
	if is, err := mine.Load(ctx); err != nil || is != second {
		return fmt.Errorf("at the end %+v, %w", is, err)
	}
	return nil
}

func names(ctx context.Context, name string, all []id.Registers) error {
	tail := strings.Repeat("x", id.MaxName-len(name)-1)
	apart := []string{name, name + " ", name + "A", name + "a", name + "\u00e4", name + "a\u0308", name + "%", name + "_", name + tail + "1", name + tail + "2"}
	for i, n := range apart {
		if last, err := all[0].Counter(n).Add(ctx, int64(i+1)); err != nil || last != int64(i+1) {
			return fmt.Errorf("counter %q: %d, %w", n, last, err)
		}
		if is, err := all[0].Mark(n).Load(ctx); err != nil || is != (id.Reading{}) {
			return fmt.Errorf("mark %q, whose counter was used: %+v, %w", n, is, err)
		}
		if _, err := all[0].Mark(n).Raise(ctx, int64(i+101), id.Reading{}); err != nil {
			return fmt.Errorf("mark %q: %w", n, err)
		}
	}
	for i, n := range apart {
		if is, err := all[0].Mark(n).Load(ctx); err != nil || is.Value != int64(i+101) {
			return fmt.Errorf("mark %q in the end: %+v, %w", n, is, err)
		}
		if last, err := all[0].Counter(n).Add(ctx, 1); err != nil || last != int64(i+2) {
			return fmt.Errorf("counter %q in the end: %d, %w", n, last, err)
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", id.MaxName+1), "a\x00b", "a\n", "\xff"} {
		_, loading := all[0].Mark(bad).Load(ctx)
		_, raising := all[0].Mark(bad).Raise(ctx, 1, id.Reading{})
		_, adding := all[0].Counter(bad).Add(ctx, 1)
		for _, err := range []error{loading, raising, adding} {
			if !errors.Is(err, pawl.ErrInvalid) {
				return fmt.Errorf("the name %.20q: %w", bad, err)
			}
		}
	}
	return nil
}

func counters(ctx context.Context, name string, all []id.Registers) error {
	c := all[0].Counter(name)
	for _, n := range []int64{0, -1, math.MinInt64} {
		if _, err := c.Add(ctx, n); !errors.Is(err, pawl.ErrInvalid) {
			return fmt.Errorf("add %d: %w", n, err)
		}
	}
	for _, step := range []struct{ n, last int64 }{{1, 1}, {1, 2}, {1000, 1002}, {math.MaxInt64 - 1010, math.MaxInt64 - 8}} {
		if last, err := c.Add(ctx, step.n); err != nil || last != step.last {
			return fmt.Errorf("add %d: %d, %w; it should be %d", step.n, last, err, step.last)
		}
	}
	for _, n := range []int64{9, 1000, math.MaxInt64} {
		if last, err := c.Add(ctx, n); !errors.Is(err, id.ErrExhausted) {
			return fmt.Errorf("add %d with 8 left: %d, %w", n, last, err)
		}
	}
	if last, err := all[len(all)-1].Counter(name).Add(ctx, 8); err != nil || last != math.MaxInt64 {
		return fmt.Errorf("the last 8: %d, %w", last, err)
	}
	if last, err := c.Add(ctx, 1); !errors.Is(err, id.ErrExhausted) {
		return fmt.Errorf("beyond the end: %d, %w", last, err)
	}
	return nil
}

// Race lets goroutines of each client count, by the counter and by a counter of a mark. Race
// returns an error unless each number has one caller and numbers rise for each caller.
func Race(ctx context.Context, name string, goroutines, adds int, all ...id.Registers) error {
	var errs []error
	for kind, counter := range map[string]func(id.Registers) id.Counter{
		"counter": func(r id.Registers) id.Counter { return r.Counter(name) },
		"mark":    func(r id.Registers) id.Counter { return id.CounterOf(r.Mark(name)) },
	} {
		var each []id.Counter
		for _, r := range all {
			each = append(each, counter(r))
		}
		last, err := Count(ctx, goroutines, adds, each...)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
			continue
		}
		if is, err := counter(all[0]).Add(ctx, 1); err != nil || is != last+1 {
			errs = append(errs, fmt.Errorf("%s: %d, %w after %d: numbers were lost though no call failed", kind, is, err, last))
		}
	}
	return errors.Join(errs...)
}

// Count lets goroutines of each counter, all of one number, ask for 1 to 3 numbers at a
// time. Count returns how many numbers they got, and the first fault.
func Count(ctx context.Context, goroutines, adds int, all ...id.Counter) (n int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	var check Checker[int64]
	for _, counter := range all {
		for g := range goroutines {
			log := check.Log()
			group.Go(func() {
				for i := range adds {
					n := int64(1 + (g+i)%3)
					last, err := counter.Add(ctx, n)
					if err != nil {
						cancel(err)
						return
					}
					for ; n > 0; n-- {
						log.Add(last - n + 1)
					}
				}
			})
		}
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	got, err := check.Check()
	return int64(got), err
}

// NaiveCounter counts as a program does that reads, adds and writes without a version: the
// checks of this package have to find it wrong.
func NaiveCounter(mark id.Mark) id.Counter { return naive{mark} }

type naive struct{ mark id.Mark }

func (c naive) Add(ctx context.Context, n int64) (int64, error) {
	read, err := c.mark.Load(ctx)
	if err != nil {
		return 0, err
	}
	last := read.Value + n
	for { // whatever is there now
		is, err := c.mark.Load(ctx)
		if err != nil {
			return 0, err
		}
		if _, err = c.mark.Raise(ctx, last, id.Reading{Value: last - 1, Version: is.Version}); !errors.Is(err, pawl.ErrConflict) {
			return last, err
		}
	}
}
