package sqliteengine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pawl-go/pawl/engine"
)

// The test binary is also the other processes: see agent.
func TestMain(m *testing.M) {
	if path := os.Getenv("PAWL_AGENT_FILE"); path != "" {
		if err := agent(path); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// agent is a process with one session that reads commands from its standard input, a line each, and
// answers each. agent ends with its input, so with its parent at the latest.
func agent(path string) error {
	ttl, err := time.ParseDuration(os.Getenv("PAWL_AGENT_TTL"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	e, err := New(ctx, path, nil)
	if err != nil {
		return err
	}
	s, err := e.Open(ctx, engine.SessionOptions{TTL: ttl, Gone: func(claim string) { fmt.Println("told", claim) }})
	if err != nil {
		return err
	}
	go func() {
		for range time.Tick(ttl / 3) {
			s.Renew(ctx, nil)
		}
	}()
	fmt.Println("session", s.ID())
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		words := strings.Fields(input.Text())
		switch words[0] {
		case "enter":
			fmt.Println(saying(s.Enter(ctx, mutex(words[1], words[2]), true)))
		case "await":
			go func() { fmt.Println(saying(s.Await(ctx, mutex(words[1], words[2])))) }()
		case "leave":
			fmt.Println("left", s.Leave(ctx, words[1], words[2]))
		case "put":
			version, _ := strconv.ParseUint(words[3], 10, 64)
			_, err := e.Put(ctx, words[1], []byte(words[2]), version)
			fmt.Println("put", err)
		case "count":
			n, _ := strconv.Atoi(words[3])
			fmt.Println("counted", count(ctx, s, words[1], words[2], n))
		}
	}
	return errors.Join(s.Close(ctx), e.Close())
}

func saying(g engine.Grant, err error) string {
	switch {
	case err != nil:
		return "error " + err.Error()
	case g.Held():
		return "granted " + g.Token.String()
	}
	return "waiting"
}

// count adds n to the number in file, one at a time, under the lock.
func count(ctx context.Context, s engine.Session, name, file string, n int) error {
	for i := range n {
		c := mutex(name, fmt.Sprintf("%s-%d", s.ID(), i))
		g, err := s.Enter(ctx, c, true)
		if err == nil && !g.Held() {
			g, err = s.Await(ctx, c)
		}
		if err != nil {
			return err
		}
		if err := add(file, uint64(g.Token)); err != nil {
			return err
		}
		if err := s.Leave(ctx, name, c.ID); err != nil {
			return err
		}
	}
	return nil
}

// add fails when another process is at it, or was with a later token.
func add(file string, token uint64) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("two hold the lock: %w", err)
	}
	var sum, last uint64
	if _, err := fmt.Fscanf(f, "%d %d", &sum, &last); err != nil {
		return err
	}
	if token <= last {
		return fmt.Errorf("token %d after %d", token, last)
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%016d %016d", sum+1, token), 0)
	return err
}

func mutex(name, id string) *engine.Claim {
	return &engine.Claim{
		Resource: name, ID: id, Owner: id, Label: "test", Weight: engine.LockCapacity,
		Spec: engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity},
	}
}

// process is an agent as its parent sees it.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	input   io.WriteCloser
	lines   chan string
	session string
}

func start(t *testing.T, path string, ttl time.Duration) *process {
	t.Helper()
	return startCommand(t, exec.Command(os.Args[0]), path, ttl)
}

func startCommand(t *testing.T, cmd *exec.Cmd, path string, ttl time.Duration) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, lines: make(chan string, 100)}
	p.cmd.Env = append(os.Environ(), "PAWL_AGENT_FILE="+path, "GORACE=atexit_sleep_ms=0", "PAWL_AGENT_TTL="+ttl.String())
	p.cmd.Stderr = os.Stderr
	var err error
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
	}()
	t.Cleanup(p.end)
	p.session = p.expect("session ")
	return p
}

// end lets the process close its session, unless it was killed, and waits.
func (p *process) end() {
	p.input.Close()
	for range p.lines {
	}
	p.cmd.Wait()
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.end()
}

func (p *process) do(command string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.input, command+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

// expect reads the next line and returns what follows its beginning.
func (p *process) expect(beginning string) string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		rest, is := strings.CutPrefix(line, beginning)
		if !ok || !is {
			p.t.Fatalf("process says %q, not %q", line, beginning)
		}
		return rest
	case <-time.After(time.Minute):
		p.t.Fatalf("process does not say %q", beginning)
	}
	return ""
}

// until reads up to the given line, and over what the process may have been told.
func (p *process) until(line string) {
	p.t.Helper()
	for said := range p.lines {
		if said == line {
			return
		}
		if !strings.HasPrefix(said, "told ") {
			p.t.Fatalf("process says %q, not %q", said, line)
		}
	}
}

// silent fails if the process has said something.
func (p *process) silent() {
	p.t.Helper()
	select {
	case line := <-p.lines:
		p.t.Fatalf("process says %q", line)
	default:
	}
}

func file(t *testing.T) string { return filepath.Join(t.TempDir(), "state", "pawl.db") }

func newEngine(t *testing.T, path string) *Engine {
	t.Helper()
	e, err := New(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func open(t *testing.T, e *Engine, ttl time.Duration) engine.Session {
	t.Helper()
	return openWith(t, e, engine.SessionOptions{TTL: ttl})
}

func openWith(t *testing.T, e *Engine, opts engine.SessionOptions) engine.Session {
	t.Helper()
	s, err := e.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// expire ends a session in the file, as if its TTL had passed.
func expire(t *testing.T, e *Engine, session string) {
	t.Helper()
	update(t, e, `UPDATE pawl_sessions SET ends = ? WHERE id = ?`, now(), session)
}

// pathOf is where the file really is.
func pathOf(t *testing.T, e *Engine) dialect {
	t.Helper()
	var path string
	if err := e.db.QueryRowContext(t.Context(), `SELECT file FROM pragma_database_list`).Scan(&path); err != nil {
		t.Fatal(err)
	}
	return dialect{path: path}
}

// rows counts everything in the file that is to go away, and inboxes.
func rows(t *testing.T, e *Engine) int {
	t.Helper()
	var n int
	if err := e.db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM pawl_claims)
		+ (SELECT count(*) FROM pawl_sessions) + (SELECT count(*) FROM pawl_values)`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	inboxes, err := os.ReadDir(pathOf(t, e).inbox(""))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return n + len(inboxes)
}
