package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const bootClock = unix.CLOCK_BOOTTIME

// childAttr puts the command into the group, and has the kernel kill it when
// pawl dies, even if the guard does too.
func childAttr(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
}
