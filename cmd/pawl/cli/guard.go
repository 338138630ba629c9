//go:build unix

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The guard is a second process that ends the command when pawl cannot: when pawl is killed or
// stopped. The guard leads the process group in which the command runs. So no other group can get
// that number, and be killed by mistake. The guard ignores all signals that can be ignored, because
// the group gets them.

// guardVerb makes a process the guard of its parent.
const guardVerb = "__guard"

// guard is the guard process as pawl sees it.
type guard struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	orders *os.File
	tells  *os.File // a byte when the guard is ready, another when it kills
}

func startGuard() (*guard, error) {
	program, err := self()
	if err != nil {
		return nil, err
	}
	theirOrders, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirOrders.Close()
	tells, theirTells, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirTells.Close()
	cmd := exec.Command(program)
	cmd.Args = []string{os.Args[0], guardVerb}
	cmd.Stdin, cmd.Stdout = theirOrders, theirTells
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	events, err := children.start(cmd)
	if err != nil {
		return nil, errors.Join(err, orders.Close(), tells.Close())
	}
	g := &guard{cmd, make(chan struct{}), orders, tells}
	go func() {
		defer close(g.ended)
		for ev := range events {
			if ev.status.Stopped() { // with its group, by a user who means the command
				cmd.Process.Signal(syscall.SIGCONT) //nolint:errcheck // the guard may have ended
			}
		}
	}()
	return g, nil
}

// ready waits until the guard ignores signals and listens.
func (g *guard) ready() error {
	_, err := io.ReadFull(g.tells, make([]byte, 1))
	return err
}

// fired reports whether the guard has killed the group.
func (g *guard) fired() bool {
	g.tells.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) //nolint:errcheck // pipes have deadlines
	n, _ := g.tells.Read(make([]byte, 1))
	return n == 1
}

func (g *guard) group() int { return g.cmd.Process.Pid }

// until tells the guard when the lock ends, by bootTime.
func (g *guard) until(end time.Duration) { g.order("until", int64(end)) }

// watch tells the guard which process is the command, in case the command leaves the group.
func (g *guard) watch(pid int) { g.order("child", int64(pid)) }

// standAside makes the guard leave the group, so that pawl can wait for the rest. The guard still
// guards the group.
func (g *guard) standAside() { g.order("aside", 0) }

// order never blocks for long: a guard that is stopped reads nothing.
func (g *guard) order(verb string, n int64) {
	g.orders.SetWriteDeadline(time.Now().Add(time.Second)) //nolint:errcheck // pipes have deadlines
	fmt.Fprintln(g.orders, verb, n)
}

// end ends the guard and leaves its group alone.
func (g *guard) end() {
	g.cmd.Process.Kill() //nolint:errcheck // the guard may have ended
	<-g.ended
	g.orders.Close()
	g.tells.Close()
}

// guardMain is the guard process.
func guardMain() int {
	group := os.Getpid()
	if syscall.Getpgrp() != group {
		return exitUsage // a user started the guard by hand
	}
	signal.Ignore()
	nameGuard()
	os.Stdout.WriteString("r") //nolint:errcheck // if pawl has ended, the closed orders tell
	g := guarding{group: group, until: math.MaxInt64}
	orders := bufio.NewReader(os.Stdin)
	for {
		// Poll stands still while the machine sleeps: look often.
		left := max(0, min(g.until-bootTime(), time.Second))
		ready, err := orders.Buffered(), error(nil)
		if ready == 0 {
			ready, err = unix.Poll([]unix.PollFd{{Fd: int32(syscall.Stdin), Events: unix.POLLIN}}, int(left.Milliseconds()))
		}
		switch {
		case ready > 0: // orders come before the time: while the guard was stopped, pawl may have sent a later end
			if order, err := orders.ReadString('\n'); err == nil {
				g.obey(order)
				continue
			}
		case errors.Is(err, unix.EINTR) || bootTime() < g.until:
			continue
		}
		g.kill()
		return exitLost
	}
}

// guarding is the state of the guard.
type guarding struct {
	group int
	child *os.Process
	until time.Duration
}

func (g *guarding) obey(order string) {
	var verb string
	var n int64
	fmt.Sscan(order, &verb, &n) //nolint:errcheck // the order comes from pawl itself
	switch verb {
	case "until":
		g.until = time.Duration(n)
	case "child":
		g.child, _ = os.FindProcess(int(n)) // holds on to the process, not to its number
	case "aside":
		if parent, err := syscall.Getpgid(os.Getppid()); err == nil {
			syscall.Setpgid(0, parent) //nolint:errcheck // if this fails, pawl waits longer
		}
	}
}

// kill ends the group, and the guard itself as long as the guard is in the group.
func (g *guarding) kill() {
	os.Stdout.WriteString("k") //nolint:errcheck // pawl may have ended
	if g.child != nil {
		g.child.Kill() //nolint:errcheck // the child may have ended
	}
	syscall.Kill(-g.group, syscall.SIGKILL) //nolint:errcheck // likewise
}

// bootTime is a clock that all processes share, that nobody sets, and that counts while the machine
// sleeps.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(bootClock, &ts); err != nil {
		panic(err) // the clock exists
	}
	return time.Duration(ts.Nano())
}
