//go:build unix

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/internal/testservers"
)

// beMember makes the test binary a server that joins. The next argument is a file that makes the server unhealthy.
const beMember = "__member"

// serveMember serves at PAWL_ADDR until TERM. Then it says so, and exits with 9.
func serveMember() int {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM)
	listener, err := net.Listen("tcp", os.Getenv("PAWL_ADDR"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:errcheck // it ends with the process
		if _, err := os.Stat(os.Args[2]); err == nil && r.URL.Path == "/healthz" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, os.Getenv("PAWL_ADDR"))
	}))
	fmt.Println(os.Getpid())
	<-ends
	fmt.Println("told")
	return 9
}

// freeAddr is an address that is free now.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// joined is a pawl join and its server.
type joined struct {
	*process
	addr, sick string // sick is the file that makes the server unhealthy
	pid        int    // of the server
}

// join starts a server that joins, and waits until it runs.
func join(t *testing.T, store, name, addr string, flags ...string) joined {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	j := joined{addr: addr, sick: filepath.Join(t.TempDir(), "sick")}
	args := append([]string{"join", name, "--addr", addr, "--ttl", lossTTL.String()}, flags...)
	if slices.Contains(flags, "--check") {
		args = append(args, "--check-every", "100ms")
	}
	j.process = start(t, command(t, store, append(args, "--", self, beMember, j.sick)...))
	j.pid = j.number()
	return j
}

func (j joined) serves() bool {
	conn, err := net.Dial("tcp", j.addr)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// members returns the members of a group; nil: pawl cannot tell.
func members(t *testing.T, store, name string) (all []group.Member) {
	t.Helper()
	stdout, _, code := invoke(t, store, "members", "--json", name)
	if code != 0 {
		return nil
	}
	all = []group.Member{}
	for line := range strings.Lines(stdout) {
		var m group.Member
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, m)
	}
	return all
}

// has waits until a group has so many members.
func has(t *testing.T, store, name string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has %d members", name, n), func() bool { all := members(t, store, name); return all != nil && len(all) == n })
}

// TestJoin_while_healthy: a server is a member while its check succeeds.
func TestJoin_while_healthy(t *testing.T) {
	t.Parallel()
	store, addr := sqliteStore(t), freeAddr(t)
	j := join(t, store, "api", addr, "--check", "http://"+addr+"/healthz", "--check-fails", "2", "--weight", "3", "--id", "a", "--meta", "zone=x", "--meta", "v=1=2")
	has(t, store, "api", 1)
	if m := members(t, store, "api")[0]; m.ID != "a" || m.Addr != addr || m.Weight != 3 || m.Meta["zone"] != "x" || m.Meta["v"] != "1=2" || m.Token == 0 {
		t.Errorf("member %+v", m)
	}
	for range 2 {
		if err := os.WriteFile(j.sick, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		has(t, store, "api", 0)
		if err := os.Remove(j.sick); err != nil {
			t.Fatal(err)
		}
		has(t, store, "api", 1)
	}
	for _, says := range []string{`group "api": member "a" leaves: the check fails: the status is 503 Service Unavailable`, `group "api": member "a" has joined again`} {
		if n := strings.Count(j.errors(), says+"\n"); n != 2 {
			t.Errorf("%d times %q in %s", n, says, j.errors())
		}
	}
	// A server that never becomes healthy never joins.
	other := join(t, store, "other", freeAddr(t), "--check", "tcp://"+freeAddr(t))
	eventually(t, "it says so", func() bool { return strings.Contains(other.errors(), "is not healthy: dial tcp") })
	if all := members(t, store, "other"); all == nil || len(all) > 0 {
		t.Errorf("members %+v", all)
	}
	other.signal(syscall.SIGTERM)
	if line := other.line(); line != "told" { // without a drain
		t.Errorf("line %q", line)
	}
}

// TestJoin_ended_leaves_first: after a signal the server is no member, and still serves until the drain is over.
func TestJoin_ended_leaves_first(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		j := join(t, store, "api", freeAddr(t), "--drain", "1h", "--check", "tcp://127.0.0.1:1")
		j.signal(sig) // before it has joined there is nothing to drain
		if sig == syscall.SIGTERM {
			if line := j.line(); line != "told" {
				t.Errorf("line %q", line)
			}
		}
		j = join(t, store, "api", freeAddr(t), "--drain", "1h")
		has(t, store, "api", 1)
		j.signal(sig)
		has(t, store, "api", 0)
		if !j.serves() {
			t.Error("the server has ended before its drain")
		}
		j.signal(syscall.SIGTERM) // the second is passed on at once
		if line := j.line(); line != "told" {
			t.Errorf("line %q", line)
		}
		if code := j.wait(); code != 9 || j.errors() != "" {
			t.Errorf("exit code %d, standard error %q", code, j.errors())
		}
	}
	j := join(t, store, "api", freeAddr(t), "--drain", "500ms")
	has(t, store, "api", 1)
	j.signal(syscall.SIGTERM)
	told := time.Now()
	if line := j.line(); line != "told" || time.Since(told) < 500*time.Millisecond {
		t.Errorf("line %q after %v", line, time.Since(told))
	}
	if code := j.wait(); code != 9 {
		t.Errorf("exit code %d", code)
	}
}

