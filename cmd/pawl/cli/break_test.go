//go:build unix

package cli

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// loss_test.go shows that a broken run stops its command.
func TestBreak_evicts_every_holder_and_nobody_else(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	held(t, store, "--shared", "x")
	held(t, store, "--shared", "x")
	p := start(t, command(t, store, "run", "x", "--", "echo", "next"))
	eventually(t, "it waits", func() bool { return states(t, store, "x") == "granted granted waiting" })
	stdout, _ := want(t, 0, store, "break", "x", "--yes")
	const evicted = `evicted \S+ pid \d+: sh \(token \d+, held for (an unknown time|[\d.]+m?s)\)`
	matches(t, stdout, evicted, evicted, "a holder learns of the break .*")
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

func TestBreak_of_one_party(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		held(t, store, "--shared", name)
		held(t, store, "--shared", name)
		p := start(t, command(t, store, "run", "-E", "9", name, "--", "true"))
		eventually(t, "it waits", func() bool { return states(t, store, name) == "granted granted waiting" })
		claims := show(t, store, name).Claims
		waits, first := claims[2], claims[0]

		stdout, _ := want(t, 0, store, "break", "--yes", "--claim", waits.ID, "--reason", "in the way", name)
		if !strings.HasPrefix(stdout, "evicted "+waits.Label+" (waiting for ") {
			t.Errorf("break prints %s", stdout)
		}
		if strings.Contains(stdout, "a holder learns") {
			t.Errorf("of a waiter break prints %s", stdout)
		}
		if stdout, _ := want(t, 0, store, "show", name); !strings.Contains(stdout, "\na waiter was last broken by ") || strings.Contains(stdout, "(token 0)") {
			t.Errorf("show prints %s", stdout)
		}
		if code := p.wait(); code != 9 {
			t.Errorf("exit code %d: %s", code, p.errors())
		}
		stdout, _ = want(t, 0, store, "break", "--yes", "--token", strconv.FormatUint(first.Token, 10), "--reason", "stuck", name)
		if !strings.HasPrefix(stdout, "evicted "+first.Label+" (token ") {
			t.Errorf("break prints %s", stdout)
		}
		is := show(t, store, name)
		if b := is.Broken; len(is.Claims) == 0 || b == nil || b.Reason != "stuck" || !strings.Contains(b.Label, ": user ") || uint64(b.Token) != first.Token {
			t.Errorf("show has %+v", is)
		}
		if stdout, _ := want(t, 0, store, "show", name); !strings.Contains(stdout, "last broken by ") || !strings.Contains(stdout, ": stuck (token ") {
			t.Errorf("show prints %s", stdout)
		}
		stdout, _ = want(t, 0, store, "break", "--yes", "--claim", waits.ID, name)
		matches(t, stdout, regexp.QuoteMeta(name)+": nobody has the claim "+regexp.QuoteMeta(waits.ID))
	})
}
