package testservers

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sysProcAttr gives the child its own process group, so that a Ctrl-C for the tests does not end
// the child before them. The kernel kills the child when this process dies.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

type spawning struct {
	cmd  *exec.Cmd
	done chan error
}

// spawner starts processes on one thread that lives as long as this process. The kernel sends the
// parent-death signal when the thread that forked ends.
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

// family returns a process and its children.
func family(pid int) []int {
	all := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task) // a thread that has ended has none
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// CPU is the processor time that the server and its children have taken, in nanoseconds. Children that have ended
// count when the server has reaped them, in steps of 10 ms.
func (s *Server) CPU() (total time.Duration) {
	s.t.Helper()
	for i, pid := range family(s.pid()) {
		var used unix.Timespec
		if unix.ClockGettime(int32(^pid<<3|2), &used) != nil { // the clock of a process with all its threads; a child may have ended
			continue
		}
		total += time.Duration(used.Nano())
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, after, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); i == 0 && len(fields) >= 15 {
			for _, field := range fields[13:15] { // cutime and cstime, the 16th and 17th, after two that are cut
				ticks, _ := strconv.Atoi(field) // the kernel writes numbers
				total += time.Duration(ticks) * 10 * time.Millisecond
			}
		}
	}
	return total
}

// bury kills the processes that a server left behind, and waits until they are gone. Those processes have the
// server's memory and its connections.
func bury(orphans []int) {
	deadline := time.Now().Add(stopWithin)
	for _, pid := range orphans {
		syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // most have ended by themselves
		for !ended(pid) && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
	}
}

// ended reports whether a process has ended, also if nobody has reaped it.
func ended(pid int) bool {
	state := state(fmt.Sprintf("/proc/%d/stat", pid))
	return state == 0 || state == 'Z'
}

// awaitPaused waits until the kernel has stopped every thread: when kill returns, the signal has
// only been sent.
func (s *Server) awaitPaused(pid int) {
	s.t.Helper()
	deadline := time.Now().Add(stopWithin)
	for !stopped(pid) && !ended(pid) {
		if time.Now().After(deadline) {
			s.t.Fatalf("process %d did not stop within %v", pid, stopWithin)
		}
		time.Sleep(time.Millisecond)
	}
}

func stopped(pid int) bool {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		// 0: the thread has ended.
		if is := state(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name())); is != 0 && is != 'T' {
			return false
		}
	}
	return err == nil
}

// state returns the state of a process or thread, 0 if there is none.
func state(stat string) byte {
	text, _ := os.ReadFile(stat)
	if end := bytes.LastIndexByte(text, ')'); end >= 0 && end+2 < len(text) {
		return text[end+2]
	}
	return 0
}
