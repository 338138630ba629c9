// Package testservers starts and stops private real servers for tests. A server dies with the test
// process, however that process ends.
package testservers

import (
	"cmp"
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

// Server is a real server as one test sees it. The methods end that test when they fail.
type Server struct {
	Addr string // "127.0.0.1:port"
	Dir  string // its private folder; "" for a server that was given by environment

	t    testing.TB
	proc *process // nil for a server given by the environment
}

// kind is the description of one sort of server.
type kind struct {
	name   string // of the binary
	binary string // environment: path of the binary, or of its folder
	given  string // environment: address of a server that runs
	ports  int    // how many the server listens on; the first is the client's
	args   func(dir string, ports []int) []string
	ready  func(addr string) error

	// Only some kinds need these:
	program string                    // the binary, if its name differs
	folders []string                  // where the binary may be besides the PATH, as patterns
	nobody  bool                      // the server refuses to run as root
	fill    filler                    // fills the new folder of a server
	env     func(dir string) []string // added to the server's environment
	stop    syscall.Signal            // lets the server shut down, if SIGTERM does not
	discard syscall.Signal            // ends a server whose folder goes as well, if SIGKILL does not
	within  time.Duration             // the server may start for so long, if not for readyWithin
	largest int                       // no file of the server may be larger, in 512 bytes
}

type filler func(k kind, path, dir string, ports []int) error

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

// launch starts a server in a new folder. If other processes took the chosen ports meanwhile,
// launch uses other ports.
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
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, k.name)
	}
	if path == "" {
		path = cmp.Or(k.program, k.name)
		if found := k.elsewhere(); found != "" {
			path = found
		}
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return "", missed(fmt.Errorf("%w: install it with `make setup`, or name one by %s", err, k.binary))
	}
	return path, nil
}

// elsewhere returns the program in a folder outside the PATH.
func (k kind) elsewhere() string {
	if _, err := exec.LookPath(k.name); err == nil {
		return ""
	}
	for _, folder := range k.folders {
		found, _ := filepath.Glob(filepath.Join(folder, k.name)) // the patterns are well formed
		if len(found) > 0 {
			return found[len(found)-1]
		}
	}
	return ""
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

// prepare makes the folder of a server that is about to start.
func prepare(k kind, path string, ports []int, args []string) (*process, error) {
	dir, err := k.folder()
	if err == nil && k.fill != nil {
		err = k.fill(k, path, dir, ports)
	}
	if err != nil {
		os.RemoveAll(dir) //nolint:errcheck // a temporary folder
		return nil, err
	}
	return &process{
		kind: k, path: path, dir: dir, ports: ports, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])),
		args: append(k.args(dir, ports), args...),
	}, nil
}

// folder makes a folder that belongs to the user of the server. The folder is not below that of the
// test, because the folder above lets nobody else in.
func (k kind) folder() (string, error) {
	dir, err := os.MkdirTemp("", "pawl-"+k.name+"-")
	if err == nil && k.nobody && os.Getuid() == 0 {
		err = os.Chown(dir, nobody, nobody)
	}
	return dir, err
}

// nobody is the user of servers that refuse to run as root.
const nobody = 65534

// command makes a child that dies with this process.
func (k kind) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = sysProcAttr()
	if k.nobody && os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

// until waits for a condition that a server meets only some time after it is ready.
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

// freePorts finds ports below the ports of outgoing connections.
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

// Why a server did not start.
var (
	errEnded    = errors.New("ended before it was ready")
	errNotReady = errors.New("not ready")
)

// start starts the process and waits until it serves.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := p.kind.command(p.path, p.args...)
	if p.kind.largest > 0 {
		limit := fmt.Sprintf(`ulimit -f %d; exec "$0" "$@"`, p.kind.largest)
		cmd = p.kind.command("/bin/sh", append([]string{"-c", limit, p.path}, p.args...)...)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	if p.kind.env != nil {
		cmd.Env = append(os.Environ(), p.kind.env(p.dir)...)
	}
	if err := spawn(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.path, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cmd.Wait() //nolint:errcheck // its log shows how it ended
	}()
	p.cmd, p.done = cmd, done
	return p.awaitReady()
}

func (p *process) awaitReady() error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	within := max(readyWithin, p.kind.within)
	deadline := time.After(within)
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
			return fmt.Errorf("%s is %w after %v: %w: %s", p.kind.name, errNotReady, within, err, p.log())
		}
	}
}

