package testservers

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// sysProcAttr gives the child its own process group, so that a Ctrl-C for the
// tests does not end it before them, and has the kernel kill it with us.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

type spawning struct {
	cmd  *exec.Cmd
	done chan error
}

// spawner starts processes on one thread that lives as long as this process:
// the kernel sends the parent-death signal when the thread ends that forked.
var spawner = sync.OnceValue(func() chan<- spawning {
	requests := make(chan spawning)
	go spawnAll(requests)
	return requests
})

func spawnAll(requests <-chan spawning) {
	runtime.LockOSThread()
	for r := range requests {
		r.done <- r.cmd.Start()
	}
}

func spawn(cmd *exec.Cmd) error {
	r := spawning{cmd, make(chan error)}
	spawner() <- r
	return <-r.done
}

// awaitPaused waits until the kernel has stopped every thread: the signal is
// only sent when kill returns.
func (s *Server) awaitPaused() {
	s.t.Helper()
	s.proc.mu.Lock()
	pid := s.proc.cmd.Process.Pid
	s.proc.mu.Unlock()
	deadline := time.Now().Add(stopWithin)
	for !stopped(pid) {
		if time.Now().After(deadline) {
			s.t.Fatalf("process %d did not stop within %v", pid, stopWithin)
		}
		time.Sleep(time.Millisecond)
	}
}

func stopped(pid int) bool {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name()))
		if err != nil {
			continue // the thread has ended
		}
		if end := bytes.LastIndexByte(stat, ')'); end+2 >= len(stat) || stat[end+2] != 'T' {
			return false
		}
	}
	return err == nil
}
