//go:build unix

package cli

import (
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// kin waits for all child processes, also for children that pawl did not start. As process 1 of a
// container pawl gets every orphan there, which would stay a zombie.
type kin struct {
	begin sync.Once
	born  chan struct{}

	mu  sync.Mutex // held from before the start of a process until kin knows the process
	own map[int]chan childEvent
}

var children = &kin{born: make(chan struct{}, 1), own: make(map[int]chan childEvent)}

// start starts a process and returns its stops and, last, its end. No other code may wait for it.
func (k *kin) start(cmd *exec.Cmd) (<-chan childEvent, error) {
	k.begin.Do(func() { go k.wait() })
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	events := make(chan childEvent, 64)
	k.own[cmd.Process.Pid] = events
	select {
	case k.born <- struct{}{}:
	default:
	}
	return events, nil
}

func (k *kin) wait() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD) // of an orphan that came when there was no child
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch err {
		case nil:
			k.tell(pid, status)
		case syscall.EINTR:
		default: // there is no such process
			select {
			case <-k.born:
			case <-died:
			}
		}
	}
}

func (k *kin) tell(pid int, status syscall.WaitStatus) {
	k.mu.Lock()
	defer k.mu.Unlock()
	events := k.own[pid]
	if events == nil {
		return
	}
	events <- childEvent{status}
	if !status.Stopped() {
		delete(k.own, pid)
		close(events)
	}
}
