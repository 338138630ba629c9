//go:build unix

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/pawl-go/pawl"
)

// child is the command while it runs.
type child struct {
	process *os.Process
	group   int // of the guard, which keeps the kernel from using the number again
	events  chan childEvent
}

// childEvent is a stop of the child or, last, its end.
type childEvent struct{ status syscall.WaitStatus }

// startChild starts the command. The starting thread stays until the command has ended, because the kernel
// sends the parent-death signal when that thread ends.
func startChild(cmd *exec.Cmd, group int) (*child, error) {
	c := &child{group: group, events: make(chan childEvent)}
	cmd.SysProcAttr = childAttr(group)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		events, err := children.start(cmd)
		started <- err
		if err != nil {
			return
		}
		for ev := range events {
			c.events <- ev
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	c.process = cmd.Process
	return c, nil
}

// strayed reports whether the command has left the group, as interactive shells
// do.
func (c *child) strayed() bool {
	group, err := syscall.Getpgid(c.process.Pid)
	return err == nil && group != c.group
}

// signal signals the group, and the command also when the command has left the group. signal reports
// whether the command refuses signals of pawl: then the command has become another user.
func (c *child) signal(sig syscall.Signal) (refused bool) {
	syscall.Kill(-c.group, sig) //nolint:errcheck // a process that has gone needs no signal
	if !c.strayed() {
		sig = 0 // the command has the signal from the group, if it may have signals
	}
	return errors.Is(c.process.Signal(sig), syscall.EPERM)
}

// signal signals the command. When that is refused, pawl tells the operator.
func (j *job) signal(sig syscall.Signal) {
	if !j.child.signal(sig) || j.refused {
		return
	}
	j.refused = true
	if j.lost != nil {
		complain(fmt.Errorf("%q: %s runs as another user and cannot be stopped: it works on beside the next holder", j.name, j.command[0]))
		return
	}
	complain(fmt.Errorf("%q: %s runs as another user: it was not sent signal %d (%v), and will not be stopped when the lock is lost",
		j.name, j.command[0], int(sig), sig))
}

// execute runs the command under the lock and returns its exit code as a shell would.
func (j *job) execute(path string) (code int, err error) {
	if err := j.guard.ready(); err != nil {
		return 0, fmt.Errorf("start the guard: %w", err)
	}
	env := []string{"PAWL_NAME=" + j.name, "PAWL_TOKEN=" + j.lease.Token().String(), "PAWL_OWNER=" + j.lease.Owner()}
	if j.slots {
		env = append(env, "PAWL_SLOT="+strconv.Itoa(j.number))
	}
	if j.claim != nil {
		env = append(env, "PAWL_ATTEMPT="+strconv.Itoa(j.claim.Attempts()))
	}
	_, _, j.lost = j.look()
	if j.lost == nil {
		err := j.begin(path, env...)
		if err == nil {
			return j.finish(j.supervise())
		}
		switch j.lost = j.lease.Err(); { // the guard kills its group, and the command can join no group that has gone
		case j.lost == nil && j.guard.fired():
			j.lost = fmt.Errorf("%w: no renewal in time", pawl.ErrLost)
		case j.lost == nil:
			return 0, err
		}
	}
	return 0, &exitError{exitLost, fmt.Errorf("%w; %s was not started", j.lost, j.command[0])}
}

// begin starts the command with these variables. The guard is ready.
func (j *job) begin(path string, env ...string) (err error) {
	cmd := &exec.Cmd{Path: path, Args: j.command} // exec.Command would look up again, and refuse what lookPath has found
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, cmp.Or(j.stdout, os.Stdout), cmp.Or(j.stderr, os.Stderr)
	cmd.Env = append(os.Environ(), env...)
	if j.child, err = startChild(cmd, j.guard.group()); err != nil {
		return notRunnable(j.command[0], err)
	}
	j.guard.watch(j.child.process.Pid) // until then the guard knows only the group
	signal.Notify(j.signals, syscall.SIGTSTP, syscall.SIGCONT)
	j.tty = openTerminal()
	return nil
}

// finish returns the exit code of the command that has ended.
func (j *job) finish(end childEvent) (code int, err error) {
	j.tty.takeBack(end.status)
	defer j.guard.end()
	return j.result(end)
}

// supervise passes signals on and watches the lock until the child has ended.
func (j *job) supervise() childEvent {
	lost := j.lease.Context().Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case ev := <-j.child.events:
			if !ev.status.Stopped() {
				return ev
			}
			j.stopped(ev.status.StopSignal())
		case sig := <-j.signals:
			j.ended = j.ended || ends(sig)
			j.signal(sig.(syscall.Signal))
		case <-lost:
			lost = nil
		case <-timer.C:
		}
		timer.Reset(j.check())
	}
}

