//go:build unix

package dtx_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dtx"
)

// moveEndlessly moves money until the process is killed.
func (b *bank) moveEndlessly(ctx context.Context, naive bool) error {
	var c *dtx.Coordinator
	if !naive {
		dtx.SetStep(say)
		var err error
		if c, err = dtx.New(ctx, b.log, b.parts, options); err != nil {
			return err
		}
	}
	for {
		var err error
		if naive {
			err = b.moveNaively(ctx, rand.IntN(accounts), say)
		} else {
			err = c.Run(ctx, b.move(rand.IntN(accounts), rand.IntN(accounts), 1+rand.IntN(9)))
		}
		if err == nil { // else two processes wanted the same row, or recovery was early
			fmt.Println("committed")
		}
	}
}

// say tells the test of a step, so that the test can kill the process near any step.
func say(name string, branch int) { fmt.Println(name, branch) }

// killed kills processes at any moment of their work, again and again, until some have committed, and some had a transaction
// under way. Recovery finishes the transactions, and the books balance. The same kills unbalance the books of processes that
// commit one database after the other.
func (b *bank) killed(t *testing.T) {
	kills := 12
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		kills = 10_000/len(shapes) + 1
	}
	c := b.coordinator(t)
	before := b.sums(t)
	var done, committed, amid int
	for done < kills || committed == 0 || amid == 0 {
		some, middle := b.kill(t, 12, false)
		done, committed, amid = done+12, committed+some, amid+middle
	}
	var last time.Duration
	killed := time.Now()
	until(t, "all branches are finished", func() bool {
		_, err := c.Recover(t.Context())
		last = time.Since(killed)
		return err == nil && b.prepared(t) == 0 && b.records(t) == 0 && b.live(t) == 0
	})
	after := b.sums(t)
	if moved := after[1] - before[1]; moved < committed || before[0]-after[0] != moved {
		t.Errorf("after %d kills and %d commits: %v, and before %v", done, committed, after, before)
	}
	t.Logf("%d kills, %d of them amid a transaction, and %d commits; all is finished %v after the last kill", done, amid, committed, last)
	b.tidy(t)
	for range 100 {
		b.kill(t, 4, true)
		if is := b.sums(t); is[0]+is[1] != after[0]+after[1] {
			return
		}
	}
	t.Error("naive processes are not found wrong")
}

// kill lets processes work, two at a time, and kills each of them after any number of steps. The process works on until the signal comes. Kill
// returns how many transactions are known to be committed, and how many processes had a transaction under way.
func (b *bank) kill(t *testing.T, kills int, naive bool) (committed, amid int) {
	t.Helper()
	var group sync.WaitGroup
	var mu sync.Mutex
	idle := 0
	slots := make(chan bool, 2)
	for range kills {
		slots <- true
		group.Go(func() {
			defer func() { <-slots }()
			cmd, said := b.start(t, task{Endless: true, Naive: naive})
			some, last := 0, ""
			for i, steps := 0, 1+rand.IntN(40); said.Scan(); i++ {
				if last = said.Text(); last == "committed" {
					some++
				}
				if i == steps {
					cmd.Process.Kill() //nolint:errcheck // the end of the lines tells
				}
			}
			err := cmd.Wait()
			mu.Lock()
			defer mu.Unlock()
			committed += some
			switch {
			case err == nil:
				t.Error("a worker ended by itself")
			case last == "": // the log was busy for too long
				idle++
			case last != "committed":
				amid++
			}
		})
	}
	if group.Wait(); idle == kills {
		t.Fatal("no worker did anything")
	}
	return committed, amid
}
