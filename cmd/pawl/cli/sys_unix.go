//go:build unix && !linux

package cli

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const bootClock = unix.CLOCK_MONOTONIC

// childAttr puts the command into the group. Only the guard makes the command die
// with pawl.
func childAttr(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group}
}

// self is the program of this process.
func self() (string, error) { return os.Executable() }

func nameGuard() {}
