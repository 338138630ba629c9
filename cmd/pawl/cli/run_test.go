//go:build unix

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

func TestRun_passes_the_exit_code_on(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "binary")
	if err := os.WriteFile(binary, []byte("\x00\x01"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		command []string
		code    int
		says    string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "exit 3"}, 3, ""},
		{[]string{"sh", "-c", "exit 255"}, 255, ""},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137, ""},
		{[]string{"no such program"}, 127, "not found"},
		{[]string{filepath.Join(dir, "none")}, 127, "no such file"},
		{[]string{plain}, 126, "permission denied"},
		{[]string{dir}, 126, "directory"},
		{[]string{binary}, 126, "exec format error"},
	} {
		_, stderr := want(t, test.code, store, append([]string{"run", "x", "--"}, test.command...)...)
		if test.says != "" {
			complaint(t, stderr, test.says)
		} else if stderr != "" {
			t.Errorf("%q: on standard error: %s", test.command, stderr)
		}
	}
	if is := states(t, store, "x"); is != "" {
		t.Errorf("claims are left: %s", is)
	}
}

// TestRun_searches_PATH_as_it_is: CMD is found where a shell finds it, also through "." and an empty element.
func TestRun_searches_PATH_as_it_is(t *testing.T) {
	t.Parallel()
	store, dir := sqliteStore(t), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"found", "sub/below"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho $0 $1\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ path, program string }{{".:", "found"}, {":", "found"}, {"sub:", "below"}} {
		for _, verb := range []string{"run x", "slot -n 1 x", "elect --once x", "join x --addr 127.0.0.1:1", "idem run k-" + test.program + test.path} {
			cmd := command(t, store, append(strings.Fields(verb), "--", test.program, "argument")...)
			cmd.Dir, cmd.Env = dir, append(cmd.Env, "PATH="+test.path+os.Getenv("PATH"))
			p := start(t, cmd)
			if code := p.wait(); code != 0 {
				t.Errorf("%s, PATH=%s: exit code %d: %s", verb, test.path, code, p.errors())
			} else if line := p.line(); !strings.HasSuffix(line, test.program+" argument") {
				t.Errorf("%s: %q", verb, line)
			}
		}
	}
}

func TestRun_hands_over_what_it_got(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	cmd := command(t, store, "run", "a name", "--", "sh", "-c",
		`cat; echo "$1|$2"; echo "$PAWL_NAME"; echo "$PAWL_TOKEN"; echo "$PAWL_OWNER"; echo problem >&2`, "sh", "$HOME", "a  b;")
	cmd.Stdin = strings.NewReader("from standard input\n")
	cmd.Env = append(cmd.Env, "PAWL_TOKEN=old")
	p := start(t, cmd)
	for _, line := range []string{"from standard input", "$HOME|a  b;", "a name"} {
		if is := p.line(); is != line {
			t.Errorf("line %q, want %q", is, line)
		}
	}
	first := p.number()
	if p.line() == "" {
		t.Error("no owner")
	}
	if code := p.wait(); code != 0 || p.errors() != "problem\n" {
		t.Errorf("exit code %d, standard error %q", code, p.errors())
	}
	again := start(t, command(t, store, "run", "a name", "--", "sh", "-c", "echo $PAWL_TOKEN"))
	if second := again.number(); second <= first {
		t.Errorf("token %d after %d", second, first)
	}
}

// TestRun_excludes takes the program as users build it, because under the race detector so many
// processes would take minutes. The test needs the whole machine, so it does not run beside the tests
// that look at the clock.
func TestRun_excludes(t *testing.T) {
	program := filepath.Join(t.TempDir(), "pawl")
	if text, err := exec.Command("go", "build", "-o", program, "github.com/pawl-go/pawl/cmd/pawl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	overStores(t, func(t *testing.T, store, name string) {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 20 {
					cmd := exec.Command(program, "run", "--store", store, name, "--", "sh", "-c", "n=$(cat f); echo $((n+1)) > f")
					cmd.Dir = filepath.Dir(file)
					if text, err := cmd.CombinedOutput(); err != nil {
						t.Errorf("%v: %s", err, text)
						return
					}
				}
			})
		}
		all.Wait()
		if text, err := os.ReadFile(file); err != nil || string(text) != "160\n" {
			t.Errorf("the file has %q, %v; want 160", text, err)
		}
	})
}

