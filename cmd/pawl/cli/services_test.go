//go:build unix

package cli

import (
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

var endSignals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// ignoredAtFirst are the signals that this process was started to ignore, as under nohup. A command that ran inside of
// this process makes signal.Ignored forget that, and new processes ignore the signal still.
var ignoredAtFirst = func() map[syscall.Signal]bool {
	all := make(map[syscall.Signal]bool)
	for _, sig := range endSignals {
		all[sig] = signal.Ignored(sig)
	}
	return all
}()

// TestServices_signals: each of four signals ends a service with 0, and the help of the service says so.
func TestServices_signals(t *testing.T) {
	t.Parallel()
	file := "sqlite:" + filepath.Join(t.TempDir(), "box.db")
	want(t, 0, "memory:", "outbox", "migrate", "--db", file)
	want(t, 0, "memory:", "tx", "migrate", "--agent", "--db", file)
	for verb, flags := range map[string]string{
		"proxy":        "--group g --drain 0",
		"id serve":     "--kind uuid4",
		"outbox relay": "--db " + file + " --to http://127.0.0.1:1/",
		"tx agent":     "--db " + file + " --name a --peer b=http://127.0.0.1:1/ --peer c=http://127.0.0.1:1/",
	} {
		if help, _ := want(t, 0, "memory:", append([]string{"help"}, strings.Fields(verb)...)...); !strings.Contains(help, "INT, TERM, HUP or QUIT") {
			t.Errorf("the help of %s does not name the signals", verb)
		}
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			store := sqliteStore(t)
			if verb == "id serve" {
				flags, store = flags+" --name x", "memory:"
			}
			for _, sig := range endSignals {
				if ignoredAtFirst[sig] { // and so by pawl as well
					continue
				}
				p := start(t, command(t, store, strings.Fields(verb+" --listen 127.0.0.1:0 "+flags)...))
				p.line()
				p.signal(sig)
				if code := p.wait(); code != 0 {
					t.Errorf("%v: exit code %d: %s", sig, code, p.errors())
				}
			}
		})
	}
}
