package processtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
)

const (
	latchParties = 50
	counters     = 10 // processes that count five parties each
)

// countDown counts some parties and waits for the rest.
func countDown(ctx context.Context, c *pawl.Client, args ...string) error {
	mine, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	l := c.Latch(args[0], latchParties)
	for party := mine; party < latchParties-1; party += counters { // the last party is that of the test
		if err := l.CountDown(ctx, fmt.Sprint("party ", party)); err != nil {
			return err
		}
	}
	say("waits", mine)
	if err := l.Wait(ctx); err != nil {
		return err
	}
	say("open", mine)
	return nil
}

// TestLatch: processes that count down and wait are killed anywhere, and their successors count the
// same parties again. The latch opens when all parties have counted, not before, and for all
// waiters.
func TestLatch(t *testing.T) {
	kills := scaled(40, 10, 5)
	overStores(t, 3*time.Second, func(f *fleet) {
		all := f.killCounters(kills)
		l := f.client.Latch("latch", latchParties)
		if n, err := l.Count(f.Context()); err != nil || n != 1 {
			f.Fatalf("%d are missing, %v, want 1", n, err)
		}
		ctx, cancel := context.WithTimeout(f.Context(), time.Second)
		defer cancel()
		if err := l.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			f.Fatalf("open while one is missing: %v", err)
		}
		opened := time.Now()
		if err := l.CountDown(f.Context(), fmt.Sprint("party ", latchParties-1)); err != nil {
			f.Fatal(err)
		}
		for range all {
			if l := f.next(); l.what != "open" {
				f.Fatalf("%+v", l)
			} else if took := l.at.Sub(opened); took > f.ttl {
				f.Errorf("told after %v", took)
			}
		}
		if err := l.Reset(f.Context()); err != nil {
			f.Error(err)
		}
	})
}

// killCounters returns workers that have all counted and wait. Some earlier workers were killed.
func (f *fleet) killCounters(kills int) []*worker {
	f.Helper()
	all := make([]*worker, counters)
	ready := make(map[*worker]bool)
	begin := func(i int) { all[i] = f.start("latch", "latch", strconv.Itoa(i)) }
	for i := range all {
		begin(i)
	}
	take := func(l line) {
		if l.what != "waits" {
			f.Fatalf("%+v", l)
		}
		ready[l.from] = true
	}
	for range kills {
		for pause := time.After(rand.N(200 * time.Millisecond)); pause != nil; {
			select {
			case l := <-f.lines:
				take(l)
			case <-pause:
				pause = nil
			}
		}
		i := rand.N(counters)
		f.kill(all[i])
		begin(i)
	}
	for slices.ContainsFunc(all, func(w *worker) bool { return !ready[w] }) {
		take(f.next())
	}
	return all
}
