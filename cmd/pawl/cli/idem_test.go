//go:build unix

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/testservers"
)

// overTwo runs a test over SQLite and Redis: package idem itself is tested over every store.
func overTwo(t *testing.T, test func(t *testing.T, store, key string)) {
	t.Helper()
	for _, kind := range []string{"sqlite", "redis"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, stores[kind](t), fresh(t))
		})
	}
}

// tally is a file in which a command makes a line for each run.
type tally string

func newTally(t *testing.T) tally { return tally(filepath.Join(t.TempDir(), "runs")) }

func (f tally) expect(t *testing.T, runs int) {
	t.Helper()
	text, err := os.ReadFile(string(f))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n != runs {
		t.Errorf("the command has run %d times, want %d", n, runs)
	}
}

// once is idem run of a shell script that is given the name of the tally.
func (f tally) once(flagsAndKey []string, script string) []string {
	args := append([]string{"idem", "run"}, flagsAndKey...)
	return append(args, "--", "sh", "-c", `echo run >> "$0"; `+script, string(f))
}

// output runs pawl and returns the bytes that it wrote.
func output(t *testing.T, store string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := command(t, store, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// shownKey returns the key as an operator sees it.
func shownKey(t *testing.T, store, key string) (v keyView) {
	t.Helper()
	stdout, _ := want(t, 0, store, "idem", "show", "--json", key)
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	return v
}

func expectState(t *testing.T, store, key, state string) {
	t.Helper()
	if is := shownKey(t, store, key).State; is != state {
		t.Errorf("the key is %q, want %q", is, state)
	}
}

func TestIdem_repeats_what_was_kept(t *testing.T) {
	t.Parallel()
	overTwo(t, func(t *testing.T, store, key string) {
		runs := newTally(t)
		args := runs.once([]string{"--keep-codes", "0,3-5", key}, `printf 'a\000\377b\n'; echo problem >&2; seq 100000; printf tail; exit 4`)
		stdout, stderr, code := output(t, store, args...)
		if !strings.HasPrefix(stdout, "a\x00\xffb\n1\n2\n") || !strings.HasSuffix(stdout, "\n100000\ntail") || stderr != "problem\n" || code != 4 {
			t.Fatalf("exit code %d, %d bytes of output, standard error %q", code, len(stdout), stderr)
		}
		again, errs, code := output(t, store, args...)
		if again != stdout || errs != stderr || code != 4 {
			t.Errorf("the repeat: exit code %d, %d bytes of output, standard error %q", code, len(again), errs)
		}
		shown, errs, code := output(t, store, "idem", "show", "--output", key)
		if shown != stdout || errs != stderr || code != 0 {
			t.Errorf("show --output: exit code %d, %d bytes of output, standard error %q", code, len(shown), errs)
		}
		runs.expect(t, 1)
	})
}

func TestIdem_runs_once_for_callers_that_come_together(t *testing.T) {
	t.Parallel()
	overTwo(t, func(t *testing.T, store, key string) {
		runs, gate := newTally(t), filepath.Join(t.TempDir(), "gate")
		args := func(flags ...string) []string {
			return runs.once(append(flags, key), fmt.Sprintf(`echo up; until [ -e %q ]; do sleep 0.02; done; echo done`, gate))
		}
		first := start(t, command(t, store, args()...))
		if line := first.line(); line != "up" { // output is live
			t.Fatalf("line %q", line)
		}
		expectState(t, store, key, "running")
		_, stderr := want(t, 75, store, args("--try")...)
		complaint(t, stderr, "not acquired: held by ")
		_, stderr = want(t, 9, store, args("--wait", "3s", "-E", "9")...)
		complaint(t, stderr, "not acquired within 3s: held by ")
		_, stderr = want(t, 75, store, "idem", "forget", key)
		complaint(t, stderr, "another caller works on the key")
		second := start(t, command(t, store, args()...))
		lock := idemNames + idem.Key{Scope: defaultScope, ID: key}.Name()
		eventually(t, "the second caller waits", func() bool { return states(t, store, lock) == "granted waiting" })
		third := start(t, command(t, store, args()...))
		eventually(t, "the third caller waits", func() bool { return states(t, store, lock) == "granted waiting waiting" })
		third.signal(syscall.SIGTERM)
		if code := third.wait(); code != 143 {
			t.Errorf("exit code %d", code)
		}
		complaint(t, third.errors(), "while waiting")
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{first.line(), second.line() + " " + second.line()} {
			if line != "done" && line != "up done" {
				t.Errorf("line %q", line)
			}
		}
		if a, b := first.wait(), second.wait(); a != 0 || b != 0 {
			t.Errorf("exit codes %d, %d: %s%s", a, b, first.errors(), second.errors())
		}
		runs.expect(t, 1)
	})
}

// killed starts a command for the key, and kills its pawl.
func killed(t *testing.T, store, key string) {
	t.Helper()
	p := start(t, command(t, store, "idem", "run", "--ttl", lossTTL.String(), key, "--", "sh", "-c", idemScript))
	if line := p.line(); line != "attempt 1" {
		t.Fatalf("line %q", line)
	}
	p.signal(syscall.SIGKILL)
}

// idemScript comes to an end at a later attempt only.
const idemScript = `echo attempt $PAWL_ATTEMPT; [ $PAWL_ATTEMPT -gt 1 ] || exec sleep 1000`

func TestIdem_killed_then_rerun_or_refuse(t *testing.T) {
	t.Parallel()
	overTwo(t, func(t *testing.T, store, key string) {
		run := func(code int, flags ...string) (stdout, stderr string) {
			t.Helper()
			return want(t, code, store, append(append([]string{"idem", "run", "--ttl", lossTTL.String()}, flags...), key, "--", "sh", "-c", idemScript)...)
		}
		killed(t, store, key)
		for range 2 {
			_, stderr := run(76, "--on-crash", "refuse") // waits until the lease of the dead caller ends
			complaint(t, stderr, `then say: pawl idem forget `+key)
			expectState(t, store, key, "unfinished")
		}
		stdout, _ := run(0)
		if stdout != "attempt 4\n" {
			t.Errorf("output %q", stdout)
		}
		if again, _ := run(0, "--on-crash", "refuse"); again != stdout {
			t.Errorf("the repeat prints %q", again)
		}

		key += "-2"
		killed(t, store, key)
		run(76, "--on-crash", "refuse")
		want(t, 0, store, "idem", "forget", key)
		stdout, _ = want(t, 0, store, "idem", "run", "--on-crash", "refuse", key, "--", "sh", "-c", "echo attempt $PAWL_ATTEMPT")
		if stdout != "attempt 1\n" {
			t.Errorf("output %q", stdout)
		}
	})
}

func TestIdem_keeps_only_an_end_that_was_asked_for(t *testing.T) {
	t.Parallel()
	store, runs := sqliteStore(t), newTally(t)
	for range 2 {
		want(t, 3, store, runs.once([]string{"failure"}, "exit 3")...)
		expectState(t, store, "failure", "")
	}
	runs.expect(t, 2)
	for range 2 {
		want(t, 143, store, runs.once([]string{"--keep-codes", "0-255", "signal"}, "kill -TERM $$")...)
		expectState(t, store, "signal", "unfinished")
	}
	runs.expect(t, 4)
	for range 2 { // a signal that is passed on ends even a command that then exits with 0
		p := start(t, command(t, store, runs.once([]string{"passed"}, `trap "exit 0" TERM; echo up; while :; do sleep 0.02; done`)...))
		p.line()
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Errorf("exit code %d: %s", code, p.errors())
		}
		expectState(t, store, "passed", "unfinished")
	}
	runs.expect(t, 6)
	want(t, 126, store, "idem", "run", "no program", "--", t.TempDir())
	expectState(t, store, "no program", "")
}

func TestIdem_lost_key_is_not_kept(t *testing.T) {
	t.Parallel()
	overTwo(t, func(t *testing.T, store, key string) {
		runs := newTally(t)
		args := runs.once([]string{"--ttl", lossTTL.String(), "--keep-codes", "0-255", key}, `trap "exit 0" TERM; echo up; [ -n "$END" ] || while :; do sleep 0.02; done`)
		p := start(t, command(t, store, args...))
		p.line()
		want(t, 0, store, "break", "--yes", idemNames+idem.Key{Scope: defaultScope, ID: key}.Name())
		if code := p.wait(); code != 74 {
			t.Errorf("exit code %d", code)
		}
		if text := p.errors(); !strings.Contains(text, "lock lost") || !strings.Contains(text, "stopping sh") {
			t.Errorf("standard error is %q", text) // the shell may have written there too
		}
		expectState(t, store, key, "unfinished")
		again := command(t, store, args...)
		again.Env = append(again.Env, "END=1")
		if p := start(t, again); p.wait() != 0 {
			t.Error(p.errors())
		}
		runs.expect(t, 2)
		expectState(t, store, key, "done")
	})
}

func TestIdem_cuts_what_is_kept(t *testing.T) {
	t.Parallel()
	store, runs := sqliteStore(t), newTally(t)
	args := runs.once([]string{"--max-output", "1", "--keep-codes", "0-9", "k"}, `printf %03000d 7; exit 5`)
	stdout, stderr, code := output(t, store, args...)
	if len(stdout) != 3000 || stderr != "" || code != 5 {
		t.Fatalf("exit code %d, %d bytes, standard error %q", code, len(stdout), stderr)
	}
	again, stderr, code := output(t, store, args...)
	if again != stdout[:1<<10-chunkHead] || code != 5 {
		t.Errorf("the repeat: exit code %d, %d bytes", code, len(again))
	}
	complaint(t, stderr, `"k": the rest of the output was not kept: 1020 bytes were`)
	if v := shownKey(t, store, "k"); !v.Cut || v.Output == nil || *v.Output != 1020 || v.ExitCode == nil || *v.ExitCode != 5 {
		t.Errorf("shown as %+v", v)
	}
	args = runs.once([]string{"--max-output", "1023", "whole"}, "head -c 1047548 /dev/zero")
	stdout, _, _ = output(t, store, args...)
	again, stderr, code = output(t, store, args...)
	if len(stdout) != 1023<<10-chunkHead || again != stdout || stderr != "" || code != 0 {
		t.Errorf("the largest output: exit code %d, %d and %d bytes, standard error %q", code, len(stdout), len(again), stderr)
	}
	runs.expect(t, 2)
}

// TestIdem_goes_on_without_a_reader: the output is kept also when nobody reads it, and a process that
// the command leaves behind does not hold pawl up.
func TestIdem_goes_on_without_a_reader(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	args := []string{"idem", "run", "k", "--", "sh", "-c", `sleep 60 & echo $!; seq 20000`}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out.Close()
	cmd := command(t, store, args...)
	cmd.Stdout = in
	err = cmd.Run()
	in.Close()
	stdout, _, _ := output(t, store, args...)
	pid, rest, _ := strings.Cut(stdout, "\n")
	syscall.Kill(atoi(t, pid), syscall.SIGKILL)
	if err != nil || !strings.HasSuffix(rest, "\n20000\n") {
		t.Errorf("%v, %d bytes are kept", err, len(rest))
	}
}

func TestIdem_lists_shows_and_forgets(t *testing.T) {
	t.Parallel()
	overTwo(t, func(t *testing.T, store, key string) {
		scope := "scope of " + key
		run := func(args ...string) string {
			t.Helper()
			stdout, _ := want(t, 0, store, append([]string{"idem"}, args...)...)
			return stdout
		}
		began := time.Now()
		run("run", "--scope", scope, "--expiry", "1h", key, "--", "echo", "hello")
		for _, args := range [][]string{{"ls", "--scope", scope}, {"ls", "--all"}} {
			if stdout := run(args...); !strings.Contains(strings.Join(strings.Fields(stdout), " "), scope+" "+key+" done 1 ") {
				t.Errorf("%q: output %q", args, stdout)
			}
		}
		if stdout := run("ls"); strings.Contains(stdout, scope) {
			t.Errorf("output %q", stdout)
		}
		var v keyView
		if err := json.Unmarshal([]byte(run("ls", "--json", "--scope", scope)), &v); err != nil || v.Key != key || v.State != "done" || v.Claims != 1 || v.Token == 0 || v.Expires.Before(began.Add(time.Hour-time.Second)) || v.Expires.After(time.Now().Add(time.Hour)) {
			t.Errorf("listed as %+v, %v", v, err)
		}
		stdout := run("show", "--scope", scope, key)
		for _, says := range []string{"done", "exit code   0\n", "output      6 bytes\n", "claims      1\n", "expires in  "} {
			if !strings.Contains(stdout, says) {
				t.Errorf("no %q in %q", says, stdout)
			}
		}
		if stdout := run("show", key); stdout != key+": the store has no such key\n" {
			t.Errorf("output %q", stdout)
		}
		if stdout := run("forget", "--scope", scope, key); stdout != "forgot "+key+" (done)\n" {
			t.Errorf("output %q", stdout)
		}
		if stdout := run("forget", "--scope", scope, key); stdout != key+": the store has no such key\n" {
			t.Errorf("output %q", stdout)
		}
		run("run", "--scope", scope, "--expiry", "1s", key, "--", "true")
		eventually(t, "the key expires and is swept", func() bool { return run("forget", "--expired") != "forgot 0\n" })
	})
}

func TestIdem_refuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, says string }{
		{"", "a verb is missing"},
		{"run", "the form is: pawl idem run [flags] KEY -- CMD [ARG...]"},
		{"run k true", "-- is missing"},
		{"run --scope= k -- true", "--scope is empty"},
		{"run --try --wait 1s k -- true", "--try and --wait exclude each other"},
		{"run --expiry 1ms k -- true", "--expiry is 1ms: 1s to 9600h0m0s are allowed"},
		{"run --on-crash panic k -- true", `--on-crash is "panic": rerun and refuse are allowed`},
		{"run --max-output 1024 k -- true", "--max-output is 1024: 0 to 1023 are allowed"},
		{"run --max-output -1 k -- true", "--max-output is -1"},
		{"run --keep-codes 256 k -- true", `--keep-codes is "256"`},
		{"run --keep-codes 3-1 k -- true", `--keep-codes is "3-1"`},
		{"run --keep-codes= k -- true", "--keep-codes is empty"},
		{"run --shared k -- true", "unknown flag: --shared"},
		{"run " + strings.Repeat("k", 256) + " -- true", "1 to 255"},
		{"ls x", "the form is: pawl idem ls [flags]"},
		{"ls --all --scope x", "--scope is not for --all, which is every scope"},
		{"forget --expired --scope x", "--scope is not for --expired, which is every scope"},
		{"ls --scope=", "--scope is empty"},
		{"show", "the form is: pawl idem show KEY [flags]"},
		{"show --json --output k", "--json and --output exclude each other"},
		{"forget", "either KEY or --expired is needed: the form is: pawl idem forget [KEY] [flags]"},
		{"forget --expired k", "either KEY or --expired is needed"},
	} {
		_, stderr := want(t, 64, "redis://127.0.0.1:1", append([]string{"idem"}, strings.Fields(test.args)...)...)
		complaint(t, stderr, test.says)
	}
	store := sqliteStore(t)
	want(t, 0, store, "idem", "run", "k", "--", "echo", "a")
	_, stderr := want(t, 64, store, "idem", "run", "k", "--", "echo", "b")
	complaint(t, stderr, "the key was used for another")
	want(t, 69, "redis://127.0.0.1:1", "idem", "run", "k", "--", "true")
}

// TestIdem_on_a_Redis_that_may_have_forgotten: no command runs beside the caller that such a store forgot.
func TestIdem_on_a_Redis_that_may_have_forgotten(t *testing.T) {
	t.Parallel()
	store := "redis://" + testservers.Redis(t).Addr
	_, stderr := want(t, 75, store, "idem", "run", "--try", "k", "--", "true")
	complaint(t, stderr, "not acquired")
	_, stderr = want(t, 75, store, "idem", "forget", "k")
	complaint(t, stderr, "forget")
	expectState(t, store, "k", "")
}

func TestIdem_needs_values(t *testing.T) {
	t.Parallel()
	redlock := "redlock:" + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr
	for _, store := range []string{redlock, stores["postgres"](t) + "?mode=row"} {
		for _, args := range []string{"run k -- true", "ls", "show k", "forget k"} {
			_, stderr := want(t, 64, store, append([]string{"idem"}, strings.Fields(args)...)...)
			complaint(t, stderr, "versioned values")
		}
	}
}
