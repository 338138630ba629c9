//go:build unix

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestLabel: operators see the text of --label of a holder and of a waiter, with the host and the
// process.
func TestLabel(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	overStores(t, func(t *testing.T, store, name string) {
		holder := held(t, store, "--label", "the nightly Übung", name)
		waiter := start(t, command(t, store, "run", "--label=by hand", name, "--", "true"))
		eventually(t, "one waits", func() bool { return states(t, store, name) == "granted waiting" })
		labels := []string{
			fmt.Sprintf("%s pid %d: the nightly Übung", host, holder.cmd.Process.Pid),
			fmt.Sprintf("%s pid %d: by hand", host, waiter.cmd.Process.Pid),
		}
		shows := func(code int, labels []string, args ...string) {
			t.Helper()
			stdout, _ := want(t, code, store, args...)
			for _, label := range labels {
				if !strings.Contains(stdout, label) {
					t.Errorf("%s has no %q: %s", args[0], label, stdout)
				}
			}
		}
		shows(0, labels[:1], "ls", name)
		shows(0, labels, "show", name)
		shows(64, labels[:1], "break", name) // without --yes it only shows
		stdout, _ := want(t, 0, store, "ls", "--json", name)
		var listed resourceView
		if err := json.Unmarshal([]byte(stdout), &listed); err != nil {
			t.Fatal(err)
		}
		for _, view := range []resourceView{listed, show(t, store, name)} {
			for i, label := range labels {
				if len(view.Claims) != 2 || view.Claims[i].Label != label {
					t.Errorf("claims %+v, want the labels %q", view.Claims, labels)
				}
			}
		}
		_, stderr := want(t, 75, store, "run", "--try", name, "--", "true")
		complaint(t, stderr, "held by "+labels[0])
		holder.signal(syscall.SIGTERM)
		if code := waiter.wait(); code != 0 {
			t.Errorf("exit code %d: %s", code, waiter.errors())
		}
	})
}
