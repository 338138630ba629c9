package cli

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const bootClock = unix.CLOCK_BOOTTIME

// childAttr puts the command into the group. childAttr also makes the kernel kill the command when pawl
// dies, even if the guard dies too.
func childAttr(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
}

// withoutTTOU does what SIGTTOU would prevent. An ignored signal would stay ignored, also in the commands of later terms.
func withoutTTOU(do func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, was unix.Sigset_t
	none.Val[0] = 1 << (syscall.SIGTTOU - 1)
	unix.PthreadSigmask(unix.SIG_BLOCK, &none, &was) //nolint:errcheck // the arguments are well
	do()
	unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil) //nolint:errcheck // as above
}

// self is the program of this process, also when its file was replaced or is gone.
func self() (string, error) {
	const link = "/proc/self/exe"
	_, err := os.Stat(link)
	return link, err
}

// nameGuard gives the guard the name that its process would have without that link.
func nameGuard() { os.WriteFile("/proc/self/comm", []byte("pawl"), 0) } //nolint:errcheck // for operators that list processes
