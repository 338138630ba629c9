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
		var err error
		if c, err = dtx.New(ctx, b.log, b.parts, options); err != nil {
			return err
		}
	}
	fmt.Println("begun")
	for {
		var err error
		if naive {
			err = b.moveNaively(ctx, rand.IntN(accounts), func(string, int) {})
		} else {
			err = c.Run(ctx, b.move(rand.IntN(accounts), rand.IntN(accounts), 1+rand.IntN(9)))
		}
		if err != nil { // two processes may want the same row, or recovery was early
			fmt.Println(err)
		}
	}
}

// killed kills processes at any moment, again and again. Recovery finishes the transactions, and the books balance. The
// same kills unbalance the books of processes that commit one database after the other.
func (b *bank) killed(t *testing.T) {
	kills := 12
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		kills = 10_000 / len(shapes)
	}
	c := b.coordinator(t)
	before := b.sums(t)
	b.kill(t, kills, false)
	until(t, "all branches are finished", func() bool {
		_, err := c.Recover(t.Context())
		return err == nil && b.prepared(t) == 0 && b.records(t) == 0 && b.live(t) == 1
	})
	after := b.sums(t)
	if moved := after[1] - before[1]; moved == 0 || before[0]-after[0] != moved {
		t.Errorf("after %d kills: %v, and before %v", kills, after, before)
	}
	b.tidy(t)
	for range 100 {
		b.kill(t, 4, true)
		if is := b.sums(t); is[0]+is[1] != after[0]+after[1] {
			return
		}
	}
	t.Error("naive processes are not found wrong")
}

// kill lets processes work, two at a time, and kills each of them within 50 ms.
func (b *bank) kill(t *testing.T, kills int, naive bool) {
	var group sync.WaitGroup
	slots := make(chan bool, 2)
	for range kills {
		slots <- true
		group.Go(func() {
			defer func() { <-slots }()
			cmd, said := b.start(t, task{Endless: true, Naive: naive})
			if !said.Scan() || said.Text() != "begun" {
				t.Errorf("a worker does not begin: %s", said.Text())
			}
			go func() {
				for said.Scan() {
				}
			}()
			time.Sleep(time.Duration(rand.Int64N(int64(50 * time.Millisecond)))) // the moment of the kill is the test
			cmd.Process.Kill()                                                   //nolint:errcheck // Wait tells
			cmd.Wait()                                                           //nolint:errcheck // it was killed
		})
	}
	group.Wait()
}
