package lbprocesstest

import (
	"bufio"
	"encoding/json"
	"fmt"
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
			f.books.silent()
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
func (f *fleet) killEverySecond(kills int) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var replacing sync.WaitGroup
	defer replacing.Wait()
	busy := make([]sync.Mutex, len(f.all)) // a server that starts slowly is not killed before
	var order []int
	for range kills {
		<-tick.C
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

// books are the requests to servers, and the deaths of servers.
type books struct {
	mu      sync.Mutex
	death   map[string]time.Time
	expired map[string]time.Time   // when the store had ended the session
	gaps    []time.Time            // when the store did not answer a server
	lists   []list                 // of the sessions
	unswept map[string][]time.Time // when all sweepers of a group were dead
	last    map[string]time.Time   // request of each balancer to each server
	failed  map[string]int         // by balancer
	done    map[string]int
	why     error
}

// list is how long the store took for a list.
type list struct {
	at   time.Time
	took time.Duration
}

func newBooks() *books {
	return &books{death: make(map[string]time.Time), expired: make(map[string]time.Time), last: make(map[string]time.Time),
		failed: make(map[string]int), done: make(map[string]int), unswept: make(map[string][]time.Time)}
}

func (b *books) died(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.death[id] = time.Now()
}

// silent notes that the store did not answer a server, which may be the sweeper.
func (b *books) silent() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gaps = append(b.gaps, time.Now())
}

// gapsNow is how often the store did not answer.
func (b *books) gapsNow() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.gaps)
}

// alive notes the servers whose sessions the store has, and how long the list took.
func (b *books) alive(now map[string]bool, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lists = append(b.lists, list{time.Now(), took})
	for id := range b.death {
		if now[id] {
			delete(b.expired, id)
		} else if b.expired[id].IsZero() {
			b.expired[id] = time.Now()
		}
	}
}

// swept notes whether a sweeper of the group lives.
func (b *books) swept(kind string, by []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, label := range by {
		if b.death[label].IsZero() {
			return
		}
	}
	b.unswept[kind] = append(b.unswept[kind], time.Now())
}

// sent notes a request to a server.
func (b *books) sent(by, id string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if key := by + " to " + id; at.After(b.last[key]) {
		b.last[key] = at
	}
}

// ended notes how a request ended.
func (b *books) ended(by string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done[by]++; err != nil {
		b.failed[by]++
		if by != naive {
			b.why = fmt.Errorf("%s: %w", by, err)
		}
	}
}

// late says which requests of a balancer went to a server that was dead for longer than the TTL and a second. most is the longest time from a death
// to the last request there. The second begins later where the store ends the session late. A gap in the answers of the store also delays the second,
// because nobody is taken for dead then. So does a time in which all sweepers are dead themselves. A sweeper pauses for as long as five lists take, so on a busy machine so many lists are added.
func (b *books) late(by string, ttl time.Duration, lists int) (all []string, most time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, died := range b.death {
		last := b.last[by+" to "+id]
		end := died.Add(ttl)
		if b.expired[id].After(end) {
			end = b.expired[id]
		}
		for _, gap := range b.gaps {
			if after := gap.Add(ttl); after.After(end) && gap.Before(end.Add(time.Second)) {
				end = after
			}
		}
		kind := web
		if by == calls {
			kind = rpc
		}
		for _, at := range b.unswept[kind] {
			if at.After(end) && at.Before(end.Add(time.Second)) {
				end = at
			}
		}
		slowest := time.Duration(0)
		for _, is := range b.lists {
			if is.at.After(died) && is.at.Before(last) {
				slowest = max(slowest, is.took)
			}
		}
		most = max(most, last.Sub(died))
		if last.Sub(end) > time.Second+time.Duration(lists)*slowest {
			all = append(all, fmt.Sprintf("%s: a request %v after the death, and %v after the session", id, last.Sub(died), last.Sub(end)))
		}
	}
	return all, most
}

// served is how many requests of a balancer have ended.
func (b *books) served(by string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done[by]
}

// allExpired reports whether the store has ended the sessions of all dead servers.
func (b *books) allExpired() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.expired) == len(b.death)
}
