//go:build unix

package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
)

// TestIdem_forgets_a_result_that_is_not_whole: an operator can give back a key whose kept output cannot be read.
func TestIdem_forgets_a_result_that_is_not_whole(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	if _, stderr, code := output(t, store, "idem", "run", "k", "--", "seq", "100000"); code != 0 {
		t.Fatal(stderr)
	}
	eng, err := open.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	client, err := pawl.New(t.Context(), eng, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background()) //nolint:errcheck // nothing is lost
	for name, err := range client.Scope("idem").Values(t.Context(), "part/") {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Scope("idem").Value(name).Update(t.Context(), func(pawl.Snapshot) ([]byte, error) { return nil, nil }); err != nil {
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