// held starts a run that holds the lock until the test ends.
func held(t *testing.T, store string, flagsAndName ...string) *process {
	t.Helper()
	p := start(t, command(t, store, append(append([]string{"run"}, flagsAndName...), "--", "sh", "-c", "echo up; exec sleep 1000")...))
	if line := p.line(); line != "up" {
		t.Fatalf("line %q", line)
	}
	return p
}

func TestRun_does_not_wait_longer_than_asked(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		p := held(t, store, name)
		_, stderr := want(t, 75, store, "run", "--try", name, "--", "true")
		complaint(t, stderr, "not acquired")
		began := time.Now()
		_, stderr = want(t, 75, store, "run", "--wait", "3s", name, "--", "true")
		complaint(t, stderr, "not acquired within 3s: held by ")
		complaint(t, stderr, fmt.Sprintf(" pid %d: sh", p.cmd.Process.Pid))
		if took := time.Since(began); took < 3*time.Second {
			t.Errorf("waited for %v only", took)
		}
		if is := states(t, store, name); is != "granted" {
			t.Errorf("claims: %s", is)
		}
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 143 {
			t.Errorf("exit code %d", code)
		}
		want(t, 0, store, "run", "--try", name, "--", "true")
	})
}

// TestRun_says_another_code: -E sets the code of a lock that is not acquired, and of nothing else.
func TestRun_says_another_code(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	held(t, store, "x")
	for _, code := range []int{0, 1, 255} {
		_, stderr := want(t, code, store, "run", "--try", "-E", fmt.Sprint(code), "x", "--", "true")
		complaint(t, stderr, "not acquired")
	}
	_, stderr := want(t, 200, store, "run", "--wait", "1s", "--conflict-exit-code=200", "x", "--", "true")
	complaint(t, stderr, "not acquired within 1s")
	forgetful := "redis://" + testservers.Redis(t).Addr // a Redis that does not know pawl may have forgotten the lock
	_, stderr = want(t, 9, forgetful, "run", "--try", "-E", "9", "x", "--", "true")
	complaint(t, stderr, "not acquired")

	want(t, 0, store, "run", "--try", "-E", "9", "free", "--", "true")
	want(t, 3, store, "run", "--try", "-E", "9", "free", "--", "sh", "-c", "exit 3")
	want(t, 75, store, "run", "--try", "-E", "9", "free", "--", "sh", "-c", "exit 75") // the code of the command
	want(t, 127, store, "run", "--try", "-E", "9", "free", "--", "no such program")
	want(t, 64, store, "run", "--try", "-E", "9", "-n", "2", "x", "--", "true")
	want(t, 69, "redis://127.0.0.1:1", "run", "--try", "-E", "9", "x", "--", "true")
	want(t, 69, "redis://127.0.0.1:1", "run", "--wait", "1s", "-E", "9", "x", "--", "true")
}

func TestRun_shares(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	held(t, store, "--shared", "lock")
	held(t, store, "--shared", "lock")
	want(t, 75, store, "run", "--try", "lock", "--", "true")
	want(t, 0, store, "run", "--try", "--shared", "lock", "--", "true")

	held(t, store, "-n", "2", "pool")
	want(t, 0, store, "run", "--try", "-n", "2", "pool", "--", "true")
	held(t, store, "-n", "2", "pool")
	want(t, 75, store, "run", "--try", "-n", "2", "pool", "--", "true")

	_, stderr := want(t, 64, store, "run", "-n", "3", "pool", "--", "true")
	complaint(t, stderr, "in use as semaphore of 2, not as semaphore of 3")
	_, stderr = want(t, 64, store, "run", "--barge", "lock", "--", "true")
	complaint(t, stderr, "in use as lock, not as barging lock")
}

func TestRun_forwards_signals(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(sig) { // as under nohup: pawl would inherit the setting and keep it
			ignored := make(chan os.Signal, 1)
			signal.Notify(ignored, sig)
			t.Cleanup(func() { signal.Stop(ignored) })
		}
	}
	p := start(t, command(t, sqliteStore(t), "run", "x", "--", "sh", "-c", `
		for s in INT HUP QUIT USR1 USR2 WINCH; do trap "echo $s" $s; done
		trap "echo TERM; exit 7" TERM
		echo up; while :; do sleep 0.02; done`))
	p.line()
	for _, sig := range []struct {
		syscall.Signal
		name string
	}{
		{syscall.SIGINT, "INT"},
		{syscall.SIGHUP, "HUP"},
		{syscall.SIGQUIT, "QUIT"},
		{syscall.SIGUSR1, "USR1"},
		{syscall.SIGUSR2, "USR2"},
		{syscall.SIGWINCH, "WINCH"},
		{syscall.SIGTERM, "TERM"},
	} {
		p.signal(sig.Signal)
		if line := p.line(); line != sig.name {
			t.Errorf("%s was seen as %q", sig.name, line)
		}
	}
	if code := p.wait(); code != 7 {
		t.Errorf("exit code %d", code)
	}
}

