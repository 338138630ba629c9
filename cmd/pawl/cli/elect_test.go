//go:build unix

package cli

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
)

// elect starts a candidate whose command is family.
func elect(t *testing.T, store, name string, flags ...string) *process {
	t.Helper()
	args := append([]string{"elect", "--ttl", lossTTL.String()}, flags...)
	return start(t, command(t, store, append(args, name, "--", "sh", "-c", family)...))
}

// leads waits until the command of a candidate runs.
func leads(p *process) holder {
	p.t.Helper()
	h := holder{process: p, pids: []int{p.number(), p.number()}}
	h.token = p.number()
	return h
}

// waits waits until so many claims are on an election.
func waits(t *testing.T, store, name, want string) {
	t.Helper()
	eventually(t, want, func() bool { return states(t, store, "pawl:election/"+name) == want })
}

func TestElect_killed_is_replaced(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		first := leads(elect(t, store, name))
		second := elect(t, store, name)
		waits(t, store, name, "granted waiting")
		first.signal(syscall.SIGKILL)
		killed := time.Now()
		next := leads(second)
		first.expectDead()
		if took := time.Since(killed); took > lossTTL+time.Second {
			t.Errorf("replaced after %v", took)
		}
		if next.token <= first.token {
			t.Errorf("token %d after %d", next.token, first.token)
		}
	})
}

func TestElect_broken_stops_its_command_and_campaigns_again(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		first := leads(elect(t, store, name))
		for range breaks {
			want(t, 0, store, "break", "--yes", "pawl:election/"+name)
			again := leads(first.process)
			first.expectDead()
			if again.token <= first.token {
				t.Errorf("token %d after %d", again.token, first.token)
			}
			if first = again; strings.Contains(first.errors(), brokenBy) {
				break
			}
		}
		if text := first.errors(); !strings.Contains(text, brokenBy) || !strings.Contains(text, "no longer the leader; campaigning again in 1s") {
			t.Errorf("standard error: %s", text)
		}
	})
}

func TestElect_ended_hands_over(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			p := start(t, command(t, store, "elect", name, "--", "sh", "-c", "exec 2>/dev/null; trap 'echo told; exit 9' TERM INT; echo $PAWL_NAME; while :; do sleep 0.02; done"))
			if line := p.line(); line != name {
				t.Errorf("line %q", line)
			}
			second := elect(t, store, name)
			waits(t, store, name, "granted waiting")
			p.signal(sig)
			began := time.Now()
			if line := p.line(); line != "told" {
				t.Errorf("line %q", line)
			}
			next := leads(second)
			if took := time.Since(began); took > lossTTL {
				t.Errorf("handed over after %v", took)
			}
			if code := p.wait(); code != 9 || p.errors() != "" {
				t.Errorf("exit code %d, standard error %q", code, p.errors())
			}
			// A candidate that waits ends too, and leaves no claim.
			third := elect(t, store, name)
			waits(t, store, name, "granted waiting")
			third.signal(sig)
			if code := third.wait(); code != 128+int(sig) {
				t.Errorf("exit code %d", code)
			}
			waits(t, store, name, "granted")
			next.signal(syscall.SIGKILL)
			next.wait()
			waits(t, store, name, "")
		}
	})
}

// A command that ends runs again, elsewhere first.
func TestElect_runs_again(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		file := filepath.Join(t.TempDir(), "f")
		one := start(t, command(t, store, "elect", name, "--", "sh", "-c", fmt.Sprintf("echo up; while ! test -e %q; do sleep 0.02; done; exit 3", file)))
		one.line()
		two := start(t, command(t, store, "elect", name, "--", "sh", "-c", "echo $PAWL_TOKEN; exit 0"))
		waits(t, store, name, "granted waiting")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		first := two.number()
		one.line() // again
		if second := two.number(); second <= first {
			t.Errorf("token %d after %d", second, first)
		}
		for p, text := range map[*process]string{
			one: "sh ended with exit code 3; campaigning again in 1s", two: "sh ended with exit code 0; campaigning again in 1s",
		} {
			if !strings.Contains(p.errors(), text) {
				t.Errorf("standard error: %s", p.errors())
			}
		}
	})
}

func TestElect_once_passes_the_exit_code_on(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for code, script := range map[int]string{0: "exit 0", 7: "exit 7", 143: "kill -TERM $$"} {
		_, stderr := want(t, code, store, "elect", "--once", "x", "--", "sh", "-c", script)
		if stderr != "" {
			t.Errorf("standard error: %s", stderr)
		}
	}
	once := leads(elect(t, store, "x", "--once"))
	want(t, 0, store, "break", "--yes", "pawl:election/x")
	if code := once.wait(); code != 74 {
		t.Errorf("exit code %d", code)
	}
	once.expectDead()
	if is := states(t, store, "pawl:election/x"); is != "" {
		t.Errorf("claims: %s", is)
	}
}

