package threephase_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase"
)

// results are what the callers of Commit heard.
type results struct {
	sync.WaitGroup
	mu  sync.Mutex
	all map[threephase.ID]error
}

// trouble lets agents commit while they are killed and cut off, while messages are lost, late and repeated, and while databases fail. In
// the end all agents are well.
func (g *group) trouble(rounds int) *results {
	r := &results{all: make(map[threephase.ID]error)}
	g.faulty(true)
	for range rounds {
		name := g.names[rand.IntN(len(g.names))]
		switch rand.IntN(6) {
		case 0:
			if g.agents[name] != nil {
				g.kill(name)
			} else {
				g.start(name)
			}
		case 1:
			g.net.split([]string{name})
		case 2:
			g.net.split(nil)
		default:
			for range 1 + rand.IntN(4) {
				if a := g.agents[g.names[rand.IntN(len(g.names))]]; a != nil {
					r.Go(func() {
						id, err := a.Commit(context.Background(), work)
						r.mu.Lock()
						defer r.mu.Unlock()
						r.all[id] = err
					})
				}
			}
		}
		time.Sleep(rand.N([]time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 2 * time.Second}[rand.IntN(3)]))
	}
	g.net.split(nil)
	g.faulty(false)
	for _, name := range g.names {
		if g.agents[name] == nil {
			g.start(name)
		}
	}
	r.Wait()
	return r
}

func (g *group) faulty(is bool) {
	g.net.mu.Lock()
	g.net.faults = is
	g.net.mu.Unlock()
	for _, l := range g.ledgers {
		l.mu.Lock()
		l.faults = is
		l.mu.Unlock()
	}
}

// TestFaults: agents in all kinds of trouble never split, finish all when they are well again, and forget all. The callers heard the truth.
func TestFaults(t *testing.T) {
	t.Parallel()
	runs := 2
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		runs = 200
	}
	commits, aborts := 0, 0
	for run := range runs {
		synctest.Test(t, func(t *testing.T) {
			g := newGroup(t, threephase.Options{Timeout: time.Second}, []string{"bank", "stock", "witness", "second", "third"}[:3+2*(run%2)]...)
			defer g.close()
			r := g.trouble(40)
			g.until("all is finished and forgotten", g.quiet)
			if n := g.splits(); n > 0 {
				t.Errorf("%d transactions are split", n)
			}
			for id, err := range r.all {
				is := g.ledgers["bank"].has(id)
				switch {
				case err == nil || errors.Is(err, dtx.ErrPending):
					commits++
					if !is {
						t.Errorf("%v is not committed, and the caller heard %v", id, err)
					}
				case errors.Is(err, dtx.ErrAborted) || errors.Is(err, pawl.ErrClosed) && !errors.Is(err, dtx.ErrInDoubt):
					aborts++
					if is {
						t.Errorf("%v is committed, and the caller heard %v", id, err)
					}
				case !errors.Is(err, dtx.ErrInDoubt):
					t.Errorf("%v: %v", id, err)
				}
			}
		})
	}
	if t.Logf("%d commits, %d aborts", commits, aborts); commits == 0 || aborts == 0 {
		t.Error("an outcome never came")
	}
}

// TestClassic: cuts of the network split the agents of the textbooks, and the same cuts do not split a quorum.
func TestClassic(t *testing.T) {
	t.Parallel()
	for mode, splits := range map[threephase.Mode]bool{threephase.Classic: true, threephase.Quorum: false} {
		synctest.Test(t, func(t *testing.T) {
			g := newGroup(t, threephase.Options{Timeout: time.Second, Mode: mode}, "bank", "stock", "witness")
			defer g.close()
			cuts := 0
			for ; cuts < 200 && g.splits() == 0 && (splits || cuts < 50); cuts++ {
				g.cutOnce(g.names[rand.IntN(len(g.names))], 1+rand.IntN(12))
			}
			if t.Logf("mode %d: %d cuts, %d transactions split, %d committed", mode, cuts, g.splits(), g.ledgers["bank"].commits()); (g.splits() > 0) != splits {
				t.Error("that is wrong")
			}
		})
	}
}

