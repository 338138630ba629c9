//go:build unix

package cli

import "testing"

// That a broken run stops its command is in loss_test.go.
func TestBreak_evicts_every_holder_and_nobody_else(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	held(t, store, "--shared", "x")
	held(t, store, "--shared", "x")
	p := start(t, command(t, store, "run", "x", "--", "echo", "next"))
	eventually(t, "it waits", func() bool { return states(t, store, "x") == "granted granted waiting" })
	stdout, _ := want(t, 0, store, "break", "x", "--yes")
	const evicted = `evicted \S+ pid \d+: sh \(token \d+, held for (unknown|[\d.]+m?s)\)`
	matches(t, stdout, evicted, evicted, "a holder learns of it .*")
	if line := p.line(); line != "next" {
		t.Errorf("line %q", line)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, p.errors())
	}
}

func TestBreak_of_nothing(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for _, args := range [][]string{{"break", "free"}, {"break", "--yes", "free"}} {
		stdout, _ := want(t, 0, store, args...)
		matches(t, stdout, "free: nobody holds it")
	}
}
