//go:build unix

package cli

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testservers"
)

// workingOn is what break says of the command of a holder.
const workingOn = "a holder learns of the break within a third of its TTL, and its command may work for --grace longer"

// loss_test.go shows that a broken run stops its command.
func TestBreak_evicts_every_holder_and_nobody_else(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	held(t, store, "--shared", "x")
	held(t, store, "--shared", "x")
	p := start(t, command(t, store, "run", "x", "--", "echo", "next"))
	eventually(t, "it waits", func() bool { return states(t, store, "x") == "granted granted waiting" })
	stdout, _ := want(t, 0, store, "break", "x", "--yes")
	const evicted = `evicted \S+ pid \d+: sh \(token \d+, held for (an unknown time|[\d.]+m?s), session ends in (an unknown time|[\d.]+m?s unless renewed)\)`
	matches(t, stdout, evicted, evicted, workingOn)
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

// Where the store keeps no note, the operator learns that before a reason is dropped.
func TestBreak_on_a_store_that_keeps_no_note(t *testing.T) {
	t.Parallel()
	redlock := "redlock:" + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr
	want(t, 0, redlock, "store", "init")
	for kind, store := range map[string]string{"redlock": redlock, "postgres row": stores["postgres"](t) + "?mode=row"} {
		name := fresh(t)
		p := held(t, store, name)
		for _, flags := range [][]string{{"--yes"}, {}} {
			_, stderr := want(t, 64, store, append([]string{"break", "--reason", "stuck", name}, flags...)...)
			complaint(t, stderr, "the store "+kind+" keeps no --reason")
		}
		if is := states(t, store, name); is != "granted" {
			t.Errorf("%s: claims: %s", kind, is)
		}
		stdout, stderr := want(t, 0, store, "break", "--yes", name)
		if !strings.HasPrefix(stdout, "evicted ") {
			t.Errorf("%s: break prints %s", kind, stdout)
		}
		complaint(t, stderr, "the store "+kind+" does not keep the name of the operator who broke ")
		if code := p.wait(); code != 74 {
			t.Errorf("%s: exit code %d: %s", kind, code, p.errors())
		}
	}
}

func TestBreak_refuses_a_reason_without_a_store(t *testing.T) {
	t.Parallel()
	for reason, says := range map[string]string{
		"a\nb":                   `--reason is "a\nb": UTF-8 without control characters is allowed`,
		"\xff":                   `--reason is "\xff": UTF-8`,
		strings.Repeat("r", 513): "--reason has 513 bytes: at most 512 are allowed",
	} {
		_, stderr := want(t, 64, "redis://127.0.0.1:1", "break", "--reason", reason, "x")
		complaint(t, stderr, says)
	}
}

func TestDescribe_a_party_of_unknown_times(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]pawl.Party{
		"x (waiting for an unknown time)":                                        {Age: pawl.Unknown},
		"x (waiting for 2s)":                                                     {Age: 2 * time.Second},
		"x (token 7, kept for an unknown time)":                                  {Token: 7, Kept: true, Left: pawl.Unknown},
		"x (token 7, kept for 2s more)":                                          {Token: 7, Kept: true, Left: 2 * time.Second},
		"x (token 7, held for an unknown time, session ends in an unknown time)": {Token: 7, Held: pawl.Unknown, Age: time.Second, Left: pawl.Unknown},
		"x (token 7, held for 1s, session ends in 12s unless renewed)":           {Token: 7, Held: time.Second, Age: time.Minute, Left: 12 * time.Second},
	} {
		p.Label = "x"
		if is := describe(p); is != want {
			t.Errorf("%q, want %q", is, want)
		}
	}
}