// cutOnce cuts an agent off at a message of a transaction, and heals the network after the time-outs.
func (g *group) cutOnce(victim string, message int) {
	sent := 0
	g.net.mu.Lock()
	g.net.after = func(string) {
		g.net.mu.Lock()
		sent++
		now := sent == message
		g.net.mu.Unlock()
		if now {
			g.net.split([]string{victim})
		}
	}
	g.net.mu.Unlock()
	g.agents["bank"].Commit(g.t.Context(), work) //nolint:errcheck // the ledgers tell
	<-time.After(5 * time.Second)                // of the bubble
	g.net.mu.Lock()
	g.net.after = nil
	g.net.mu.Unlock()
	g.net.split(nil)
	g.until("all is finished", func() bool {
		for _, l := range g.ledgers {
			if ids, _ := l.Prepared(g.t.Context()); len(ids) > 0 {
				return false
			}
		}
		return true
	})
}

// splitAfter cuts an agent off at one of its messages. The channel is closed then.
func (n *network) splitAfter(agent string, message int) <-chan struct{} {
	sent, is := 0, make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.after = func(from string) {
		if from != agent {
			return
		}
		n.mu.Lock()
		sent++
		now := sent == message
		n.mu.Unlock()
		if now {
			n.split([]string{agent})
			close(is)
		}
	}
	return is
}

// TestCoordinatorDies: whenever the coordinator dies or is cut off, the others decide within three time-outs. A coordinator that
// was cut off after the votes waits for them.
func TestCoordinatorDies(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	for _, cut := range []bool{false, true} {
		outcomes := make(map[bool]int)
		for message := 1; message <= 9; message++ {
			synctest.Test(t, func(t *testing.T) {
				g := newGroup(t, threephase.Options{Timeout: timeout}, "bank", "stock", "witness")
				defer g.close()
				dies := g.net.splitAfter("bank", message)
				result := make(chan error, 1)
				go func() { _, err := g.agents["bank"].Commit(t.Context(), work); result <- err }()
				select {
				case <-dies:
				case <-time.After(timeout / 2): // the message is of another agent
				}
				g.net.mu.Lock()
				g.net.after = nil
				g.net.mu.Unlock()
				if g.net.split([]string{"bank"}); !cut {
					g.kill("bank")
				}
				died := time.Now()
				for g.agents["stock"].Status().Undecided+g.agents["witness"].Status().Undecided > 0 {
					time.Sleep(timeout / 100)
				}
				if took := time.Since(died); took > 3*timeout {
					t.Errorf("the coordinator died at message %d, and the others decided after %v", message, took)
				}
				g.net.split(nil)
				if !cut {
					g.start("bank")
				}
				<-result // before, nothing may have begun
				g.until("all is finished and forgotten", g.quiet)
				if g.splits() > 0 {
					t.Errorf("message %d: split", message)
				}
				outcomes[g.ledgers["bank"].commits() > 0]++
			})
		}
		if t.Log(outcomes); outcomes[true] == 0 || outcomes[false] == 0 {
			t.Error("an outcome never came")
		}
	}
}

// TestMinority: an agent without a majority waits, and keeps its work prepared.
func TestMinority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		result := make(chan error, 1)
		go func() { _, err := g.agents["bank"].Commit(t.Context(), work); result <- err }()
		prepared := func() bool { ids, _ := g.ledgers["stock"].Prepared(t.Context()); return len(ids) > 0 }
		for !prepared() {
			time.Sleep(time.Millisecond / 10)
		}
		g.net.split([]string{"stock"})
		err := <-result
		<-time.After(5 * time.Minute)
		if s := g.agents["stock"].Status(); s.Undecided != 1 || !prepared() || s.Oldest < 5*time.Minute {
			t.Errorf("%+v", s)
		}
		g.kill("stock")
		g.start("stock")
		<-time.After(time.Minute)
		if s := g.agents["stock"].Status(); s.Undecided != 1 || !prepared() {
			t.Errorf("after a restart: %+v", s)
		}
		g.net.split(nil)
		g.until("all is finished and forgotten", g.quiet)
		committed := g.ledgers["bank"].commits() == 1
		if g.splits() > 0 || committed == errors.Is(err, dtx.ErrAborted) {
			t.Errorf("committed: %v, and the caller heard %v", committed, err)
		}
	})
}