// TestJoin_command_ends: a server that ends is no member, and pawl exits with its code.
func TestJoin_command_ends(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for code, script := range map[int]string{0: "exit 0", 7: "exit 7", 137: "kill -KILL $$"} {
		_, stderr := want(t, code, store, "join", "x", "--addr", "h:1", "--", "sh", "-c", script)
		if all := members(t, store, "x"); stderr != "" || all == nil || len(all) > 0 {
			t.Errorf("standard error %q, members %+v", stderr, all)
		}
	}
	j := join(t, store, "api", freeAddr(t))
	has(t, store, "api", 1)
	if err := syscall.Kill(j.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := j.wait(); code != 137 {
		t.Errorf("exit code %d", code)
	}
	if all := members(t, store, "api"); all == nil || len(all) > 0 {
		t.Errorf("members %+v", all)
	}
}

// TestJoin_store_away: an outage stops no server. Members of a store that lost them join again.
func TestJoin_store_away(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	store := "redis://" + server.Addr
	j := join(t, store, "api", freeAddr(t), "--ttl", "1s")
	has(t, store, "api", 1)
	before := members(t, store, "api")[0].Token
	server.Kill()
	eventually(t, "the store is away", func() bool { _, _, code := invoke(t, store, "members", "api"); return code == 69 })
	server.Restart()
	eventually(t, "it has joined again", func() bool { all := members(t, store, "api"); return len(all) == 1 && all[0].Token > before })
	if !j.serves() || !runs(j.pid) {
		t.Error("the server has ended")
	}
	server.Kill()
	j.signal(syscall.SIGTERM) // now nobody can be told
	if line := j.line(); line != "told" {
		t.Errorf("line %q", line)
	}
	if code := j.wait(); code != 9 {
		t.Errorf("exit code %d: %s", code, j.errors())
	}
}

// TestJoin_store_away_in_the_end: the wait for a store that is away is a part of the drain.
func TestJoin_store_away_in_the_end(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	const drain = answerWithin
	j := join(t, "redis://"+server.Addr, "api", freeAddr(t), "--ttl", (answerWithin + time.Second).String(), "--drain", drain.String())
	has(t, "redis://"+server.Addr, "api", 1)
	server.Kill()
	asked := time.Now()
	j.signal(syscall.SIGTERM)
	if line, took := j.line(), time.Since(asked); line != "told" || took < drain || took >= answerWithin+drain {
		t.Errorf("line %q after %v: %s", line, took, j.errors())
	}
	complaint(t, j.errors(), "balancers see the member for up to its TTL")
}

// TestJoin_killed: a server does not outlive its pawl. A pawl that is frozen keeps its server, which comes back as a member.
func TestJoin_killed(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	j := join(t, store, "api", freeAddr(t), "--ttl", "1s")
	has(t, store, "api", 1)
	j.signal(syscall.SIGSTOP)
	has(t, store, "api", 0)
	j.signal(syscall.SIGCONT)
	has(t, store, "api", 1)
	if !j.serves() {
		t.Error("the server has ended")
	}
	j.signal(syscall.SIGKILL)
	has(t, store, "api", 0)
	eventually(t, "the server is dead", func() bool { return !runs(j.pid) })
}

// TestJoin_same_ID: the newest member of an ID stays, and the other is told.
func TestJoin_same_ID(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	first := join(t, store, "api", freeAddr(t), "--id", "a", "--drain", "100ms")
	has(t, store, "api", 1)
	second := join(t, store, "api", freeAddr(t), "--id", "a")
	if line := first.line(); line != "told" {
		t.Errorf("line %q", line)
	}
	if code := first.wait(); code != 74 {
		t.Errorf("exit code %d", code)
	}
	complaint(t, first.errors(), `group "api": stay: another member has joined with the same ID; stopping `)
	if all := members(t, store, "api"); len(all) != 1 || all[0].Addr != second.addr {
		t.Errorf("members %+v", all)
	}
	// Of two IDs with one address the newest is listed.
	third := start(t, command(t, store, "join", "api", "--addr", second.addr, "--id", "b", "--", "sleep", "1000"))
	eventually(t, "the newest is listed", func() bool { all := members(t, store, "api"); return len(all) == 1 && all[0].ID == "b" })
	third.signal(syscall.SIGTERM)
	third.signal(syscall.SIGTERM)
	if code := third.wait(); code != 143 {
		t.Errorf("exit code %d", code)
	}
	eventually(t, "the other is listed again", func() bool { all := members(t, store, "api"); return len(all) == 1 && all[0].ID == "a" })
}

// TestJoin_same_ID_that_takes_its_time: a replaced server has the time of --grace to end, also with a short TTL.
func TestJoin_same_ID_that_takes_its_time(t *testing.T) {
	t.Parallel()
	store, gate := sqliteStore(t), filepath.Join(t.TempDir(), "gate")
	first := start(t, command(t, store, "join", "api", "--addr", "h:1", "--id", "a", "--ttl", lossTTL.String(), "--drain", "0", "--", "sh", "-c",
		`trap 'echo told; until [ -e "$0" ]; do sleep 0.02; done; echo cleaned; exit' TERM; echo up; while :; do sleep 0.02; done`, gate))
	first.line()
	has(t, store, "api", 1)
	join(t, store, "api", freeAddr(t), "--id", "a")
	if line := first.line(); line != "told" {
		t.Errorf("line %q", line)
	}
	told := time.Now()
	eventually(t, "the TTL is over", func() bool { return time.Since(told) > lossTTL })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if line := first.line(); line != "cleaned" {
		t.Errorf("line %q", line)
	}
	if code := first.wait(); code != 74 {
		t.Errorf("exit code %d: %s", code, first.errors())
	}
}

// TestJoin_signals_together: each signal after the first is passed on, also when several come together.
func TestJoin_signals_together(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	j := start(t, command(t, store, "join", "api", "--addr", "h:1", "--drain", "1h", "--", "sh", "-c",
		`trap "echo INT" INT; trap "echo QUIT" QUIT; echo up; while :; do sleep 0.02; done`))
	j.line()
	has(t, store, "api", 1)
	j.signal(syscall.SIGTERM)
	has(t, store, "api", 0)
	for range 5 {
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGCONT} {
			j.signal(sig)
		}
		got := []string{j.line(), j.line()}
		if slices.Sort(got); !slices.Equal(got, []string{"INT", "QUIT"}) {
			t.Errorf("lines %q", got)
		}
	}
}