// lead is how long before the end of the lock the child must be dead. Less might let the child live
// on after the lock.
func (j *job) lead() time.Duration { return min(100*time.Millisecond, j.ttl/20) }

// extend tells the guard the end of the lock, and returns it.
func (j *job) extend() time.Time {
	now := bootTime() // read first: a pause before the next line makes the end only earlier
	until := j.lease.ValidUntil()
	j.guard.until(now + time.Until(until) - j.lead()/4)
	return until
}

// look tells the guard the end of the lock. look returns that end, the time until the command must be told to end, and why that time is over.
func (j *job) look() (until time.Time, left time.Duration, lost error) {
	until = j.extend()
	left = time.Until(until) - max(j.grace, j.lead())
	if lost = j.lease.Err(); lost == nil && left <= 0 {
		lost = errors.New("the lock cannot be kept: no renewal reaches the store")
	}
	return until, left, lost
}

// check looks at the lock and returns when to look again.
func (j *job) check() time.Duration {
	if j.lost == nil {
		until, left, lost := j.look()
		if lost == nil {
			return min(left, j.ttl/10)
		}
		j.terminate(lost, until)
	}
	left := time.Until(j.killAt)
	if left <= 0 {
		j.signal(syscall.SIGKILL)
		return j.ttl
	}
	return left
}

// terminate tells the child to end, because the lock is lost or will be. After that it tells the
// operator.
func (j *job) terminate(cause error, until time.Time) {
	j.lost, j.refused = cause, false
	j.killAt = time.Now().Add(j.grace)
	if latest := until.Add(-j.lead() / 2); latest.Before(j.killAt) {
		j.killAt = latest
	}
	j.child.signal(syscall.SIGTERM)
	complain(fmt.Errorf("%q: %w; stopping %s", j.name, cause, j.command[0]))
	j.signal(syscall.SIGCONT) // a stopped command must wake to end
}

// result makes an exit code of the end of the child. After a loss it waits for the rest of the
// group, which got the signal too.
func (j *job) result(end childEvent) (int, error) {
	switch {
	case j.lost != nil:
		j.guard.standAside()
		for time.Now().Before(j.killAt) && syscall.Kill(-j.child.group, 0) == nil {
			time.Sleep(5 * time.Millisecond)
		}
		syscall.Kill(-j.child.group, syscall.SIGKILL) //nolint:errcheck // there may be none
		j.survivors()
		return exitLost, nil
	case end.status.Signal() == syscall.SIGKILL && j.guard.fired(): // pawl was stopped, or late
		j.lost = fmt.Errorf("%q: %w: no renewal in time; %s was killed", j.name, pawl.ErrLost, j.command[0])
		complain(j.lost)
		return exitLost, nil
	case end.status.Signaled():
		return exitSignal + int(end.status.Signal()), nil
	}
	j.exited = true
	return end.status.ExitStatus(), nil
}

// survivors reports processes left in the group that have become another user. Killed processes
// need a moment to go.
func (j *job) survivors() {
	err := syscall.Kill(-j.child.group, 0)
	for end := time.Now().Add(j.lead()); err == nil && time.Now().Before(end); err = syscall.Kill(-j.child.group, 0) {
		time.Sleep(time.Millisecond)
	}
	if errors.Is(err, syscall.EPERM) {
		complain(fmt.Errorf("%q: a process that %s started runs as another user and could not be stopped: it works on beside the next holder",
			j.name, j.command[0]))
	}
}
