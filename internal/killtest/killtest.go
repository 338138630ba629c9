// Package killtest runs a test binary again as several worker processes, which tests kill at
// any time. A killed worker is started again.
package killtest

import (
	"bytes"
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
	group   sync.WaitGroup
}

// Start starts n processes of this test binary with these further variables of the environment.
// A TestMain sees a variable and does the work in place of the tests. A worker that ends by itself
// has done its work; it fails the test unless its exit code is 0.
func Start(t testing.TB, n int, env ...string) *Workers {
	t.Helper()
	w := &Workers{t: t, env: append(os.Environ(), env...), running: make(map[int]*exec.Cmd)}
	for i := range n {
		w.group.Go(func() {
			for w.run(i) {
			}
		})
	}
	return w
}

// run runs a worker and reports whether the worker was killed.
func (w *Workers) run(i int) (killed bool) {
	var said bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stdout, cmd.Stderr = w.env, &said, &said
	w.mu.Lock()
	if err := cmd.Start(); err != nil {
		w.mu.Unlock()
		w.t.Error(err)
		return false
	}
	w.running[i] = cmd
	w.mu.Unlock()
	err := cmd.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	killed = w.running[i] == nil
	delete(w.running, i)
	if err != nil && !killed {
		w.t.Errorf("a worker ended: %v: %s", err, said.String())
	}
	return killed && err != nil
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
