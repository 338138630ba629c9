//go:build unix

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestMembers: the list of a group, over each store.
func TestMembers(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		if text, _ := want(t, 0, store, "members", name); text != "ID  ADDR  WEIGHT  TOKEN  META\n" {
			t.Errorf("an empty group prints %q", text)
		}
		p := start(t, command(t, store, "join", name, "--addr", "10.0.0.7:80", "--weight", "2", "--meta", "zone=a", "--meta", "disk=x\x1b[2J", "--", "sleep", "1000"))
		has(t, store, name, 1)
		text, stderr := want(t, 0, store, "members", name)
		if lines := strings.Split(text, "\n"); len(lines) != 3 || !strings.HasPrefix(lines[1], "10.0.0.7:80  10.0.0.7:80  2       ") ||
			!strings.HasSuffix(lines[1], "  disk=x?[2J zone=a") || stderr != "" {
			t.Errorf("%q, standard error %q", text, stderr)
		}
		p.signal(syscall.SIGTERM)
		p.signal(syscall.SIGTERM)
		p.wait()
		has(t, store, name, 0)
	})
}

// TestMembers_creates_nothing: a look makes no store, and leaves no claim in one.
func TestMembers_creates_nothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	_, stderr := want(t, 0, "sqlite:"+path, "members", "x")
	complaint(t, stderr, path)
	_, stderr = want(t, 69, "sqlite:"+path, "members", "--watch", "x")
	complaint(t, stderr, path)
	if _, err := os.Stat(path); err == nil {
		t.Error("a store was created")
	}
	store := sqliteStore(t)
	want(t, 0, store, "run", "y", "--", "true")
	p := start(t, command(t, store, "members", "--watch", "--json", "x"))
	if line := p.line(); line != `{"members":[]}` {
		t.Errorf("line %s", line)
	}
	if text, _ := want(t, 0, store, "ls", "--json"); text != "" {
		t.Errorf("claims: %s", text)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 || p.errors() != "" {
		t.Errorf("exit code %d: %s", code, p.errors())
	}
}

// TestMembers_watch: the list is printed when it changes, also after an outage of the store.
func TestMembers_watch(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	store := "redis://" + server.Addr
	first := start(t, command(t, store, "join", "x", "--ttl", "1s", "--addr", "h:1", "--", "sleep", "1000"))
	has(t, store, "x", 1)
	p := start(t, command(t, store, "members", "--watch", "--json", "x"))
	set := func(want ...string) {
		t.Helper()
		var view struct{ Members []group.Member }
		for {
			if err := json.Unmarshal([]byte(p.line()), &view); err != nil {
				t.Fatal(err)
			}
			var addrs []string
			for _, m := range view.Members {
				addrs = append(addrs, m.Addr)
			}
			if strings.Join(addrs, " ") == strings.Join(want, " ") {
				return
			}
		}
	}
	set("h:1")
	start(t, command(t, store, "join", "x", "--ttl", "1s", "--addr", "h:2", "--", "sleep", "1000"))
	set("h:1", "h:2")
	server.Kill()
	eventually(t, "it says that the store is away", func() bool { return strings.Contains(p.errors(), "unavailable") })
	server.Restart()
	set("h:1", "h:2") // with new tokens
	first.signal(syscall.SIGTERM)
	set("h:2")
	if n := strings.Count(p.errors(), "the store answers again"); n == 0 {
		t.Errorf("standard error: %s", p.errors())
	}
}