func TestRun_interrupted_while_waiting_leaves_no_claim(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		held(t, store, name)
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			p := start(t, command(t, store, "run", name, "--", "true"))
			eventually(t, "it waits", func() bool { return states(t, store, name) == "granted waiting" })
			p.signal(sig)
			if code := p.wait(); code != 128+int(sig) {
				t.Errorf("exit code %d", code)
			}
			complaint(t, p.errors(), "while waiting")
			if is := states(t, store, name); is != "granted" {
				t.Errorf("claims: %s", is)
			}
		}
	})
}

func TestRun_leaves_what_the_command_left(t *testing.T) {
	t.Parallel()
	p := start(t, command(t, sqliteStore(t), "run", "x", "--", "sh", "-c", "sleep 1000 & echo $!"))
	pid := p.number()
	defer syscall.Kill(pid, syscall.SIGKILL)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if !runs(pid) {
		t.Error("the background process was ended")
	}
}

func TestRun_without_a_store_uses_a_private_file(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cmd := command(t, "", "run", "x", "--", "true")
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "PAWL_STORE=") })
	cmd.Env = append(cmd.Env, "HOME="+home, "XDG_STATE_HOME=")
	if p := start(t, cmd); p.wait() != 0 {
		t.Fatal(p.errors())
	}
	for path, mode := range map[string]os.FileMode{"pawl": 0o700, "pawl/pawl.db": 0o600} {
		info, err := os.Stat(filepath.Join(home, ".local/state", path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
}

func TestRun_refuses_wrong_usage(t *testing.T) {
	t.Parallel()
	store := "redis://127.0.0.1:1" // pawl sends no request
	for _, test := range []struct{ args, says string }{
		{"", "name is missing"},
		{"x", "-- is missing"},
		{"x true", "-- is missing"},
		{"x --", "command is missing"},
		{"-- true", "name is missing"},
		{"x --try -- true", "flag --try stands after the name"},
		{"--no-such-flag x -- true", "unknown flag: --no-such-flag"},
		{"--try --wait 3s x -- true", "--try and --wait exclude"},
		{"-n 2 --shared x -- true", "-n and --shared exclude"},
		{"-n 0 x -- true", "1 to 1073741824 are allowed"},
		{"--wait soon x -- true", "invalid duration"},
		{"--wait 0 x -- true", "--wait is 0s"},
		{"--wait -1s x -- true", "--wait is -1s"},
		{"--ttl 15 x -- true", "missing unit in duration"},
		{"--ttl -1s x -- true", "--ttl is -1s"},
		{"--ttl 4s --grace 3s x -- true", "0 to half of --ttl (2s) are allowed"},
		{"--grace -1s x -- true", "--grace is -1s"},
		{"--hold-for 0s x -- true", "--hold-for is 0s"},
		{"-E 256 x -- true", "0 to 255 are allowed"},
		{"--label a\x01 x -- true", "cannot be printed"},
		{"pawl:election/x -- true", "names that begin with pawl: are"},
		{"a\x01b -- true", "control character"},
		{strings.Repeat("n", 513) + " -- true", "1 to 512 are allowed"},
	} {
		_, stderr := want(t, 64, store, append([]string{"run"}, strings.Fields(test.args)...)...)
		complaint(t, stderr, test.says)
	}
	_, stderr := want(t, 64, store, "run", "", "--", "true")
	complaint(t, stderr, "name is empty")
	for _, ttl := range []string{"1ms", "25h"} { // each store knows its bounds
		_, stderr = want(t, 64, sqliteStore(t), "run", "--ttl", ttl, "x", "--", "true")
		complaint(t, stderr, "100ms to 24h0m0s are allowed")
	}
}

func TestRun_help_has_the_exit_codes(t *testing.T) {
	t.Parallel()
	stdout, _ := want(t, 0, "", "run", "--help")
	for _, code := range []int{64, 69, 70, 74, 75, 126, 127} {
		if !strings.Contains(stdout, fmt.Sprintf("\n %4d  ", code)) {
			t.Errorf("no exit code %d in the help", code)
		}
	}
}
