//go:build unix

package cli

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A child that pawl did not start does not stay a zombie. Such a child comes from the program that
// became pawl, or as an orphan of a container.
func TestRun_buries_the_children_of_others(t *testing.T) {
	t.Parallel()
	run := command(t, sqliteStore(t), "run", "x", "--", "sh", "-c", "echo up; exec sleep 1000")
	cmd := exec.Command("sh", append([]string{"-c", `for i in 1 2 3 4 5; do sleep 0.$i & done; exec "$@"`, "sh"}, run.Args...)...)
	cmd.Env = run.Env
	p := start(t, cmd)
	p.line()
	eventually(t, "only the guard and the command are left", func() bool {
		text, err := exec.Command("ps", "-A", "-o", "ppid=,stat=").Output()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			var parent int
			if fields := strings.Fields(line); len(fields) == 2 {
				parent = atoi(t, fields[0])
				if parent == cmd.Process.Pid {
					n++
				}
			}
		}
		return n == 2
	})
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 143 {
		t.Errorf("exit code %d", code)
	}
}

// stopped reports whether a signal has stopped a process.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.HasPrefix(strings.TrimSpace(string(state)), "T")
}

// The stops of the guard, which is in the group of the command, keep pawl from nothing.
func TestRun_whose_group_is_stopped_often_ends(t *testing.T) {
	t.Parallel()
	p := start(t, command(t, sqliteStore(t), "run", "x", "--", "sh", "-c", "echo $$; exec sleep 1000"))
	pid := p.number()
	group, err := syscall.Getpgid(pid)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
			if err := syscall.Kill(-group, sig); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the command obeys", func() bool { return stopped(t, pid) == (sig == syscall.SIGSTOP) })
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 143 {
		t.Errorf("exit code %d", code)
	}
}