// A command that ends before pawl has learnt of the loss has not led to its end either. No message tells of a row that is gone.
func TestElect_once_tells_of_a_loss_that_only_the_resignation_finds(t *testing.T) {
	t.Parallel()
	store, dir := sqliteStore(t), t.TempDir()
	for _, code := range []int{0, 7} {
		file := filepath.Join(dir, strconv.Itoa(code))
		p := start(t, command(t, store, "elect", "--once", "--ttl", "1m", "x", "--", "sh", "-c", fmt.Sprintf("echo up; while ! test -e %q; do sleep 0.02; done; exit %d", file, code)))
		p.line()
		db, err := sql.Open("sqlite3", "file:"+strings.TrimPrefix(store, "sqlite:")+"?_pragma=busy_timeout(60000)")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.ExecContext(t.Context(), "DELETE FROM pawl_claims"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if is := p.wait(); is != 74 {
			t.Errorf("exit code %d", is)
		}
		complaint(t, p.errors(), "sh did not lead to its end")
	}
}

func TestElect_tells_who_leads(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	leads(elect(t, store, "a", "--value", "10.0.0.7:80"))
	second := leads(elect(t, store, "b"))
	own := fmt.Sprintf("pid %d: sh", second.cmd.Process.Pid)
	if text, _ := want(t, 0, store, "show", "pawl:election/a"); !strings.Contains(text, `the leader announces "10.0.0.7:80"`) {
		t.Errorf("show prints %s", text)
	}
	if text, _ := want(t, 0, store, "ls"); !strings.Contains(text, ` "10.0.0.7:80" `) {
		t.Errorf("ls prints %s", text)
	}
	if v := show(t, store, "pawl:election/a"); v.Leader == nil || *v.Leader != "10.0.0.7:80" {
		t.Errorf("show --json has %+v", v)
	}
	if text, _ := want(t, 0, store, "show", "pawl:election/b"); !strings.Contains(text, own) {
		t.Errorf("show prints %s", text)
	}
	if text, _ := want(t, 0, store, "ls"); !strings.Contains(text, "pawl:election/b") || !strings.Contains(text, own) {
		t.Errorf("ls prints %s", text)
	}
	eng, err := open.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	c, err := pawl.New(t.Context(), eng, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	for name, value := range map[string]string{"a": "10.0.0.7:80", "b": own} {
		if is, err := c.Election(name).Leader(t.Context()); err != nil || !strings.HasSuffix(string(is.Value), value) || is.Token == 0 {
			t.Errorf("leader of %s: %q with token %v, %v", name, is.Value, is.Token, err)
		}
	}
}

func TestElect_refuses_wrong_usage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, says string }{
		{"", "the form is: pawl elect [flags] NAME -- CMD [ARG...]"},
		{"x true", "-- is missing"},
		{"--try x -- true", "unknown flag: --try"},
		{"--ttl 4s --grace 3s x -- true", "0 to half of --ttl (2s) are allowed"},
		{"a\x01b -- true", "control character"},
	} {
		_, stderr := want(t, 64, "redis://127.0.0.1:1", append([]string{"elect"}, strings.Fields(test.args)...)...)
		complaint(t, stderr, test.says)
	}
	_, stderr := want(t, 64, sqliteStore(t), "elect", "--value", strings.Repeat("v", pawl.MaxValue), "x", "--", "true")
	complaint(t, stderr, "at most 65520 are allowed")
	_, stderr = want(t, 69, "redis://127.0.0.1:1", "elect", "x", "--", "true")
	complaint(t, stderr, "unavailable")
	_, stderr = want(t, 127, sqliteStore(t), "elect", "x", "--", "no such program")
	complaint(t, stderr, "not found")
}

// A command or a pawl that is replaced while the candidate runs is no reason to end.
func TestElect_goes_on_when_programs_are_replaced(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	dir := t.TempDir()
	program, script := filepath.Join(dir, "pawl"), filepath.Join(dir, "script")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("cp", self, program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho term\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, store, "elect", "x", "--", script)
	cmd.Path = program
	p := start(t, cmd)
	p.line()
	if err := errors.Join(os.Remove(program), os.Rename(script, script+".new")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says that its command is missing", func() bool { return strings.Contains(p.errors(), "no such file or directory; campaigning again in") })
	if err := os.Rename(script+".new", script); err != nil {
		t.Fatal(err)
	}
	for line := ""; line != "term"; {
		line = p.line()
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 143 && code != 0 {
		t.Errorf("exit code %d: %s", code, p.errors())
	}
}

// The pauses of candidates do not grow while the store is away. The next leader leads within a TTL
// and a second of the store's return. A Redis that forgot needs the TTL.
func TestElect_leads_soon_after_an_outage(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	store := "redis://" + server.Addr
	const ttl = time.Second
	began := time.Now()
	p := start(t, command(t, store, "elect", "--ttl", ttl.String(), "x", "--", "sh", "-c", "echo $PAWL_TOKEN; exec sleep 1000"))
	first := p.number()
	usual := time.Since(began) // for a server that pawl does not know: the TTL, and what the machine needs
	server.Kill()
	eventually(t, "it has tried several times", func() bool { return strings.Count(p.errors(), "campaigning again in ") >= 4 })
	for _, line := range strings.Split(p.errors(), "\n") {
		if _, pause, ok := strings.Cut(line, "campaigning again in "); ok {
			if d, err := time.ParseDuration(pause); err != nil || d > time.Second {
				t.Errorf("line %q", line)
			}
		}
	}
	server.Restart()
	back := time.Now()
	if second := p.number(); second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	if took := time.Since(back); took > max(ttl, usual)+time.Second {
		t.Errorf("the next leader led %v after the store's return, and the first leader %v after its start", took, usual)
	}
}
