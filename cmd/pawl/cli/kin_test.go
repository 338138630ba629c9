//go:build unix

package cli

import (
	"os/exec"
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
