//go:build unix

package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
)

const mayHaveForgotten = "may have forgotten locks; it grants again in "

// While a store may have forgotten its holders, pawl does not say that others hold the lock.
func TestGrace_is_told(t *testing.T) {
	t.Parallel()
	store := "redis://" + testservers.Redis(t).Addr
	first := start(t, command(t, store, "run", "--ttl", "1m", "x", "--", "true"))
	eventually(t, "it waits", func() bool { return show(t, store, "x").Grace != nil })
	for _, how := range []string{"--try", "--wait=1s"} {
		_, stderr := want(t, 75, store, "run", "--ttl", "1m", how, "y", "--", "true")
		complaint(t, stderr, mayHaveForgotten)
		if strings.Contains(stderr, "held by") {
			t.Errorf("%s says %s", how, stderr)
		}
	}
	for _, args := range [][]string{{"ls"}, {"show", "x"}} {
		stdout, _ := want(t, 0, store, args...)
		if !strings.Contains(stdout, mayHaveForgotten) {
			t.Errorf("%q prints %s", args, stdout)
		}
	}
	stdout, _ := want(t, 0, store, "ls", "--json", "nobody/")
	var alone map[string]graceView
	if err := json.Unmarshal([]byte(stdout), &alone); err != nil || len(alone) != 1 || alone["grace"].LeftMS == nil || *alone["grace"].LeftMS <= 0 {
		t.Errorf("ls --json without names prints %q, %v", stdout, err)
	}
	if g := show(t, store, "x").Grace; g.LeftMS == nil || *g.LeftMS <= 0 || *g.LeftMS > 60_000 {
		t.Errorf("grace %+v", g)
	}
	first.cmd.Process.Kill()
}

func TestStoreInit_of_a_new_Redis(t *testing.T) {
	t.Parallel()
	store := "redis://" + testservers.Redis(t).Addr
	stdout, _ := want(t, 0, store, "store", "init")
	matches(t, stdout, "redis: new: the first lock is granted at once")
	want(t, 0, store, "run", "--ttl", "1h", "--try", "x", "--", "true")
	_, stderr := want(t, 64, store, "store", "init")
	complaint(t, stderr, "it is not new")
}
