// Package killtest runs a test binary again as several worker processes, which tests kill at
// any time. A killed worker is started again.
package killtest

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// Workers are processes at work.
type Workers struct {
	t       testing.TB
	env     []string
	mu      sync.Mutex
	running map[int]*exec.Cmd
	kills   int
	over    bool // the test has ended
	once    bool // killed workers are not started again
	group   sync.WaitGroup
}

// isWorker is the variable of a worker.
const isWorker = "PAWL_KILLTEST_WORKER"

// A worker ends with its test, also when a time-out or a signal ended that: then nobody holds the other end of its input.
func init() {
	if os.Getenv(isWorker) != "" {
		go func() {
			io.Copy(io.Discard, os.Stdin) //nolint:errcheck // an error is an end too
			os.Exit(3)
		}()
	}
}

// Start starts n processes of this test binary with these further variables of the environment.
// A TestMain sees a variable and does the work in place of the tests. A worker that ends by itself
// has done its work; it fails the test unless its exit code is 0.
func Start(t testing.TB, n int, env ...string) *Workers { t.Helper(); return start(t, n, false, env) }

// StartOnce does as Start, and starts no worker again that was killed.
func StartOnce(t testing.TB, n int, env ...string) *Workers {
	t.Helper()
	return start(t, n, true, env)
}

func start(t testing.TB, n int, once bool, env []string) *Workers {
	t.Helper()
	w := &Workers{t: t, once: once, env: append(append(os.Environ(), isWorker+"=1"), env...), running: make(map[int]*exec.Cmd)}
	t.Cleanup(w.end)
	for i := range n {
		w.group.Go(func() {
			for w.run(i) {
			}
		})
	}
	return w
}

// run runs a worker and reports whether the worker was killed, and is to be started again.
func (w *Workers) run(i int) (again bool) {
	var said bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stdout, cmd.Stderr = w.env, &said, &said
	_, err := cmd.StdinPipe() // which Wait closes, or the end of this process
	w.mu.Lock()
	if err == nil && !w.over {
		err = cmd.Start()
	}
	if err != nil || w.over {
		w.mu.Unlock()
		if err != nil {
			w.t.Error(err)
		}
		return false
	}
	w.running[i] = cmd
	w.mu.Unlock()
	err = cmd.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	killed := w.running[i] == nil
	delete(w.running, i)
	if w.over {
		return false
	}
	if err != nil && !killed {
		w.t.Errorf("a worker ended: %v: %s", err, said.String())
	}
	return killed && err != nil && !w.once
}

// KillUntilDone kills a worker now and then, kills times at most, and returns when all workers
// have ended by themselves. KillUntilDone returns how many were killed.
func (w *Workers) KillUntilDone(kills int, pause time.Duration) int {
	done := make(chan struct{})
	go func() { w.group.Wait(); close(done) }()
	for range kills {
		select {
		case <-done:
			return w.kills
		case <-time.After(pause/2 + rand.N(pause)):
			w.killOne()
		}
	}
	<-done
	return w.kills
}

// KillAtWork kills a worker each time that work has grown, kills times at most, and returns when all workers
// have ended by themselves. KillAtWork returns how many were killed.
func (w *Workers) KillAtWork(kills int, work func() int) int {
	done := make(chan struct{})
	go func() { w.group.Wait(); close(done) }()
	last := work()
	for range kills {
		for work() <= last {
			select {
			case <-done:
				return w.kills
			case <-time.After(time.Millisecond):
			}
		}
		w.killOne()
		last = work()
	}
	<-done
	return w.kills
}

// KillOver kills workers from the first of so many steps of work to the last, kills times at most, and returns as KillAtWork does. reached
// tells how many steps are done, or fails while its store is away.
func (w *Workers) KillOver(steps, kills int, reached func() (int, error)) int {
	step, done := max(1, steps/(kills+1)), 0
	offset := rand.IntN(step) // else workers of all kinds die at the same steps
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	return w.KillAtWork(kills, func() int {
		<-look.C // each look costs a store about as much as a step
		if n, err := reached(); err == nil {
			done = n
		}
		return (done + offset) / step
	})
}

// end kills the workers of a test that has failed early.
func (w *Workers) end() {
	w.mu.Lock()
	w.over = true
	for _, cmd := range w.running {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
	}
	w.mu.Unlock()
	w.group.Wait()
}

func (w *Workers) killOne() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, cmd := range w.running { // in no order
		if cmd.Process.Kill() == nil {
			delete(w.running, i)
			w.kills++
		}
		return
	}
}
