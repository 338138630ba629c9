package sqliteengine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

func TestEnterIsIdempotent(t *testing.T) {
	e := newEngine(t, file(t))
	s := open(t, e, 30*time.Second)
	held, waiting := mutex("job", "a"), mutex("job", "b")
	first := sessiontest.Hold(t, s, held)
	if again := sessiontest.Hold(t, s, held); again != first {
		t.Errorf("granted %v, then %v", first, again)
	}
	sessiontest.Wait(t, s, waiting)
	sessiontest.Wait(t, s, waiting)
	r, err := e.Show(t.Context(), "job")
	if err != nil || len(r.Claims) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	sessiontest.Leave(t, s, held)
	if err := s.Leave(t.Context(), "job", "a"); !errors.Is(err, engine.ErrGone) {
		t.Errorf("second leave: %v", err)
	}
	if next := sessiontest.Hold(t, s, waiting); next <= first {
		t.Errorf("token %v after %v", next, first)
	}
}

func TestBusyAndMismatchStoreNothing(t *testing.T) {
	e := newEngine(t, file(t))
	s := open(t, e, 30*time.Second)
	sessiontest.Hold(t, s, mutex("job", "a"))
	sessiontest.Refuse(t, s, mutex("job", "b"), false, engine.ErrBusy)
	other := mutex("job", "c")
	other.Spec = engine.Spec{Kind: engine.KindSemaphore, Capacity: 3}
	other.Weight = 1
	sessiontest.Refuse(t, s, other, true, engine.ErrMismatch)
	r, err := e.Show(t.Context(), "job")
	if err != nil || len(r.Claims) != 1 || r.Kind != engine.KindLock || r.Capacity != engine.LockCapacity {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestReentrySharesTheGrant(t *testing.T) {
	e := newEngine(t, file(t))
	s := open(t, e, 30*time.Second)
	writer, reader := mutex("job", "a"), mutex("job", "b")
	reader.Owner, reader.Weight = writer.Owner, 1
	token := sessiontest.Hold(t, s, writer)
	if again := sessiontest.Hold(t, s, reader); again != token {
		t.Errorf("%v, then %v", token, again)
	}
	sessiontest.Leave(t, s, writer)
	sessiontest.Refuse(t, s, mutex("job", "c"), false, engine.ErrBusy) // the reader holds
}

func TestSemaphoreHandsOnToAllThatFit(t *testing.T) {
	e := newEngine(t, file(t))
	s := open(t, e, 30*time.Second)
	permits := func(id string, n int64) *engine.Claim {
		return &engine.Claim{Resource: "pool", ID: id, Owner: id, Weight: n, Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: 3}}
	}
	sessiontest.Hold(t, s, permits("all", 3))
	var results []<-chan sessiontest.Answer
	for _, c := range []*engine.Claim{permits("one", 1), permits("two", 2)} {
		sessiontest.Wait(t, s, c)
		results = append(results, sessiontest.Awaiting(t, s, c))
	}
	sessiontest.Leave(t, s, permits("all", 3))
	for _, got := range results {
		sessiontest.Granted(t, got)
	}
}

func TestBargingClaimIsToldAndTries(t *testing.T) {
	path := file(t)
	a, b := newEngine(t, path), newEngine(t, path)
	holder, waiter := open(t, a, 30*time.Second), open(t, b, 30*time.Second)
	barging := func(id string) *engine.Claim {
		c := mutex("job", id)
		c.Barging = true
		return c
	}
	sessiontest.Hold(t, holder, barging("held"))
	sessiontest.Wait(t, waiter, barging("waiting"))
	got := sessiontest.Awaiting(t, waiter, barging("waiting"))
	for i := range 20 { // the running client may overtake, and the other is told each time
		sessiontest.Leave(t, holder, barging(fmt.Sprintf("held%.*d", min(i, 1), i)))
		select {
		case r := <-got:
			if r.Err != nil || !r.Held() {
				t.Errorf("%+v", r)
			}
			return
		default:
		}
		g, err := holder.Enter(t.Context(), barging(fmt.Sprint("held", i+1)), false)
		if errors.Is(err, engine.ErrBusy) || (err == nil && !g.Held()) {
			break // the other has it
		}
		if err != nil {
			t.Fatal(err)
		}
		if i == 19 {
			sessiontest.Leave(t, holder, barging("held20"))
		}
	}
	sessiontest.Granted(t, got)
}

func TestExpiredSessionNeverRevives(t *testing.T) {
	e := newEngine(t, file(t))
	dead, alive := open(t, e, 30*time.Second), open(t, e, 30*time.Second)
	held, waiting := mutex("job", "a"), mutex("job", "b")
	before := sessiontest.Hold(t, dead, held)
	sessiontest.Wait(t, dead, waiting)
	expire(t, e, dead.ID())
	for range 2 {
		if _, err := dead.Renew(t.Context(), []*engine.Claim{held}); !errors.Is(err, engine.ErrGone) {
			t.Errorf("renew: %v", err)
		}
	}
	sessiontest.Refuse(t, dead, mutex("job", "c"), true, engine.ErrGone)
	if _, err := dead.Await(t.Context(), waiting); !errors.Is(err, engine.ErrGone) {
		t.Errorf("await: %v", err)
	}
	if next := sessiontest.Hold(t, alive, mutex("job", "d")); next <= before {
		t.Errorf("token %v after %v", next, before)
	}
}

func TestSessionEndsByItself(t *testing.T) {
	e := newEngine(t, file(t))
	short, s := open(t, e, time.Millisecond), open(t, e, 30*time.Second) // rounded up to MinTTL
	sessiontest.Hold(t, short, mutex("job", "a"))
	begun := time.Now()
	mine := mutex("job", "b")
	sessiontest.Enter(t, s, mine)
	sessiontest.Await(t, s, mine)
	if took := time.Since(begun); took > time.Second {
		t.Errorf("after %v", took)
	}
}

func TestRenewSaysWhatIsGone(t *testing.T) {
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	told := make(chan string, 1)
	s := openWith(t, e, engine.SessionOptions{TTL: 30 * time.Second, Gone: func(claim string) { told <- claim }})
	operator, neighbour := open(t, other, 30*time.Second), open(t, e, 30*time.Second)
	for i, by := range []engine.Session{operator, neighbour} {
		kept, lost := mutex(fmt.Sprint("kept", i), "k"+fmt.Sprint(i)), mutex("lost", "odd/id %"+fmt.Sprint(i))
		sessiontest.Hold(t, s, kept)
		sessiontest.Hold(t, s, lost)
		sessiontest.Leave(t, by, lost)
		if claim := <-told; claim != lost.ID {
			t.Errorf("told of %q", claim)
		}
		gone, err := s.Renew(t.Context(), []*engine.Claim{kept, lost})
		if err != nil || !slices.Equal(gone, []*engine.Claim{lost}) {
			t.Errorf("gone %v, %v", gone, err)
		}
	}
}

func TestCloseHandsOnAndLeavesNothing(t *testing.T) {
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	a, b := open(t, e, 30*time.Second), open(t, other, 30*time.Second)
	sessiontest.Hold(t, a, mutex("job", "a"))
	mine := mutex("job", "b")
	sessiontest.Wait(t, b, mine)
	got := sessiontest.Awaiting(t, b, mine)
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	sessiontest.Granted(t, got)
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rows(t, e); n != 0 {
		t.Errorf("%d rows or inboxes are left", n)
	}
}

func TestCloseFreesWhatIsHereWhateverTheStoreSays(t *testing.T) {
	e := newEngine(t, file(t))
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextFor(t, 0)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(pathOf(t, e).inbox(s.ID())); !os.IsNotExist(err) {
		t.Errorf("the inbox is there: %v", err)
	}
}

// Where there are no inboxes waiters poll.
func TestDeafSession(t *testing.T) {
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	if err := os.WriteFile(path+"-wake", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, e, time.Hour)
	holder := open(t, other, time.Hour)
	for i := range 3 {
		held, mine := mutex("job", fmt.Sprint("held", i)), mutex("job", fmt.Sprint("mine", i))
		sessiontest.Hold(t, holder, held)
		sessiontest.Wait(t, s, mine)
		got := sessiontest.Awaiting(t, s, mine)
		sessiontest.Leave(t, holder, held)
		sessiontest.Granted(t, got)
		sessiontest.Leave(t, s, mine)
	}
}

// TestDeafSessionBesideAnother: a session without an inbox polls also after a later session has got one.
func TestDeafSessionBesideAnother(t *testing.T) {
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	if err := os.WriteFile(path+"-wake", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, e, time.Hour)
	if err := os.Remove(path + "-wake"); err != nil {
		t.Fatal(err)
	}
	open(t, e, time.Hour)
	holder := open(t, other, time.Hour)
	held, mine := mutex("job", "held"), mutex("job", "mine")
	sessiontest.Hold(t, holder, held)
	sessiontest.Wait(t, s, mine)
	got := sessiontest.Awaiting(t, s, mine)
	sessiontest.Leave(t, holder, held)
	sessiontest.Granted(t, got)
}

func TestManyGoroutines(t *testing.T) {
	path := file(t)
	var held, cycles int
	var tasks sync.WaitGroup
	for range 3 {
		e := newEngine(t, path)
		s := open(t, e, 30*time.Second)
		for g := range 5 {
			tasks.Go(func() {
				for i := range 30 {
					c := mutex("job", fmt.Sprint(s.ID(), g, "-", i))
					grant, err := s.Enter(t.Context(), c, true)
					if err == nil && !grant.Held() {
						_, err = s.Await(t.Context(), c)
					}
					if err != nil {
						t.Error(err)
						return
					}
					held++ // the race detector and this number check the lock
					cycles += held
					held--
					if err := s.Leave(t.Context(), "job", c.ID); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	tasks.Wait()
	if cycles != 3*5*30 {
		t.Errorf("%d cycles", cycles)
	}
}

func TestListAndShow(t *testing.T) {
	e := newEngine(t, file(t))
	s := open(t, e, 30*time.Second)
	names := []string{"a/1", "a/2", "a/\U0010FFFFx", "a", "A/1", "b%_", "a/" + strings.Repeat("ü", 255)}
	for i, name := range names {
		sessiontest.Hold(t, s, mutex(name, fmt.Sprint("claim", i)))
		sessiontest.Wait(t, s, mutex(name, fmt.Sprint("waits", i)))
	}
	for prefix, want := range map[string]int{"": 7, "a": 5, "a/": 4, "A": 1, "b%": 1, "b_": 0, "c": 0} {
		seen := make(map[string]bool)
		for name, err := range e.List(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			r, err := e.Show(t.Context(), name) // inside the loop
			if err != nil || len(r.Claims) != 2 || r.Claims[0].Token == 0 || r.Claims[1].Token != 0 || r.Claims[0].Age < 0 ||
				r.Claims[0].Session != s.ID() || r.Claims[0].Label != "test" {
				t.Errorf("%+v, %v", r, err)
			}
			if seen[name] || !strings.HasPrefix(name, prefix) {
				t.Errorf("%q with prefix %q", name, prefix)
			}
			seen[name] = true
		}
		if len(seen) != want {
			t.Errorf("prefix %q: %d names, want %d", prefix, len(seen), want)
		}
	}
	expire(t, e, s.ID())
	for name, err := range e.List(t.Context(), "") {
		t.Errorf("%q, %v after the session ended", name, err)
	}
	if r, err := e.Show(t.Context(), "a"); err != nil || len(r.Claims) != 0 || r.Spec != (engine.Spec{}) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestValues(t *testing.T) {
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	put := func(data []byte, version uint64) uint64 {
		t.Helper()
		v, err := e.Put(t.Context(), "k", data, version)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v, err := e.Get(t.Context(), "k"); err != nil || v.Version != 0 || v.Data != nil {
		t.Errorf("%+v, %v", v, err)
	}
	big := bytes.Repeat([]byte{0, 255}, engine.MaxValue/2)
	first := put(big, 0)
	if v, err := other.Get(t.Context(), "k"); err != nil || v.Version != first || !bytes.Equal(v.Data, big) {
		t.Errorf("%d bytes, %v", len(v.Data), err)
	}
	for _, stale := range []uint64{0, first - 1, first + 1} {
		if _, err := other.Put(t.Context(), "k", nil, stale); !errors.Is(err, engine.ErrConflict) {
			t.Errorf("put at %d: %v", stale, err)
		}
	}
	seen := make(chan engine.Value)
	go func() {
		v, err := e.Watch(t.Context(), "k", first)
		if err != nil {
			t.Error(err)
		}
		seen <- v
	}()
	second := put([]byte{}, first)
	if v := <-seen; v.Version != second || len(v.Data) != 0 {
		t.Errorf("%+v", v)
	}
	if put(nil, second) != 0 {
		t.Error("a deleted value has a version")
	}
	if third := put([]byte("x"), 0); third <= second || second <= first {
		t.Errorf("versions %d, %d, %d", first, second, third)
	}
	ctx, cancel := contextFor(t, 20*time.Millisecond)
	defer cancel()
	if _, err := e.Watch(ctx, "none", 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("watch: %v", err)
	}
}

func TestEverythingIsPrivate(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := file(t)
	e := newEngine(t, path)
	s := open(t, e, 30*time.Second)
	sessiontest.Hold(t, s, mutex("job", "a"))
	newEngine(t, path) // the second finds it there
	want := map[string]os.FileMode{
		filepath.Dir(path): 0o700, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600,
		path + "-wake": 0o700, filepath.Join(path+"-wake", s.ID()): 0o600,
	}
	for name, mode := range want {
		info, err := os.Stat(name)
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v", filepath.Base(name), info.Mode())
		}
	}
}

func TestEngineOutlivesTheContextOfNew(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e, err := New(ctx, file(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	sessiontest.Hold(t, open(t, e, time.Hour), mutex("job", "a"))
}
