package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// buffered returns how much is in a pipe.
func buffered(t *testing.T, pipe *os.File) int {
	t.Helper()
	n, err := unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A command that fills the pipe which is also pawl's standard error, and that nobody
// reads, is told to end as soon as the lock is broken.
func TestRun_stops_its_command_though_nobody_reads_standard_error(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"full": `trap 'echo told >"$1"; exit' TERM; (trap "" TERM; exec yes >&2) & exec 2>/dev/null; echo up; while :; do sleep 0.02; done`,
		"gone": `trap 'echo told >"$1"; exit' TERM; exec 2>/dev/null; echo up; while :; do sleep 0.02; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, told := sqliteStore(t), filepath.Join(t.TempDir(), "told")
			cmd := command(t, store, "run", "--ttl", "30s", "--grace", "5s", "x", "--", "sh", "-c", script, "sh", told)
			out, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			p := startWith(t, cmd, in)
			p.line()
			if name == "gone" {
				out.Close()
			} else {
				for n := -1; ; { // it is full when it has stopped growing
					is := buffered(t, out)
					if is == n && is > 0 {
						break
					}
					n = is
					time.Sleep(20 * time.Millisecond)
				}
			}
			want(t, 0, store, "break", "--yes", "x")
			eventually(t, "the command is told", func() bool {
				text, err := os.ReadFile(told)
				return err == nil && string(text) == "told\n"
			})
			if code := p.wait(); code != 74 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// Ctrl-S holds the line that says what a run waits for; the run gets its lock, and its
// command runs.
func TestRun_on_a_terminal_that_is_held_gets_its_lock(t *testing.T) {
	t.Parallel()
	store, ran := sqliteStore(t), filepath.Join(t.TempDir(), "ran")
	p := held(t, store, "x")
	s := onTerminal(t, command(t, store, "run", "x", "--", "sh", "-c", `echo yes >"$1"`, "sh", ran))
	s.sees("waiting for")
	s.keys("\x13")
	p.signal(syscall.SIGTERM)
	eventually(t, "the command has run", func() bool {
		text, err := os.ReadFile(ran)
		return err == nil && string(text) == "yes\n"
	})
	s.keys("\x11")
}

// A command that becomes another user cannot be stopped: pawl says so.
func TestRun_says_that_a_command_cannot_be_stopped(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a program that becomes root")
	}
	dir, err := os.MkdirTemp("", "pawl-setuid") // that of the test is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]string{"pawl": "755", "root": "4755"} {
		name = filepath.Join(dir, name)
		if text, err := exec.Command("sh", "-c", `cp "$0" "$1" && chmod "$2" "$1"`, self, name, mode).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	store := "sqlite:" + dir + "/pawl.db"
	run := command(t, store, "run", "--ttl", "1s", "x", "--", "env", beRoot+"=1", filepath.Join(dir, "root"))
	run.Path = filepath.Join(dir, "pawl")
	run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	p := start(t, run)
	pid := p.number()
	defer syscall.Kill(pid, syscall.SIGKILL)
	want(t, 0, store, "break", "--yes", "x")
	eventually(t, "it says so", func() bool {
		return strings.Contains(p.errors(), `"x": env runs as another user and cannot be stopped: it works on beside the next holder`)
	})
	if !runs(pid) {
		t.Error("the command is stopped")
	}
	syscall.Kill(pid, syscall.SIGKILL)
	if code := p.wait(); code != 74 {
		t.Errorf("exit code %d", code)
	}
}
