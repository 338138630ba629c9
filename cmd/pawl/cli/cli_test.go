//go:build unix

package cli

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

// The tests run pawl as users do: as processes, over real stores. The test
// binary is pawl when bePawl is set.
const bePawl = "PAWL_BE_PAWL"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == beMember {
		os.Exit(serveMember())
	}
	if len(os.Args) > 1 && os.Args[1] == beLost {
		os.Exit(runLost())
	}
	if os.Getenv(bePawl) != "" {
		os.Exit(Main())
	}
	flag.Set("test.parallel", "8") // the tests wait most of the time
	os.Exit(testservers.Main(m))
}

// patience is how long a test waits for an event that should come soon.
const patience = time.Minute

// stores are the stores that processes can share. Each function returns a URL.
var stores = map[string]func(*testing.T) string{
	"sqlite": sqliteStore,
	"redis": func(t *testing.T) string {
		url := "redis://" + testservers.SharedRedis(t).Addr
		warmRedis.Do(func() { invoke(t, url, "run", "--ttl", "200ms", "warm", "--", "true") })
		return url
	},
	"etcd": func(t *testing.T) string { return "etcd://" + testservers.SharedEtcd(t).Addr },
	"postgres": func(t *testing.T) string {
		return "postgres://postgres@" + testservers.SharedPostgres(t).Addr + "/postgres"
	},
	"mysql": func(t *testing.T) string { return "mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl" },
}

// warmRedis has the first session on an empty server, which waits for one TTL.
var warmRedis sync.Once

func sqliteStore(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "pawl.db") }

// overStores runs a test once over each store, on a name of its own.
func overStores(t *testing.T, test func(t *testing.T, store, name string)) {
	t.Helper()
	for kind, store := range stores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, store(t), fresh(t))
		})
	}
}

// fresh returns a name that no other run of the test has used.
func fresh(t *testing.T) string { return t.Name() + "-" + rand.Text() }

// command makes pawl with these arguments.
func command(t *testing.T, store string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), bePawl+"=1", "PAWL_STORE="+store,
		"GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")) // under the race detector every process would end a second late
	return cmd
}

// process is a pawl that runs.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of its standard output
	stderr string      // path
	done   chan struct{}
}

// start starts pawl. The program's output goes to files, so that processes that it leaves behind keep no
// reader waiting.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, lines: make(chan string, 1000), done: make(chan struct{})}
	p.stderr = filepath.Join(t.TempDir(), "stderr")
	stderr, err := os.Create(p.stderr)
	if err != nil {
		t.Fatal(err)
	}
	return p.start(stderr)
}

// startWith starts pawl with a standard error that is not read.
func startWith(t *testing.T, cmd *exec.Cmd, stderr *os.File) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, lines: make(chan string, 1000), done: make(chan struct{}), stderr: os.DevNull}
	return p.start(stderr)
}

// start starts pawl and closes its standard error here.
func (p *process) start(stderr *os.File) *process {
	t, cmd := p.t, p.cmd
	t.Helper()
	defer stderr.Close()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd.Stdout, cmd.Stderr = in, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			p.lines <- scan.Text()
		}
	}()
	go func() {
		defer close(p.done)
		cmd.Wait() //nolint:errcheck // the state tells
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.done
		out.SetReadDeadline(time.Now()) // also when another process has the other end
		for range p.lines {
		}
		out.Close()
	})
	return p
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// line waits for the next line of the standard output.
func (p *process) line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("output ended; on standard error: %s", p.errors())
		}
		return line
	case <-time.After(patience):
		p.t.Fatalf("no output; on standard error: %s", p.errors())
	}
	return ""
}

// number waits for a line with a number.
func (p *process) number() int {
	p.t.Helper()
	return atoi(p.t, p.line())
}

// wait waits for the end and returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%v has not ended; on standard error: %s", p.cmd.Args[1:], p.errors())
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) errors() string {
	text, err := os.ReadFile(p.stderr)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// invoke runs pawl to its end.
func invoke(t *testing.T, store string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	p := start(t, command(t, store, args...))
	code = p.wait()
	for line := range p.lines {
		stdout += line + "\n"
	}
	return stdout, p.errors(), code
}

// want fails the test unless pawl ends with this code.
func want(t *testing.T, code int, store string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, is := invoke(t, store, args...)
	if is != code {
		t.Fatalf("pawl %q: exit code %d, want %d; on standard error: %s", args, is, code, stderr)
	}
	return stdout, stderr
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// complaint fails the test unless stderr is one line of pawl that contains text.
func complaint(t *testing.T, stderr, text string) {
	t.Helper()
	if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "pawl: ") || !strings.Contains(stderr, text) {
		t.Errorf("standard error is %q, want one line with %q", stderr, text)
	}
}

// show returns the claims on a name.
func show(t *testing.T, store, name string) resourceView {
	t.Helper()
	stdout, _ := want(t, 0, store, "show", "--json", name)
	var view resourceView
	if err := json.Unmarshal([]byte(stdout), &view); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	return view
}

// states returns the states of the claims on a name, as "granted waiting".
func states(t *testing.T, store, name string) string {
	t.Helper()
	var states []string
	for _, c := range show(t, store, name).Claims {
		states = append(states, c.State)
	}
	return strings.Join(states, " ")
}

// eventually waits for a condition that no event reports.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// runs reports whether a process runs. A process that ended, and that nobody has reaped, does not
// run.
func runs(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(state)), "Z")
}
