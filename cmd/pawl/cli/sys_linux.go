package cli

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const bootClock = unix.CLOCK_BOOTTIME

// childAttr puts the command into the group. childAttr also makes the kernel kill the command when pawl
// dies, even if the guard dies too.
func childAttr(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
}

// self is the program of this process, also when its file was replaced or is gone.
func self() (string, error) {
	const link = "/proc/self/exe"
	_, err := os.Stat(link)
	return link, err
}

// nameGuard gives the guard the name that its process would have without that link.
func nameGuard() { os.WriteFile("/proc/self/comm", []byte("pawl"), 0) } //nolint:errcheck // for operators that list processes
