//go:build unix

package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOutbox_reader_gone: a reader that has read enough is no error.
func TestOutbox_reader_gone(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "box.db")
	boxOf(t, url, "pawl_outbox", strings.Repeat("t", 200))(500) // more than a pipe takes
	cmd := command(t, "memory:", "outbox", "ls", "--json", "-n", "500", "--db", url)
	if line := readsALine(t, cmd); !strings.Contains(line, "ttt") {
		t.Errorf("the first line is %.40q", line)
	}
}

// TestOutput_gone: what a verb did decides the exit code where nobody reads. An output that takes nothing is no fault of the database.
func TestOutput_gone(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	agent := "sqlite:" + filepath.Join(t.TempDir(), "agent.db")
	want(t, 0, "memory:", "outbox", "migrate", "--db", s.file)
	want(t, 0, "memory:", "tx", "migrate", "--agent", "--db", agent)
	reader, gone, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	defer gone.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0) // not on every system
	if err == nil {
		defer full.Close()
	}
	lost := s.leftover()
	tx := "tx --db " + s.file + " --table " + s.name + " --resource " + s.stem + " "
	for _, c := range []struct {
		line string
		code int
	}{
		{"outbox migrate --db " + s.file, 0}, {"outbox status --db " + s.file, 0}, {"outbox ls --db " + s.file, 0},
		{"outbox requeue --all --db " + s.file, 0}, {"outbox purge --older 1h --db " + s.file, 0},
		{tx + "migrate", 0}, {tx + "ls", 0}, {tx + "show " + lost.String(), 0}, {tx + "ls --json", 0}, {tx + "recover --lease 1s --within 2s", 76},
		{tx + "resolve " + lost.String() + " --abort --reason x", 0}, {tx + "ls --resolved", 0}, {tx + "recover", 0},
		{"tx migrate --agent --db " + agent, 0}, {"tx ls --agent --db " + agent, 0},
	} {
		for output, code := range map[*os.File]int{gone: c.code, full: exitInternal} {
			if output == nil || output == full && strings.Contains(c.line, "resolve") {
				continue
			}
			cmd := command(t, "memory:", strings.Fields(c.line)...)
			var stderr strings.Builder
			cmd.Stdout, cmd.Stderr = output, &stderr
			if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatal(err)
			}
			if is := cmd.ProcessState.ExitCode(); is != code || code == 0 && stderr.Len() > 0 {
				t.Errorf("%s: exit code %d, want %d: %s", c.line, is, code, stderr.String())
			}
		}
	}
}

// TestID_connection_gone: a connection to a store that breaks is no reader that has gone.
func TestID_connection_gone(t *testing.T) {
	t.Parallel()
	if err := fmt.Errorf("print IDs: %w", outputError{syscall.EPIPE}); !readerGone(err) {
		t.Error(err)
	}
	if err := fmt.Errorf("ask the store: %w", syscall.EPIPE); readerGone(err) {
		t.Error(err)
	}
}
