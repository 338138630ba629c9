// Package testservers starts and stops private real servers for tests. A
// server dies with the test process, however that ends.
package testservers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Server is a real server as one test sees it. Its methods end that test when
// they fail.
type Server struct {
	Addr string // "127.0.0.1:port"
	Dir  string // its private folder; "" for a server that was given by environment

	t    testing.TB
	proc *process // nil for a server that was given by environment
}

// kind is what there is to know of one sort of server.
type kind struct {
	name   string // of the binary
	binary string // environment: path of the binary
	given  string // environment: address of a server that runs
	ports  int    // how many it listens on; the first is the client's
	args   func(dir string, ports []int) []string
	ready  func(addr string) error
}

// process is a server that this process started.
type process struct {
	kind  kind
	path  string
	args  []string
	ports []int
	addr  string
	dir   string

	mu   sync.Mutex
	cmd  *exec.Cmd     // nil: not running
	done chan struct{} // closed when cmd has ended and was reaped
}

const (
	readyWithin = 20 * time.Second
	stopWithin  = 10 * time.Second
)

// start starts a private server for one test.
func start(t testing.TB, k kind, args []string) *Server {
	t.Helper()
	p, err := launch(k, args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.remove)
	return &Server{Addr: p.addr, Dir: p.dir, t: t, proc: p}
}

// launch starts a server in a new folder, on other ports if those chosen were
// taken meanwhile.
func launch(k kind, args []string) (*process, error) {
	path, err := k.lookPath()
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		p, err := launchOnce(k, path, args)
		if err == nil {
			return p, nil
		}
		if attempt == 3 || !errors.Is(err, errEnded) {
			return nil, missed(err)
		}
	}
}

// lookPath finds the program.
func (k kind) lookPath() (string, error) {
	path := os.Getenv(k.binary)
	if path == "" {
		path = k.name
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return "", missed(fmt.Errorf("%w: install it with `make setup`, or name one by %s", err, k.binary))
	}
	return path, nil
}

func launchOnce(k kind, path string, args []string) (*process, error) {
	ports, err := freePorts(k.ports)
	if err != nil {
		return nil, err
	}
	p, err := prepare(k, path, ports, args)
	if err != nil {
		return nil, err
	}
	if err := p.start(); err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

// prepare makes the folder of a server that is to be started.
func prepare(k kind, path string, ports []int, args []string) (*process, error) {
	dir, err := os.MkdirTemp("", "pawl-"+k.name+"-")
	if err != nil {
		return nil, err
	}
	return &process{
		kind: k, path: path, dir: dir, ports: ports, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])),
		args: append(k.args(dir, ports), args...),
	}, nil
}

// until waits for what a server needs some time for after it is ready.
func until(t testing.TB, what string, done func() error) {
	t.Helper()
	deadline := time.Now().Add(readyWithin)
	for err := done(); err != nil; err = done() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s: %v", readyWithin, what, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// freePorts finds ports below those that outgoing connections take.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 1000 {
		port := 10000 + rand.IntN(22768)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer l.Close() // at the end, so that no port is found twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free port between 10000 and 32767")
}

// errEnded says that a server ended before it was ready.
var errEnded = errors.New("ended before it was ready")

// start starts the process and waits until it serves.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = p.dir, log, log, sysProcAttr()
	if err := spawn(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.path, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cmd.Wait() //nolint:errcheck // how it ended shows in its log
	}()
	p.cmd, p.done = cmd, done
	return p.awaitReady()
}

func (p *process) awaitReady() error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(readyWithin)
	for {
		err := p.kind.ready(p.addr)
		select {
		case <-p.done:
			return fmt.Errorf("%s %w: %s", p.kind.name, errEnded, p.log())
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
		case <-deadline:
			return fmt.Errorf("%s is not ready after %v: %w: %s", p.kind.name, readyWithin, err, p.log())
		}
	}
}

func (p *process) logFile() string { return filepath.Join(p.dir, "server.log") }

// log returns the end of what the server wrote.
func (p *process) log() string {
	text, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("%s does not run", p.kind.name)
	}
	return p.cmd.Process.Signal(sig)
}

// end sends the signal and waits for the end; it kills what does not heed it.
func (p *process) end(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Signal(sig)             //nolint:errcheck // it may have ended by itself
	p.cmd.Process.Signal(syscall.SIGCONT) //nolint:errcheck // it may be paused
	select {
	case <-p.done:
	case <-time.After(stopWithin):
		p.cmd.Process.Kill() //nolint:errcheck // it may have ended just now
		<-p.done
	}
	p.cmd = nil
}

// remove kills the server and removes its folder.
func (p *process) remove() {
	p.end(syscall.SIGKILL)
	os.RemoveAll(p.dir) //nolint:errcheck // a temporary folder
}

// own returns the process, and ends the test if it is not ours to touch.
func (s *Server) own() *process {
	s.t.Helper()
	if s.proc == nil {
		s.t.Fatalf("the server at %s was given by environment: a test must not touch it", s.Addr)
	}
	return s.proc
}

// Kill kills the server as a power failure of the process would, and waits
// until it is dead.
func (s *Server) Kill() { s.t.Helper(); s.own().end(syscall.SIGKILL) }

// Stop lets the server shut down, and waits until it has.
func (s *Server) Stop() { s.t.Helper(); s.own().end(syscall.SIGTERM) }

// Restart starts the server again, on the same port and folder, after a Kill
// if it still runs, and waits until it serves.
func (s *Server) Restart() {
	s.t.Helper()
	p := s.own()
	p.end(syscall.SIGKILL)
	if err := p.start(); err != nil {
		s.t.Fatal(err)
	}
}

// Pause stops the server as a long pause of its machine would: connections
// stay and nothing answers.
func (s *Server) Pause() { s.t.Helper(); s.Signal(syscall.SIGSTOP); s.awaitPaused() }

// Resume ends a Pause.
func (s *Server) Resume() { s.t.Helper(); s.Signal(syscall.SIGCONT) }

// Signal sends any other signal.
func (s *Server) Signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.own().signal(sig); err != nil {
		s.t.Fatal(err)
	}
}
