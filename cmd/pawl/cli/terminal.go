//go:build unix

package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal. The command's group gets it when the command first stops to
// read or to set it. Before that, signals of the keyboard come to pawl, which passes them on. So a
// pipeline such as "pawl run x -- cmd | less" works as without pawl.
type terminal struct {
	file  *os.File // nil: there is none
	given bool
}

func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return &terminal{}
	}
	return &terminal{file: file}
}

// give makes the command's group the foreground group if pawl's is. The command may have stopped
// twice before it got the terminal. Then it has the terminal already, and pawl hears of the second
// stop only now.
func (t *terminal) give(c *child) bool {
	if t.file == nil {
		return false
	}
	fd := int(t.file.Fd())
	switch front, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); {
	case err != nil:
		return false
	case t.given && front == c.group:
		return !c.strayed()
	case front != syscall.Getpgrp():
		return false
	}
	t.given = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, c.group) == nil
	return t.given
}

// takeBack makes pawl's group the foreground again. Without pawl, a signal of the keyboard that
// ended the command would also have reached the script that runs pawl. So takeBack sends that
// signal to pawl's group.
func (t *terminal) takeBack(end syscall.WaitStatus) {
	if !t.given {
		return
	}
	withoutTTOU(func() { // pawl is in the background, and the signal would stop pawl
		unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, syscall.Getpgrp()) //nolint:errcheck // the terminal may be gone
	})
	if sig := end.Signal(); sig == syscall.SIGINT || sig == syscall.SIGQUIT {
		syscall.Kill(0, sig) //nolint:errcheck // pawl itself catches it
	}
}

// stopped reacts to the stop of the command by sig.
func (j *job) stopped(sig syscall.Signal) {
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if !j.tty.give(j.child) {
			j.suspend()
		}
	case syscall.SIGTSTP:
		j.suspend()
	default: // SIGSTOP stopped the command alone; pawl keeps the lock
		return
	}
	j.signal(syscall.SIGCONT)
}

// suspend stops pawl as the command was stopped, until the shell continues pawl. So the shell sees
// the stop.
func (j *job) suspend() {
	whom := syscall.Getpid()
	if j.tty.given { // then only the command has the signal of the terminal
		whom = 0
	}
	j.tty.given = false // the shell takes it
	stopUntilResumed(whom)
}

// stopUntilResumed stops pawl, or with 0 the group of pawl. SIGTTIN stops only processes that a shell could continue.
// Pawl catches SIGTSTP, and Go does not give that signal up again.
func stopUntilResumed(whom int) {
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	defer signal.Stop(resumed)
	syscall.Kill(whom, syscall.SIGTTIN) //nolint:errcheck // pawl may signal itself
	select {
	case <-resumed:
	case <-time.After(time.Second): // nothing has stopped pawl
	}
}

// terminalWidth returns the width of w if it is a terminal.
func terminalWidth(w io.Writer) (int, bool) {
	file, ok := w.(*os.File)
	if !ok {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}
