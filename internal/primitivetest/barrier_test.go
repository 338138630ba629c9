package primitivetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
)

// reset is the step of nobody.
const reset = procs

// barrierModel is java.util.concurrent.CyclicBarrier, as its documentation has
// it.
type barrierModel struct {
	parties int
	broken  bool
	waiting []int // processes, in the order in which they came
	results [procs]string
}

func (m *barrierModel) leave(result func(i int) string) {
	for i, proc := range m.waiting {
		m.results[proc] = result(i)
	}
	m.waiting = nil
}

func (m *barrierModel) do(proc int) {
	brokenFor := func(int) string { return "broken" }
	switch {
	case proc == reset:
		m.leave(brokenFor)
		m.broken = false
	case slices.Contains(m.waiting, proc): // gives up
		m.broken = true
		m.leave(brokenFor)
	case m.broken:
		m.results[proc] = "broken"
	default:
		m.waiting = append(m.waiting, proc)
		m.results[proc] = "waits"
		if len(m.waiting) == m.parties {
			m.leave(func(i int) string { return fmt.Sprint(m.parties - 1 - i) })
		}
	}
}

// TestBarrier: after every step every process waits, has left with the index
// or has found the barrier broken, as in the model.
func TestBarrier(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		parties := rapid.IntRange(1, 4).Draw(rt, "parties")
		steps := rapid.SliceOfN(rapid.IntRange(0, reset), 1, 30).Draw(rt, "steps")
		if err := bubble(t, func(ctx context.Context) error { return compareBarrier(ctx, parties, steps) }); err != nil {
			rt.Fatal(err)
		}
	})
}

func compareBarrier(ctx context.Context, parties int, steps []int) error {
	all, closeAll, err := clients(ctx, 3)
	defer closeAll()
	if err != nil {
		return err
	}
	model := barrierModel{parties: parties}
	var mu sync.Mutex
	var results [procs]string
	var giveUp [procs]context.CancelFunc
	for i, proc := range steps {
		model.do(proc)
		mu.Lock()
		switch {
		case proc == reset:
			mu.Unlock()
			err = resetBarrier(ctx, all[0].Barrier("b", parties))
			mu.Lock()
		case results[proc] == "waits":
			giveUp[proc]()
		default:
			results[proc] = "waits"
			var waits context.Context
			waits, giveUp[proc] = context.WithCancel(ctx)
			go func() {
				index, err := all[proc%len(all)].Barrier("b", parties).Wait(waits)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					results[proc] = fmt.Sprint(index)
				case errors.Is(err, pawl.ErrBroken):
					results[proc] = "broken"
				default:
					results[proc] = err.Error()
				}
			}()
		}
		mu.Unlock()
		<-time.After(time.Second) // of fake time, in which conflicts are settled
		mu.Lock()
		is := results
		mu.Unlock()
		if err != nil || is != model.results {
			return fmt.Errorf("after step %d of %d: %s, %v; the model %s", i, proc, strings.Join(is[:], " "), err, strings.Join(model.results[:], " "))
		}
	}
	return nil
}

// resetBarrier resets the generation that there is.
func resetBarrier(ctx context.Context, b *pawl.Barrier) error {
	generation, err := b.Generation(ctx)
	if err != nil {
		return err
	}
	return b.Reset(ctx, generation)
}
