//go:build unix

package cli

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

const lossTTL = 3 * time.Second

// family is a command with a child of its own. Both ignore all signals that can be ignored. Family
// prints its process ids and its token.
const family = `trap "" TERM HUP INT
	(trap "" TERM HUP INT; while :; do sleep 1000; done) &
	echo $$; echo $!; echo $PAWL_TOKEN; wait`

type holder struct {
	*process
	pids  []int
	token int
}

// holdAsFamily runs family under the lock.
func holdAsFamily(t *testing.T, store, name string) holder {
	t.Helper()
	p := start(t, command(t, store, "run", "--ttl", lossTTL.String(), name, "--", "sh", "-c", family))
	h := holder{process: p}
	h.pids = []int{p.number(), p.number()}
	h.token = p.number()
	return h
}

// next waits for the lock in another process, whose command prints its token.
func next(t *testing.T, store, name string) *process {
	t.Helper()
	p := start(t, command(t, store, "run", "--ttl", lossTTL.String(), name, "--", "sh", "-c", "echo $PAWL_TOKEN; exec sleep 1000"))
	eventually(t, "it waits", func() bool { return states(t, store, name) == "granted waiting" })
	return p
}

// expectDead fails the test if a process of the family runs.
func (h holder) expectDead() {
	h.t.Helper()
	for _, pid := range h.pids {
		if runs(pid) {
			h.t.Errorf("process %d runs while another has the lock", pid)
		}
	}
}

// expectNext waits until the next holder has the lock. No process of the family may run then.
func (h holder) expectNext(p *process) {
	h.t.Helper()
	token := p.number()
	h.expectDead()
	if token <= h.token {
		h.t.Errorf("token %d after %d", token, h.token)
	}
}

// lose takes the lock from the holder by a signal to its run.
func (h holder) lose(p *process, by syscall.Signal) {
	h.t.Helper()
	h.signal(by)
	signalled := time.Now()
	h.expectNext(p)
	if took := time.Since(signalled); took > 3*lossTTL { // a busy machine starts commands late; the rows of the engines measure exactly
		h.t.Errorf("the next one waited for %v", took)
	}
}

func TestRun_killed_takes_its_command_along(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		h := holdAsFamily(t, store, name)
		h.lose(next(t, store, name), syscall.SIGKILL)
	})
}

func TestRun_frozen_does_not_keep_its_command(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		h := holdAsFamily(t, store, name)
		h.lose(next(t, store, name), syscall.SIGSTOP)
		h.signal(syscall.SIGCONT)
		if code := h.wait(); code != 74 {
			t.Errorf("exit code %d", code)
		}
		complaint(t, h.errors(), strconv.Quote(name)) // and the reason
	})
}

