//go:build unix

package cli

import (
	"strings"
	"syscall"
	"testing"
)

// A job that several machines start runs once in its period, whatever its result.
func TestRun_once_in_a_period(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		job := func(code int, command string) string {
			_, stderr := want(t, code, store, "run", "--ttl", "3s", "--try", "--hold-for", "1h", name, "--", "sh", "-c", command)
			return stderr
		}
		kept := func() {
			t.Helper()
			complaint(t, job(75, "echo runs >&2"), "held by nobody, but kept by ")
			stdout, _ := want(t, 0, store, "ls", name)
			if !strings.Contains(stdout, ": sh (kept) ") {
				t.Errorf("ls prints %s", stdout)
			}
			is := show(t, store, name)
			if len(is.Claims) != 1 || !is.Claims[0].Kept || is.Claims[0].State != "granted" {
				t.Errorf("show has %+v", is)
			}
			if left := is.Claims[0].LeftMS; left != nil && (*left < 50*60*1000 || *left > 60*60*1000) {
				t.Errorf("it is kept for %d ms more", *left)
			}
			stdout, _ = want(t, 0, store, "break", "--yes", name)
			if strings.Contains(stdout, "a holder learns") || !strings.Contains(stdout, ": sh (token ") || !strings.Contains(stdout, ", kept for ") {
				t.Errorf("break prints %s", stdout)
			}
		}
		job(0, "true")
		kept()
		job(3, "exit 3") // a run that fails counts
		kept()
		p := start(t, command(t, store, "run", "--ttl", "3s", "--hold-for", "1h", name, "--", "sh", "-c", "echo up; exec sleep 1000"))
		p.line()
		p.signal(syscall.SIGKILL)
		eventually(t, "the holder is gone", func() bool { return states(t, store, name) == "granted" && show(t, store, name).Claims[0].Kept })
		kept()
		job(0, "true")
	})
}

func TestRun_refuses_a_period_that_no_store_can_keep(t *testing.T) {
	t.Parallel()
	_, stderr := want(t, 64, sqliteStore(t), "run", "--hold-for", "1000h", "x", "--", "true")
	complaint(t, stderr, "pawl: --hold-for is 1000h0m0s: 100ms to 168h0m0s are allowed")
	_, stderr = want(t, 64, stores["etcd"](t), "run", "--hold-for", "500ms", "x", "--", "true")
	complaint(t, stderr, "pawl: --hold-for is 500ms: 1s to 168h0m0s are allowed on etcd")
	_, stderr = want(t, 64, stores["postgres"](t)+"?mode=row", "run", "--hold-for", "1h", "x", "--", "true")
	complaint(t, stderr, "pawl: --hold-for: ")
	complaint(t, stderr, "no minimum hold on postgres row")
}
