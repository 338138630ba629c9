package lbprocesstest

import (
	"bufio"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// fleet is the processes of the servers.
type fleet struct {
	t       *testing.T
	store   string
	ttl     time.Duration
	books   *books
	waiting sync.WaitGroup

	mu    sync.Mutex
	all   [webs + rpcs]*process
	over  bool
	kills int
}

const (
	webs = 10
	rpcs = 3
)

// process is one server.
type process struct {
	kind string
	id   string // known when it has joined
	cmd  *exec.Cmd
	in   io.Closer
	dead chan struct{}
}

func newFleet(t *testing.T, store string, ttl time.Duration, b *books) *fleet {
	t.Helper()
	f := &fleet{t: t, store: store, ttl: ttl, books: b}
	t.Cleanup(f.end)
	var starting sync.WaitGroup
	for i := range f.all {
		starting.Go(func() { f.start(i) })
	}
	starting.Wait()
	return f
}

// kindOf has a server of gRPC among each four.
func kindOf(i int) string {
	if i%4 == 3 {
		return rpc
	}
	return web
}

// start starts a server, and returns when it has joined.
func (f *fleet) start(i int) {
	text, err := json.Marshal(role{f.store, f.ttl, kindOf(i)})
	if err != nil {
		f.t.Error(err)
		return
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), beMember+"="+string(text), "GOMAXPROCS=1")
	cmd.Stderr = &strings.Builder{}
	p := &process{kind: kindOf(i), cmd: cmd, dead: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	if err == nil {
		p.in, err = cmd.StdinPipe()
	}
	f.mu.Lock()
	if err == nil && !f.over {
		err = cmd.Start()
	}
	if err != nil || f.over {
		f.mu.Unlock()
		if err != nil {
			f.t.Error(err)
		}
		return
	}
	f.all[i] = p
	f.mu.Unlock()
	said := bufio.NewScanner(out)
	said.Scan() // nothing if it has ended
	f.mu.Lock()
	p.id = said.Text()
	f.mu.Unlock()
	f.waiting.Go(func() {
		defer close(p.dead)
		for said.Scan() {
			f.books.silent(p.id)
		}
		cmd.Wait() //nolint:errcheck // it was killed
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.all[i] == p && !f.over {
			f.t.Errorf("server %d has ended by itself: %s", i, cmd.Stderr)
		}
	})
}

// replace kills a server, and starts another in its place.
func (f *fleet) replace(i int) {
	f.mu.Lock()
	p := f.all[i]
	f.all[i] = nil
	f.mu.Unlock()
	if p == nil || p.cmd.Process.Kill() != nil {
		f.t.Errorf("server %d does not run", i)
		return
	}
	<-p.dead
	f.books.died(p.id)
	f.mu.Lock()
	f.kills++
	f.mu.Unlock()
	f.start(i)
}

// ids are the servers of a kind that run.
func (f *fleet) ids(kind string) map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]bool)
	for _, p := range f.all {
		if p != nil && p.kind == kind {
			all[p.id] = true
		}
	}
	return all
}

// killEverySecond replaces one server after another, in no order. In the order of their start, the next server to be killed would follow each sweeper.
// ready waits until the next may be killed.
func (f *fleet) killEverySecond(kills int, ready func()) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var replacing sync.WaitGroup
	defer replacing.Wait()
	busy := make([]sync.Mutex, len(f.all)) // a server that starts slowly is not killed before
	var order []int
	for range kills {
		<-tick.C
		ready()
		if len(order) == 0 {
			order = rand.Perm(len(f.all))
		}
		i := order[0]
		order = order[1:]
		replacing.Go(func() {
			busy[i].Lock()
			defer busy[i].Unlock()
			f.replace(i)
		})
	}
}

func (f *fleet) end() {
	f.mu.Lock()
	f.over = true
	for _, p := range f.all {
		if p != nil {
			p.cmd.Process.Kill() //nolint:errcheck // it may have ended
		}
	}
	f.mu.Unlock()
	f.waiting.Wait()
}