// The whole group of a run is frozen: guard and command stand still. Neither goes on for long after
// that.
func TestRun_frozen_with_all_its_group(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	h := holdAsFamily(t, store, "x")
	group, err := syscall.Getpgid(h.pids[0])
	if err != nil {
		t.Fatal(err)
	}
	p := next(t, store, "x")
	h.signal(syscall.SIGSTOP)
	if err := syscall.Kill(-group, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.number()
	if err := syscall.Kill(-group, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is dead", func() bool { return !runs(h.pids[0]) && !runs(h.pids[1]) })
	h.signal(syscall.SIGCONT)
	if code := h.wait(); code != 74 {
		t.Errorf("exit code %d", code)
	}
}

// The group of a command is stopped for longer than the TTL, and pawl goes on renewing: the lock is not lost.
func TestRun_goes_on_with_a_group_that_was_stopped(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	p := start(t, command(t, store, "run", "--ttl", "1s", "x", "--", "sh", "-c", "echo $$; exec sleep 1000"))
	pid := p.number()
	group, err := syscall.Getpgid(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(-group, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is stopped", func() bool { return stopped(t, pid) })
	want(t, 75, store, "run", "--wait", "3s", "x", "--", "true") // longer than the TTL
	if stopped(t, group) {
		t.Error("the guard is stopped")
	}
	if err := syscall.Kill(-group, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	want(t, 75, store, "run", "--wait", "1s", "x", "--", "true") // a guard that kills does so at once
	if !runs(pid) {
		t.Error("the command was killed")
	}
}

// A server that comes back empty grants nothing until the holders that it forgot have ended.
func TestRun_over_a_Redis_that_forgot(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	store := "redis://" + server.Addr
	h := holdAsFamily(t, store, "x")
	server.Kill()
	server.Restart()
	h.expectNext(start(t, command(t, store, "run", "--ttl", lossTTL.String(), "x", "--", "sh", "-c", "echo $PAWL_TOKEN; exec sleep 1000")))
	if code := h.wait(); code != 74 {
		t.Errorf("exit code %d", code)
	}
}

func TestRun_ends_the_command_before_the_lock_is_over(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	// The command says that it got SIGTERM, and does not end.
	p := start(t, command(t, "redis://"+server.Addr, "run", "--ttl", "2s", "--grace", "500ms", "x", "--", "sh", "-c",
		`exec 2>/dev/null; trap 'echo told' TERM; echo $$; while :; do sleep 0.02; done`))
	pid := p.number()
	server.Pause() // from now on nothing is renewed
	paused := time.Now()
	if line := p.line(); line != "told" {
		t.Fatalf("line %q", line)
	}
	eventually(t, "the command is dead", func() bool { return !runs(pid) })
	if took := time.Since(paused); took > 2*time.Second { // the last renewal may have been just before the pause
		t.Errorf("the command is dead after %v", took)
	}
	if code := p.wait(); code != 74 {
		t.Errorf("exit code %d", code)
	}
	// The store answers neither the release nor the farewell.
	if took := time.Since(paused); took > 2*time.Second+2*closeWithin {
		t.Errorf("ended after %v", took)
	}
	complaint(t, p.errors(), `"x": the lock cannot be kept`)
	server.Resume()
}

func TestRun_gives_all_of_the_group_its_grace(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	p := start(t, command(t, store, "run", "--ttl", "3s", "x", "--", "sh", "-c",
		`(trap 'sleep 0.2; echo cleaned; exit' TERM; echo up; while :; do sleep 0.02; done) & wait`))
	p.line()
	want(t, 0, store, "break", "--yes", "x")
	if line := p.line(); line != "cleaned" { // after the command itself has ended
		t.Errorf("line %q", line)
	}
	if code := p.wait(); code != 74 {
		t.Errorf("exit code %d", code)
	}
}

func TestRun_broken_stops_its_command(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		var text string
		for n := 0; n < breaks && !strings.Contains(text, brokenBy); n++ {
			h := holdAsFamily(t, store, name)
			stdout, stderr := want(t, 64, store, "break", name)
			complaint(t, stderr, "--yes")
			if !strings.HasPrefix(stdout, "would evict ") || !strings.Contains(stdout, ": sh (token ") {
				t.Errorf("output %q", stdout)
			}
			stdout, _ = want(t, 0, store, "break", "--yes", name)
			if !strings.HasPrefix(stdout, "evicted ") || !strings.HasSuffix(stdout, "\n"+workingOn+"\n") {
				t.Errorf("output %q", stdout)
			}
			if code := h.wait(); code != 74 {
				t.Errorf("exit code %d", code)
			}
			h.expectDead()
			text = h.errors()
		}
		complaint(t, text, brokenBy)
		stdout, _ := want(t, 0, store, "break", "--yes", name)
		if stdout != name+": nobody holds it\n" {
			t.Errorf("output %q", stdout)
		}
	})
}

// A command that leaves the group, as an interactive shell does, is ended too.
func TestRun_follows_a_command_that_leaves_its_group(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	leave := func() (p *process, pid int) {
		p = start(t, command(t, store, "run", "--ttl", "1s", "x", "--", "setsid", "sh", "-c",
			`trap "echo told" USR1; echo $$; while :; do sleep 0.02; done`))
		pid = p.number()
		p.signal(syscall.SIGUSR1) // passed on once the guard knows of the command
		if line := p.line(); line != "told" {
			t.Fatalf("line %q", line)
		}
		return p, pid
	}
	ended := func(p *process, pid int) {
		t.Helper()
		if code := p.wait(); code != 74 {
			t.Errorf("exit code %d", code)
		}
		if runs(pid) {
			t.Error("the command runs")
		}
	}
	p, pid := leave()
	want(t, 0, store, "break", "--yes", "x")
	ended(p, pid)

	p, pid = leave()
	p.signal(syscall.SIGSTOP)
	eventually(t, "the command is dead", func() bool { return !runs(pid) })
	p.signal(syscall.SIGCONT)
	ended(p, pid)
}

// brokenBy names the operator. The holder waits 100 ms for the name, and a busy store may take
// longer. Then the test breaks the lock again, a few times at most.
const brokenBy, breaks = "lock lost: broken by ", 5