// TestJoin_same_ID_that_does_not_end: a replaced server that ignores TERM is killed, so its pawl ends. Further signals give the server no more time.
func TestJoin_same_ID_that_does_not_end(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for _, drain := range []string{"0", "1h"} {
		first := start(t, command(t, store, "join", drain, "--addr", "h:1", "--id", "a", "--grace", "500ms", "--drain", drain, "--",
			"sh", "-c", `trap "" TERM; echo up; while :; do sleep 0.02; done`))
		first.line()
		has(t, store, drain, 1)
		join(t, store, drain, freeAddr(t), "--id", "a")
		eventually(t, "the first is told", func() bool { return strings.Contains(first.errors(), "; stopping sh\n") })
		if drain == "1h" {
			eventually(t, "it has ended", func() bool { return first.cmd.Process.Signal(syscall.SIGTERM) != nil }) // the first signal ends the drain
		}
		if code := first.wait(); code != 74 {
			t.Errorf("exit code %d: %s", code, first.errors())
		}
	}
}

func TestJoin_refuses_wrong_usage(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"":                                              "the name is missing: the form is: pawl join NAME --addr HOST:PORT [flags] -- CMD [ARG...]",
		"-- true":                                       "the name is missing",
		"x --addr h:1 true":                             "-- is missing before the command",
		"x y --addr h:1 -- true":                        "2 names stand before --",
		"x --addr h:1 --":                               "the command is missing",
		"x -- true":                                     "--addr is missing",
		"x --addr h -- true":                            `--addr is "h": HOST:PORT is allowed, with a port from 1 to 65535`,
		"x --addr :80 -- true":                          "HOST:PORT",
		"x --addr h:0 -- true":                          "HOST:PORT",
		"x --addr h:http -- true":                       "HOST:PORT",
		"x --addr h:+80 -- true":                        "HOST:PORT",
		"x --addr 0.0.0.0:80 -- true":                   `--addr is "0.0.0.0:80", at which a server listens: an address that balancers can reach is allowed`,
		"x --addr [::]:80 -- true":                      "an address that balancers can reach",
		"x --addr [::ffff:0.0.0.0]:80 -- true":          "an address that balancers can reach",
		"x --addr h/x:80 -- true":                       `--addr is "h/x:80": the host is neither a name nor an address`,
		"x --addr u@h:80 -- true":                       "the host is neither a name nor an address",
		"x --addr h:1 --weight 0 -- true":               "--weight is 0: 1 to 65535 are allowed",
		"x --addr h:1 --meta a -- true":                 `--meta is "a": KEY=VALUE is allowed`,
		"x --addr h:1 --check-every 1ms -- true":        "100ms to 1h are allowed",
		"x --addr h:1 --check-fails 0 -- true":          "1 to 100 are allowed",
		"x --addr h:1 --check-every 2s -- true":         "--check-every is for --check",
		"x --addr h:1 --check-fails 3 -- true":          "--check-fails is for --check",
		"x --addr h:1 --drain=-1s -- true":              "--drain is -1s: 0 to 1h are allowed",
		"x --addr h:1 --grace=-1s -- true":              "--grace is -1s: 0 to 1h are allowed",
		"x --addr h:1 --ttl 0 -- true":                  "--ttl is 0s: more than 0 is allowed",
		"x --addr h:1 --check ftp://u:secret@h -- true": "--check is no such URL: http://HOST, https://HOST and tcp://HOST:PORT are allowed",
		"x --addr h:1 --check tcp://h -- true":          "--check is no such URL",
		"x --addr h:1 --check http://h:70000 -- true":   "--check is no such URL",
		"x --addr h:1 --check tcp://h:70000 -- true":    "--check is no such URL",
		"x --addr h:1 --meta a=1 --meta a=2 -- true":    `--meta has the key "a" twice`,
		"x --addr h:1 --meta a=" + strings.Repeat("v", 5000) + " -- true": "at most 4096 are allowed",
		strings.Repeat("n", 300) + " --addr h:1 -- true":                  "at most 256 are allowed",
		"a\x01b --addr h:1 -- true":                                       "control character",
	} {
		_, stderr := want(t, 64, "redis://127.0.0.1:1", append([]string{"join"}, strings.Fields(args)...)...)
		complaint(t, stderr, says)
		if strings.Contains(stderr, "secret") {
			t.Errorf("a password is shown: %s", stderr)
		}
	}
	ran := filepath.Join(t.TempDir(), "ran")
	_, stderr := want(t, 69, "redis://127.0.0.1:1", "join", "x", "--addr", "h:1", "--", "touch", ran)
	complaint(t, stderr, "unavailable")
	_, stderr = want(t, 64, "postgres://postgres@"+testservers.SharedPostgres(t).Addr+"/postgres?mode=row", "join", "x", "--addr", "h:1", "--", "touch", ran)
	complaint(t, stderr, "unsupported")
	_, stderr = want(t, 127, sqliteStore(t), "join", "x", "--addr", "h:1", "--", "no such program")
	complaint(t, stderr, "not found")
	if _, err := os.Stat(ran); !errors.Is(err, os.ErrNotExist) {
		t.Error("the command ran without a store")
	}
}
