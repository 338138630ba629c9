package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// The command fills the pipe that is also pawl's standard error, and nobody reads the pipe. The
// command still gets SIGTERM as soon as the lock is broken.
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
				for n := -1; ; { // the pipe is full when its content has stopped growing
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

// Ctrl-S holds the line with the reason of the wait. The run still gets its lock, and its command
// runs.
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

// beOther makes the test binary a command that becomes another user. beWeak makes the test binary a
// pawl that may not signal other users.
const beOther, beWeak = "PAWL_BE_OTHER", "PAWL_BE_WEAK"

func init() {
	switch {
	case os.Getenv(beOther) != "":
		if err := errors.Join(syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
			fmt.Println(err)
		}
		fmt.Println(os.Getpid())
		<-time.After(time.Hour)
	case os.Getenv(beWeak) != "":
		runtime.LockOSThread() // the bounding set belongs to a thread, and to the program that it executes
		err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_KILL, 0, 0, 0)
		os.Unsetenv(beWeak)
		if err == nil {
			err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
		}
		fmt.Fprintln(os.Stderr, "give up the right to signal other users:", err)
		os.Exit(exitInternal)
	}
}

// A command that becomes another user cannot be stopped: pawl says so. Here root runs pawl without
// the right to signal other users. A set-user-ID file would do nothing where /tmp is mounted with
// nosuid.
func TestRun_says_that_a_command_cannot_be_stopped(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	store := sqliteStore(t)
	run := command(t, store, "run", "--ttl", "1s", "x", "--", "env", beOther+"=1", self)
	run.Env = append(run.Env, beWeak+"=1")
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
