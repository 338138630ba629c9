//go:build unix

package cli

import (
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	verb, stderr := want(t, 0, "", "version")
	matches(t, verb, `pawl \S+ \(go\S+, \w+/\w+\)`)
	flag, more := want(t, 0, "", "--version")
	if flag != verb || stderr+more != "" {
		t.Errorf("--version prints %q, the verb %q; on standard error %q", flag, verb, stderr+more)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if stdout, _ := want(t, 0, "", "completion", shell); !strings.Contains(stdout, "pawl") {
			t.Errorf("%s: %q", shell, stdout)
		}
	}
}

func TestUnknownVerb(t *testing.T) {
	t.Parallel()
	_, stderr := want(t, 64, "", "lock")
	complaint(t, stderr, `unknown command "lock"`)
	_, stderr = want(t, 64, "")
	complaint(t, stderr, "a verb is missing")
	want(t, 64, "", guardVerb) // the guard, started by hand, does nothing
}
