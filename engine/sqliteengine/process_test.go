package sqliteengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

func TestExclusionBetweenProcesses(t *testing.T) {
	const processes, each = 4, 250
	path, counter := file(t), filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(counter, []byte("0 0"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all []*process
	for range processes {
		all = append(all, start(t, path, 30*time.Second))
	}
	for _, p := range all {
		p.do("count order/42 %s %d", counter, each)
	}
	for _, p := range all {
		if got := p.expect("counted "); got != "<nil>" {
			t.Fatal(got)
		}
		p.end()
	}
	content, err := os.ReadFile(counter)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%016d ", processes*each); !strings.HasPrefix(string(content), want) {
		t.Errorf("counter and token are %s, want %s", content, want)
	}
	if n := rows(t, newEngine(t, path)); n != 0 {
		t.Errorf("%d rows or inboxes are left", n)
	}
}

// Processes are killed wherever they happen to be.
func TestExclusionWhenProcessesAreKilled(t *testing.T) {
	const ttl = 300 * time.Millisecond
	path, counter := file(t), filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(counter, []byte("0 0"), 0o600); err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	for range 3 {
		tasks.Go(func() {
			for range 8 {
				p := start(t, path, ttl)
				p.do("count job %s 1000000", counter)
				select {
				case line := <-p.lines:
					t.Error(line)
				case <-time.After(rand.N(200 * time.Millisecond)):
				}
				p.kill()
			}
		})
	}
	tasks.Wait()
	e := newEngine(t, path)
	s := open(t, e, 30*time.Second)
	mine := mutex("job", "mine")
	begun := time.Now()
	sessiontest.Enter(t, s, mine)
	token := sessiontest.Await(t, s, mine)
	if took := time.Since(begun); took > ttl+time.Second {
		t.Errorf("after %v", took)
	}
	if err := add(counter, uint64(token)); err != nil {
		t.Error(err)
	}
	sessiontest.Leave(t, s, mine)
	// A process that was killed before it claimed anything leaves a session and its inbox.
	for own := 2; rows(t, e) > own && time.Since(begun) < ttl+time.Second; {
		if _, err := s.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := rows(t, e); n != 0 {
		t.Errorf("%d rows or inboxes are left", n)
	}
	var verdict string
	if err := e.db.QueryRowContext(t.Context(), `PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		t.Error(verdict, err)
	}
}

// With a TTL of 30 s a waiter looks by itself every 10 s: a waiter that is there within 2 s was
// woken.
const woken = 2 * time.Second

func TestProcessesAreServedInOrderAndWoken(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	s := open(t, e, 30*time.Second)
	held := mutex("order/42", "first")
	last := sessiontest.Hold(t, s, held)
	var all []*process
	for i := range 4 {
		p := start(t, path, 30*time.Second)
		p.do("enter order/42 claim-%d", i)
		p.expect("waiting")
		p.do("await order/42 claim-%d", i)
		all = append(all, p)
	}
	begun := time.Now()
	sessiontest.Leave(t, s, held)
	for i, p := range all {
		token := p.expect("granted ")
		if took := time.Since(begun); took > woken {
			t.Errorf("process %d was woken after %v", i, took)
		} else {
			t.Logf("handed to process %d after %v", i, took)
		}
		if next, err := fence.ParseToken(token); err != nil || next <= last {
			t.Errorf("token of process %d is %s after %d", i, token, last)
		} else {
			last = next
		}
		for _, waiting := range all[i+1:] {
			waiting.silent()
		}
		begun = time.Now()
		p.do("leave order/42 claim-%d", i)
		p.expect("left <nil>")
	}
}

func TestProcessHandsToThisOne(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	s := open(t, e, 30*time.Second)
	p := start(t, path, 30*time.Second)
	for i := range 20 { // one inbox, many messages
		p.do("enter job theirs-%d", i)
		p.expect("granted ")
		mine := mutex("job", fmt.Sprint("mine-", i))
		sessiontest.Wait(t, s, mine)
		got := sessiontest.Awaiting(t, s, mine)
		p.do("leave job theirs-%d", i)
		begun := time.Now()
		p.expect("left <nil>")
		if took := sessiontest.Granted(t, got).At.Sub(begun); took > woken {
			t.Fatalf("round %d: after %v", i, took)
		}
		sessiontest.Leave(t, s, mine)
	}
}

func TestKilledHolder(t *testing.T) {
	const ttl = time.Second
	path := file(t)
	e := newEngine(t, path)
	holder, waiter := start(t, path, ttl), start(t, path, ttl)
	holder.do("enter job a")
	before := holder.expect("granted ")
	holder.do("enter untouched z") // nobody will ever ask for this one
	holder.expect("granted ")
	waiter.do("enter job b")
	waiter.expect("waiting")
	waiter.do("await job b")

	s := open(t, e, 30*time.Second)
	mine := mutex("job", "c")
	sessiontest.Wait(t, s, mine)
	got := sessiontest.Awaiting(t, s, mine)
	killed := time.Now()
	waiter.kill() // a dead waiter does not hold up the queue
	holder.kill()
	r := sessiontest.Granted(t, got)
	if took := r.At.Sub(killed); took > ttl+time.Second {
		t.Fatalf("after %v", took)
	}
	if token := r.Token.String(); token <= before {
		t.Errorf("token %s after %s", token, before)
	}
	if _, err := s.Renew(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	sessiontest.Leave(t, s, mine)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rows(t, e); n != 0 {
		t.Errorf("%d rows or inboxes are left", n)
	}
}

func TestFrozenHolderLearnsOfItsLoss(t *testing.T) {
	const ttl = 500 * time.Millisecond
	path := file(t)
	e := newEngine(t, path)
	p := start(t, path, ttl)
	p.do("enter job a")
	p.expect("granted ")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s := open(t, e, 30*time.Second)
	mine := mutex("job", "b")
	sessiontest.Enter(t, s, mine)
	sessiontest.Await(t, s, mine)
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.do("leave job a")
	p.until("left leave: gone")
	p.do("enter job c")
	p.until("error enter: session: gone")
}

func TestEvictionReachesTheOtherProcess(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	s := open(t, e, 30*time.Second)
	p := start(t, path, 30*time.Second)
	p.do("enter job held")
	p.expect("granted ")
	p.do("enter job waiting")
	p.expect("waiting")
	p.do("await job waiting")
	begun := time.Now()
	if err := s.Leave(t.Context(), "job", "waiting"); err != nil {
		t.Fatal(err)
	}
	p.expect("error await: gone")
	if err := s.Leave(t.Context(), "job", "held"); err != nil {
		t.Fatal(err)
	}
	p.expect("told held")
	if took := time.Since(begun); took > woken {
		t.Errorf("took %v", took)
	}
}

func TestWatchAcrossProcesses(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	p := start(t, path, 30*time.Second)
	seen := make(chan engine.Value, 1)
	go func() {
		v, err := e.Watch(t.Context(), "leader", 0)
		if err != nil {
			t.Error(err)
		}
		seen <- v
	}()
	p.do("put leader me 0")
	p.expect("put <nil>")
	if v := <-seen; string(v.Data) != "me" {
		t.Errorf("saw %q", v.Data)
	}
	v, err := e.Get(t.Context(), "leader")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(t.Context(), "leader", nil, v.Version); err != nil {
		t.Fatal(err)
	}
}

func TestFirstOpenByManyAtOnce(t *testing.T) {
	for range 10 {
		path := file(t)
		var all []*process
		errs := make(chan error, 6)
		for range cap(errs) {
			go func() {
				e, err := New(t.Context(), path, nil)
				if err == nil {
					err = e.Close()
				}
				errs <- err
			}()
		}
		for range 2 {
			all = append(all, start(t, path, time.Second)) // fails the test itself
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		for _, p := range all {
			p.end()
		}
	}
}

// A process that is stopped while it writes stops the others, but not beyond their ctx.
func TestWaitForTheWriteLockEndsWithContext(t *testing.T) {
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	s := open(t, e, 30*time.Second)
	update(t, other, `BEGIN IMMEDIATE`)
	ctx, cancel := contextFor(t, 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := s.Enter(ctx, mutex("job", "a"), true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("enter: %v", err)
	}
	if took := time.Since(begun); took > 500*time.Millisecond {
		t.Errorf("took %v", took)
	}
	update(t, other, `ROLLBACK`)
	sessiontest.Hold(t, s, mutex("job", "b")) // the claim that was given up is not in the store
}

// SQLite gives up on a lock after a while. The engine does not, within ctx.
func TestBusyIsTriedAgain(t *testing.T) {
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	s := open(t, e, 30*time.Second)
	update(t, e, `PRAGMA busy_timeout = 1`)
	update(t, other, `BEGIN IMMEDIATE`)
	entered := make(chan error)
	go func() {
		_, err := s.Enter(t.Context(), mutex("job", "a"), true)
		entered <- err
	}()
	select {
	case err := <-entered:
		t.Errorf("entered against the lock: %v", err)
	case <-time.After(100 * time.Millisecond): // SQLite has given up many times
	}
	update(t, other, `ROLLBACK`)
	if err := <-entered; err != nil {
		t.Error(err)
	}
}

// A transaction that its context ends is undone: it stops nobody.
func TestVerbsThatAreGivenUp(t *testing.T) {
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	s, witness := open(t, e, 30*time.Second), open(t, other, 30*time.Second)
	var tasks sync.WaitGroup
	for g := range 4 {
		tasks.Go(func() {
			for i := range 100 {
				ctx, cancel := contextFor(t, rand.N(400*time.Microsecond))
				c := mutex("job", fmt.Sprint(g, "-", i))
				_, err := s.Enter(ctx, c, true)
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				if err := s.Leave(t.Context(), "job", c.ID); err != nil && !errors.Is(err, engine.ErrGone) {
					t.Error(err)
				}
			}
		})
	}
	tasks.Wait()
	sessiontest.Hold(t, witness, mutex("job", "last")) // nothing is left
}