func (p *process) logFile() string { return filepath.Join(p.dir, "server.log") }

// log returns the end of the server's output.
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

// end sends the signal and waits for the end; it kills processes that ignore the signal.
func (p *process) end(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	all := family(p.cmd.Process.Pid)
	p.cmd.Process.Signal(sig) //nolint:errcheck // the process may have ended by itself
	for _, pid := range all { // processes may be paused
		syscall.Kill(pid, syscall.SIGCONT) //nolint:errcheck // as above
	}
	select {
	case <-p.done:
	case <-time.After(stopWithin):
		p.cmd.Process.Kill() //nolint:errcheck // the process may have ended just now
		<-p.done
	}
	p.cmd = nil
	bury(all[1:])
}

// remove ends the server and removes its folder.
func (p *process) remove() {
	p.end(or(p.kind.discard, syscall.SIGKILL))
	os.RemoveAll(p.dir) //nolint:errcheck // a temporary folder
}

// own returns the process. own ends the test if the server is not private.
func (s *Server) own() *process {
	s.t.Helper()
	if s.proc == nil {
		s.t.Fatalf("the server at %s was given by environment: a test must not touch it", s.Addr)
	}
	return s.proc
}

// Kill kills the server as a crash of the process would, and waits until the server is dead.
func (s *Server) Kill() { s.t.Helper(); s.own().end(syscall.SIGKILL) }

// Stop lets the server shut down, and waits until it has done so.
func (s *Server) Stop() { s.t.Helper(); p := s.own(); p.end(or(p.kind.stop, syscall.SIGTERM)) }

func or(sig, usual syscall.Signal) syscall.Signal {
	if sig == 0 {
		return usual
	}
	return sig
}

// Restart starts the server again, on the same port and folder, and waits until it serves. A server
// that still runs is killed first.
func (s *Server) Restart() { s.t.Helper(); s.RestartWith() }

// RestartWith restarts the server with more options, after the present ones.
func (s *Server) RestartWith(more ...string) {
	s.t.Helper()
	p := s.own()
	p.end(syscall.SIGKILL)
	p.args = append(p.args, more...)
	err := p.start()
	if errors.Is(err, errNotReady) && p.kind.within > 0 { // RabbitMQ 3.10 at times never ends its start after a kill
		s.t.Log("started once more: ", err)
		p.end(syscall.SIGKILL)
		err = p.start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// Snapshot shuts the server down, copies its folder, and starts the server again. Restore kills the
// server, puts the copy back, and starts the server: all later writes are gone.
func (s *Server) Snapshot() (restore func()) {
	s.t.Helper()
	p := s.own()
	data := s.t.TempDir()
	s.Stop()
	s.copy(p.dir, data)
	s.Restart()
	return func() {
		s.t.Helper()
		s.Kill()
		if err := os.RemoveAll(p.dir); err != nil {
			s.t.Fatal(err)
		}
		s.copy(data, p.dir)
		s.Restart()
	}
}

// copy makes a folder with the content of another, with its owners.
func (s *Server) copy(from, to string) {
	s.t.Helper()
	if err := run(exec.Command("cp", "-aT", from, to)); err != nil {
		s.t.Fatal(err)
	}
}

// Pause stops the server with its children, as a long pause of its machine would. Connections stay
// and nothing answers.
func (s *Server) Pause() {
	s.t.Helper()
	s.Signal(syscall.SIGSTOP) // from here on the server has no new children
	pid := s.pid()
	s.awaitPaused(pid)
	for _, child := range family(pid)[1:] {
		syscall.Kill(child, syscall.SIGSTOP) //nolint:errcheck // the child may have ended by itself
		s.awaitPaused(child)
	}
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.t.Helper()
	for _, pid := range family(s.pid()) {
		syscall.Kill(pid, syscall.SIGCONT) //nolint:errcheck // a child may have ended by itself
	}
}

func (s *Server) pid() int {
	s.t.Helper()
	p := s.own()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		s.t.Fatalf("%s does not run", p.kind.name)
	}
	return p.cmd.Process.Pid
}

// Signal sends any other signal.
func (s *Server) Signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.own().signal(sig); err != nil {
		s.t.Fatal(err)
	}
}
