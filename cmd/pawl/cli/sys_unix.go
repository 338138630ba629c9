//go:build unix && !linux

package cli

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

const bootClock = unix.CLOCK_MONOTONIC

// childAttr puts the command into the group. Only the guard makes the command die
// with pawl.
func childAttr(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group}
}

// withoutTTOU does what SIGTTOU would prevent. The signal stays ignored, because Go does not give that up again.
func withoutTTOU(do func()) {
	signal.Ignore(syscall.SIGTTOU)
	do()
}

// self is the program of this process.
func self() (string, error) { return os.Executable() }

func nameGuard() {}
