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

// terminal is the controlling terminal, which the command's group gets when it
// first asks for it: when it stops because it wants to read or to set it.
// Before, signals of the keyboard come to pawl, which passes them on; so a
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

// give makes the command's group the foreground group if pawl's is. The command has
// it already when it stopped twice before it was given it, and we hear of the
// second time only now.
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

// takeBack makes pawl's group the foreground again. A signal of the keyboard
// that ended the command would have come to all of pawl's group, as to the
// script that pawl is run from.
func (t *terminal) takeBack(end syscall.WaitStatus) {
	if !t.given {
		return
	}
	signal.Ignore(syscall.SIGTTOU)                                               // would stop us: we are in the background
	unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, syscall.Getpgrp()) //nolint:errcheck // it may be gone
	if sig := end.Signal(); sig == syscall.SIGINT || sig == syscall.SIGQUIT {
		syscall.Kill(0, sig) //nolint:errcheck // we catch it
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
	default: // SIGSTOP: somebody stopped the command alone; the lock is kept
		return
	}
	j.signal(syscall.SIGCONT)
}

// suspend stops pawl as the command was stopped, so that the shell sees it,
// until the shell continues it. suspend uses SIGTTIN, which stops no process that
// no shell could continue; SIGTSTP we catch, and Go does not give it up again.
func (j *job) suspend() {
	whom := syscall.Getpid()
	if j.tty.given { // then the terminal has told the command only
		whom = 0
	}
	j.tty.given = false // the shell takes it
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	defer signal.Stop(resumed)
	syscall.Kill(whom, syscall.SIGTTIN) //nolint:errcheck // to ourselves
	select {
	case <-resumed:
	case <-time.After(time.Second): // we were not stopped
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
