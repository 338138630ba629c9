package primitivetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
)

// line is a read-write lock as sync.RWMutex is, where a writer that waits keeps
// later readers out; and first come, first served.
type line []wish

type wish struct {
	proc   int
	writes bool
}

// granted is how many hold: the first ones, a writer only by itself.
func (l line) granted() int {
	switch writer := slices.IndexFunc(l, func(w wish) bool { return w.writes }); writer {
	case -1:
		return len(l)
	case 0:
		return 1
	default:
		return writer
	}
}

func (l line) String() string {
	text := []byte("......")
	for i, w := range l {
		text[w.proc] = 'w'
		if i < l.granted() {
			text[w.proc] = 'H'
		}
	}
	return string(text)
}

// do takes a step as holders do.
func (l line) do(s step) line {
	if i := slices.IndexFunc(l, func(w wish) bool { return w.proc == s.proc }); i >= 0 {
		return slices.Delete(l, i, i+1)
	}
	next := append(l, wish{s.proc, s.weight > 0}) //nolint:gocritic // l is not used any more
	if s.try && next.granted() < len(next) {
		return next[:len(l)]
	}
	return next
}

// TestRWMutex: after every step the same processes hold a read-write lock as
// hold the model.
func TestRWMutex(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{rapid.IntRange(0, procs-1).Draw(rt, "proc"), rapid.IntRange(0, 1).Draw(rt, "writes"), rapid.IntRange(0, 3).Draw(rt, "try") == 0}
		}), 1, 40).Draw(rt, "steps")
		if err := bubble(t, func(ctx context.Context) error { return compareLine(ctx, steps) }); err != nil {
			rt.Fatal(err)
		}
	})
}

func compareLine(ctx context.Context, steps []step) error {
	all, closeAll, err := clients(ctx, 3)
	defer closeAll()
	if err != nil {
		return err
	}
	ours := &holders{acquire: func(ctx context.Context, proc int, s step) (func(), error) {
		m := all[proc%len(all)].RWMutex("rw")
		var l pawl.Locker = m
		if s.weight == 0 {
			l = m.RLocker()
		}
		return acquire(ctx, l, s.try)
	}}
	defer ours.end(ctx)
	var model line
	for i, s := range steps {
		ours.do(ctx, s)
		model = model.do(s)
		if is, want := ours.String(), model.String(); is != want {
			return fmt.Errorf("after step %d, %+v: %s, the model %s", i, s, is, want)
		}
	}
	return nil
}
