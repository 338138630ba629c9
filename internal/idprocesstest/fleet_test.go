package idprocesstest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/idtest"
)

// fleet is processes that make IDs, of which each is started again when it was killed.
type fleet struct {
	t      *testing.T
	task   task
	checks []*idtest.DiskChecker // by kind
	group  sync.WaitGroup

	ended chan struct{}

	mu      sync.Mutex
	running [4]*exec.Cmd
	ready   [4]bool // it has made IDs of all kinds
	starts  int
	kills   int
}

func newFleet(t *testing.T, task task) *fleet {
	t.Helper()
	f := &fleet{t: t, task: task, ended: make(chan struct{})}
	for _, k := range kinds {
		check, err := idtest.NewDiskChecker(t.TempDir(), k.unordered)
		if err != nil {
			t.Fatal(err)
		}
		f.checks = append(f.checks, check)
	}
	t.Cleanup(f.end)
	for i := range f.running {
		f.group.Go(func() { f.keep(i) })
	}
	f.group.Go(f.killEverySecond)
	return f
}

// skews is how wrong the clocks are with which processes start, one after the other. Steps of some seconds let
// a process begin in the time of others that are dead.
var skews = []time.Duration{0, -8 * time.Second, 30 * time.Minute, 30*time.Minute - 9*time.Second, -4 * time.Second,
	-30 * time.Minute, -30*time.Minute - 7*time.Second, -12 * time.Second}

// keep has a process run until the end.
func (f *fleet) keep(i int) {
	for {
		cmd, output, err := f.start(i)
		if err != nil {
			f.t.Error(err)
		}
		if cmd == nil {
			return
		}
		if err := f.read(i, output); err != nil {
			f.t.Error(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
			f.t.Errorf("a process ended by itself: %v: %s", err, cmd.Stderr)
			return
		}
	}
}

// start starts a process, unless it is the end.
func (f *fleet) start(i int) (*exec.Cmd, io.Reader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over() {
		return nil, nil, nil
	}
	task := f.task
	task.Number, task.Skew = i, task.Skew+skews[f.starts%len(skews)]
	f.starts++
	text, err := json.Marshal(task)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), beProcess+"="+string(text))
	cmd.Stderr = &strings.Builder{}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	f.running[i], f.ready[i] = cmd, false
	return cmd, output, nil
}

// read notes all that a process wrote before it was killed.
func (f *fleet) read(i int, output io.Reader) error {
	seen := make(map[uint32]bool)
	logs := make([][goroutines]*idtest.DiskLog, len(f.checks))
	for i, check := range f.checks {
		for g := range logs[i] {
			logs[i][g] = check.Log()
		}
	}
	from := bufio.NewReaderSize(output, 1<<16)
	for head, body := make([]byte, 16), make([]byte, 16*frameIDs); ; {
		switch _, err := io.ReadFull(from, head); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("the head of a frame: %w", err)
		}
		body := body[:16*binary.BigEndian.Uint64(head[8:])]
		if _, err := io.ReadFull(from, body); err != nil {
			return fmt.Errorf("a frame: %w", err)
		}
		ids := make([]idtest.ID, len(body)/16)
		for i := range ids {
			ids[i] = idtest.ID{High: binary.BigEndian.Uint64(body[16*i:]), Low: binary.BigEndian.Uint64(body[16*i+8:])}
		}
		which := binary.BigEndian.Uint32(head)
		logs[which][binary.BigEndian.Uint32(head[4:])].Add(ids...)
		if !seen[which] {
			seen[which] = true
			f.is(i, len(seen) == len(kinds))
		}
	}
}

func (f *fleet) is(i int, ready bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready[i] = ready
}

// more waits until there are more IDs of each kind: so all stores serve.
func (f *fleet) more(until time.Time) {
	for _, check := range f.checks {
		for n := check.Len(); check.Len() == n && !f.t.Failed() && time.Now().Before(until); {
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// killEverySecond kills one process after the other until the end, if the process has made IDs of all kinds. One
// of five is killed anyway: on a slow machine, in its beginning.
func (f *fleet) killEverySecond() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := 0; !f.over(); i++ {
		select {
		case <-tick.C:
			f.kill(i%len(f.running), i%5 == 0)
		case <-f.ended:
		}
	}
}

func (f *fleet) kill(i int, anyway bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cmd := f.running[i]; cmd != nil && (anyway || f.ready[i]) && !f.over() && cmd.Process.Kill() == nil {
		f.kills++
	}
}

func (f *fleet) over() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

// end kills all processes, and waits for what they wrote.
func (f *fleet) end() {
	f.mu.Lock()
	if !f.over() {
		close(f.ended)
		for _, cmd := range f.running {
			if cmd != nil {
				cmd.Process.Kill() //nolint:errcheck // it may have ended by itself, which is told elsewhere
			}
		}
	}
	f.mu.Unlock()
	f.group.Wait()
}
