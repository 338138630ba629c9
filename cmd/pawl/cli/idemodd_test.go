//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/faulty"
)

// idemValues are the records of a store.
func idemValues(t *testing.T, store string) *pawl.Scope {
	t.Helper()
	eng, err := open.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() }) //nolint:errcheck // nothing is lost
	client, err := pawl.New(t.Context(), eng, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // nothing is lost
	return client.Scope("idem")
}

// TestIdem_forgets_a_result_that_is_not_whole: an operator can give back a key whose kept output cannot be read.
func TestIdem_forgets_a_result_that_is_not_whole(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	if _, stderr, code := output(t, store, "idem", "run", "k", "--", "seq", "100000"); code != 0 {
		t.Fatal(stderr)
	}
	values := idemValues(t, store)
	for name, err := range values.Values(t.Context(), "part/") {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := values.Value(name).Update(t.Context(), func(pawl.Snapshot) ([]byte, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		break
	}
	_, stderr := want(t, 64, store, "idem", "show", "k")
	complaint(t, stderr, "of its result are in the store")
	stdout, _ := want(t, 0, store, "idem", "forget", "k")
	if stdout != "forgot k (done)\n" {
		t.Errorf("output %q", stdout)
	}
	expectState(t, store, "k", "")
}

// TestIdem_repeats_where_the_command_is_missing: a repeat needs no command, so it gets the kept output on every machine.
func TestIdem_repeats_where_the_command_is_missing(t *testing.T) {
	t.Parallel()
	store, program := sqliteStore(t), filepath.Join(t.TempDir(), "program")
	want(t, 127, store, "idem", "run", "k", "--", program)
	expectState(t, store, "k", "")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho hello; rm \"$0\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if stdout, _ := want(t, 0, store, "idem", "run", "k", "--", program); stdout != "hello\n" {
			t.Errorf("output %q", stdout)
		}
	}
}

// TestIdem_names_a_command_that_works: the advice for an unfinished key can be given to a shell as it is.
func TestIdem_names_a_command_that_works(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for _, key := range []string{"-x", "a b", "it's $HOME"} {
		args := []string{"idem", "run", "--scope", "my scope", "--on-crash", "refuse", "--", key, "--", "sh", "-c", "kill -9 $$"}
		want(t, 137, store, args...)
		_, stderr := want(t, 76, store, args...)
		_, advice, _ := strings.Cut(strings.TrimSpace(stderr), "then say: pawl ")
		words, err := exec.Command("sh", "-c", `printf '%s\n' `+advice).Output()
		if err != nil {
			t.Fatal(err)
		}
		want(t, 0, store, strings.Split(strings.TrimSuffix(string(words), "\n"), "\n")...)
		want(t, 137, store, args...)
	}
}

// TestIdem_runs_beyond_its_expiry: an operator sees a key whose command still runs, also after the time of --expiry.
func TestIdem_runs_beyond_its_expiry(t *testing.T) {
	t.Parallel()
	overTwo(t, func(t *testing.T, store, key string) {
		p := start(t, command(t, store, "idem", "run", "--expiry", "1s", key, "--", "sh", "-c", "echo up; exec sleep 1000"))
		p.line()
		began := time.Now()
		eventually(t, "the key expires", func() bool { return time.Since(began) > time.Second })
		v := shownKey(t, store, key)
		if v.State != "running" || v.Expires == nil || v.Expires.After(time.Now()) {
			t.Errorf("shown as %+v", v)
		}
		if stdout, _ := want(t, 0, store, "idem", "ls"); !strings.Contains(strings.Join(strings.Fields(stdout), " "), key+" running 1 ") {
			t.Errorf("output %q", stdout)
		}
		_, stderr := want(t, 75, store, "idem", "forget", key)
		complaint(t, stderr, "another caller works on the key")
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 143 {
			t.Errorf("exit code %d: %s", code, p.errors())
		}
		eventually(t, "nobody works on the key", func() bool { return shownKey(t, store, key).State == "" })
	})
}

// TestIdem_goes_on_beside_a_record_of_a_later_version: such a record hides no other key of a list, and keeps no expired key in the store.
func TestIdem_goes_on_beside_a_record_of_a_later_version(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	want(t, 0, store, "idem", "run", "a", "--", "true")
	want(t, 0, store, "idem", "run", "z", "--", "true")
	values := idemValues(t, store)
	for _, at := range []struct{ scope, says string }{{"other", ""}, {defaultScope, `list keys: record "` + defaultScope + `|m": unsupported: the record has format 99`}} {
		if _, err := values.Value("key/"+at.scope+"|m").Put(t.Context(), []byte(`{"v":99}`), 0); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := invoke(t, store, "idem", "ls")
		if !strings.Contains(stdout, "  a    done") || !strings.Contains(stdout, "  z    done") {
			t.Errorf("output %q", stdout)
		}
		if at.says == "" && (code != 0 || stderr != "") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		if at.says != "" {
			complaint(t, stderr, at.says)
		}
	}
	want(t, 0, store, "idem", "run", "--expiry", "1s", "k", "--", "true")
	eventually(t, "the expired key is forgotten", func() bool {
		stdout, stderr := want(t, 64, store, "idem", "forget", "--expired")
		complaint(t, stderr, "the record has format 99")
		return stdout == "forgot 1\n"
	})
	expectState(t, store, "k", "")
}

// TestIdem_tells_few_of_many_errors: records that cannot be read fill no screen, and do not hide that the store has gone.
func TestIdem_tells_few_of_many_errors(t *testing.T) {
	t.Parallel()
	eng := memengine.New()
	store := faulty.New(eng)
	client, err := pawl.New(t.Context(), engine.Like(eng, store), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // nothing is lost
	for i := range 12 {
		if _, err := client.Scope("idem").Value(fmt.Sprintf("key/s|%d", i)).Put(t.Context(), []byte(`{"v":99}`), 0); err != nil {
			t.Fatal(err)
		}
	}
	leases := idem.NewLeases(client, nil)
	for _, read := range []int{12, 9, 1} {
		for name, do := range map[string]func() error{
			"ls":     func() error { return listKeys(t.Context(), leases, "", false, io.Discard) },
			"forget": func() error { return forgetExpired(t.Context(), leases, io.Discard) },
		} {
			store.Set(faulty.First(read, nil, faulty.Fails), faulty.Get)
			var exit *exitError
			errors.As(coded(do()), &exit)
			text := exit.err.Error()
			code, lines, away := 69, min(read+1, 6), true
			if read == 12 {
				code, away = 64, false
			}
			if exit.code != code || strings.Count(text, "\n")+1 != lines || strings.Contains(text, "unavailable") != away {
				t.Errorf("%s after %d records: exit code %d: %s", name, read, exit.code, text)
			}
			if count := fmt.Sprintf("%d more", read-4-1); read == 12 && !strings.Contains(text, count) {
				t.Errorf("%s: no %q in %s", name, count, text)
			}
		}
	}
}
