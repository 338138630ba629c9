package processtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

const parties = 16

// crossBarrier is a party of a barrier during so many rounds.
func crossBarrier(ctx context.Context, c *pawl.Client, args ...string) error {
	rounds, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	b := c.Barrier(args[0], parties)
	for range rounds {
		say("comes")
		index, err := b.Wait(ctx)
		if err != nil {
			return err
		}
		say("leaves", index)
	}
	say("waits")
	_, err = b.Wait(ctx)
	if errors.Is(err, pawl.ErrBroken) {
		say("broken")
		err = nil
	}
	return err
}

// TestBarrier: 16 processes meet again and again. No process leaves before all have come, and each
// has its own index. When one of them dies, all others know.
func TestBarrier(t *testing.T) {
	rounds := scaled(100, 20, 5)
	overStores(t, 5*time.Second, func(f *fleet) {
		var all []*worker
		name := rand.Text() // the barrier is broken in the end
		for range parties {
			all = append(all, f.start("barrier", name, strconv.Itoa(rounds)))
		}
		came, left := make([]time.Time, rounds), make([]time.Time, rounds) // the last arrival and the first departure of each round
		indexes := make([]map[int]bool, rounds)
		comes, leaves := make(map[*worker]int), make(map[*worker]int)
		for waiting := 0; waiting < parties; {
			switch l := f.next(); l.what {
			case "comes":
				if round := comes[l.from]; l.at.After(came[round]) {
					came[round] = l.at
				}
				comes[l.from]++
			case "leaves":
				round := leaves[l.from]
				if indexes[round] == nil {
					indexes[round], left[round] = make(map[int]bool), l.at
				}
				if l.at.Before(left[round]) {
					left[round] = l.at
				}
				indexes[round][f.number(l)] = true
				leaves[l.from]++
			case "waits":
				waiting++
			default:
				f.Fatalf("%+v", l)
			}
		}
		for round, is := range indexes {
			if len(is) != parties || !is[0] || !is[parties-1] {
				f.Errorf("round %d: indexes %v", round, is)
			}
			if left[round].Before(came[round]) {
				f.Errorf("round %d: one left %v before the last came", round, came[round].Sub(left[round]))
			}
		}
	})
}

// TestBarrierBreaks: all processes learn that one of them died.
func TestBarrierBreaks(t *testing.T) {
	overStores(t, 3*time.Second, func(f *fleet) {
		var all []*worker
		name := rand.Text() // the barrier stays broken
		for range parties - 1 {
			all = append(all, f.start("barrier", name, "0"))
		}
		for range all {
			if l := f.next(); l.what != "waits" { // the process is about to wait
				f.Fatalf("%+v", l)
			}
		}
		f.arrived(name, len(all))
		died := f.kill(all[0])
		for range all[1:] {
			if l := f.next(); l.what != "broken" {
				f.Fatalf("%+v", l)
			} else if took := l.at.Sub(died); took > 2*f.ttl+time.Second {
				f.Errorf("known after %v", took)
			}
		}
	})
}

// arrived waits until so many parties wait at a barrier, by the state in the store.
func (f *fleet) arrived(barrier string, n int) {
	f.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		v, err := f.engine.(engine.Values).Get(f.Context(), "pawl:barrier/"+barrier)
		if err != nil {
			f.Fatal(err)
		}
		var is struct{ Arrived []string }
		if json.Unmarshal(v.Data, &is) == nil && len(is.Arrived) == n {
			return
		}
	}
	f.Fatalf("never %d at the barrier", n)
}
