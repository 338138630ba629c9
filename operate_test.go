package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestShow: an operator reads the holders and waiters, their mode and their order.
func TestShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, &pawl.Options{Label: "worker"})
		operator := newClient(t, eng, &pawl.Options{Lazy: true})
		is, err := operator.Show(t.Context(), "m")
		if err != nil || is.Name != "m" || is.Kind != "" || len(is.Holders)+len(is.Waiters) != 0 {
			t.Errorf("a free name: %+v, %v", is, err)
		}
		_, err = operator.Show(t.Context(), "")
		wantErr(t, err, pawl.ErrInvalid)

		reader := mustLock(t, t.Context(), c.RWMutex("m").RLocker())
		writer := lockSoon(t.Context(), c.Mutex("m").With(pawl.LockOptions{Label: "writes"}))
		synctest.Wait()
		late := lockSoon(t.Context(), c.RWMutex("m").RLocker())
		synctest.Wait()
		pass(time.Second)
		is, err = operator.Show(t.Context(), "m")
		if err != nil || is.Kind != "lock" || is.Permits != 0 || len(is.Holders) != 1 || len(is.Waiters) != 2 {
			t.Fatalf("%+v, %v", is, err)
		}
		h, w := is.Holders[0], is.Waiters[0]
		if h.Label != "worker" || h.Token != reader.Token() || h.Owner != reader.Owner() || !h.Shared || h.Kept || h.Claim == "" || h.Age != time.Second {
			t.Errorf("holder %+v", h)
		}
		if w.Label != "writes" || w.Token != 0 || w.Shared || w.Held >= 0 || !is.Waiters[1].Shared {
			t.Errorf("waiters %+v", is.Waiters)
		}
		mustUnlock(t, reader)
		mustUnlock(t, (<-writer).lease)
		mustUnlock(t, (<-late).lease)

		s := mustLock(t, t.Context(), c.Semaphore("s", 3).Weighted(2))
		is, err = operator.Show(t.Context(), "s")
		if err != nil || is.Kind != "semaphore" || is.Permits != 3 || is.Holders[0].Permits != 2 || is.Holders[0].Shared {
			t.Errorf("%+v, %v", is, err)
		}
		mustUnlock(t, s)
	})
}

// TestListNames: every name in use comes once, although List asks for fewer at a time. A request
// that hangs ends List.
func TestListNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newFaultyStore(memengine.New())
		c := newClient(t, eng, nil)
		for i := range 100 {
			mustLock(t, t.Context(), c.Mutex(fmt.Sprintf("a/%d", i)))
		}
		mustLock(t, t.Context(), c.Mutex("b"))
		seen := make(map[string]int)
		for r, err := range c.List(t.Context(), "a/") {
			if err != nil || len(r.Holders) != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			seen[r.Name]++
		}
		if len(seen) != 100 {
			t.Errorf("%d names", len(seen))
		}
		for range c.List(t.Context(), "") { // leaves no goroutine behind, or synctest says so
			break
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 { // chance decides which goroutine is first
			var last error
			for _, err := range c.List(ctx, "") {
				last = err
			}
			wantErr(t, last, context.Canceled)
		}
	})
}

// muteStore tells no names.
type muteStore struct{ engine.Engine }

func (muteStore) List(ctx context.Context, _ string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		<-ctx.Done()
		yield("", ctx.Err())
	}
}

// searchingStore takes most of the time of a request for each step of a long search.
type searchingStore struct{ engine.Engine }

func (s searchingStore) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for range 10 {
			select {
			case <-ctx.Done():
				yield("", ctx.Err())
				return
			case <-time.After(900 * time.Millisecond):
			}
			if !yield("", nil) {
				return
			}
		}
		for name, err := range s.Engine.List(ctx, prefix) {
			if !yield(name, err) {
				return
			}
		}
	}
}

func (s searchingStore) Show(ctx context.Context, name string) (engine.Resource, error) {
	if name == "" {
		return engine.Resource{}, errors.New("there is no such name")
	}
	return s.Engine.Show(ctx, name)
}

// TestListOfSearchingStore: a store that searches for long is no store that does not answer.
func TestListOfSearchingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		l := mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m"))
		operator := newClient(t, searchingStore{eng}, &pawl.Options{Lazy: true, RequestTimeout: time.Second})
		var names []string
		for r, err := range operator.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, r.Name)
		}
		if len(names) != 1 || names[0] != "m" {
			t.Error(names)
		}
		mustUnlock(t, l)
	})
}

// TestListOfMuteStore: an answer is missing, which does not mean that nobody holds a lock.
func TestListOfMuteStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, muteStore{memengine.New()}, &pawl.Options{Lazy: true})
		for range 20 { // as above
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			var last error
			for _, err := range c.List(ctx, "") {
				last = err
			}
			cancel()
			wantErr(t, last, pawl.ErrUnavailable, context.DeadlineExceeded)
		}
	})
}

// TestBreak: an operator evicts by token, by claim or all. The store keeps the name of the operator
// and the reason.
func TestBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		operator := newClient(t, eng, &pawl.Options{Lazy: true, Label: "anna"})
		r := c.RWMutex("m").RLocker()
		one, two, three := mustLock(t, t.Context(), r), mustLock(t, t.Context(), r), mustLock(t, t.Context(), r)
		waiter := lockSoon(t.Context(), c.Mutex("m"))
		synctest.Wait()
		breaks := func(want int, opts pawl.BreakOptions) []pawl.Party {
			t.Helper()
			evicted, err := operator.Break(t.Context(), "m", opts)
			if err != nil || len(evicted) != want {
				t.Fatalf("evicted %+v, %v", evicted, err)
			}
			return evicted
		}
		if p := breaks(1, pawl.BreakOptions{Token: two.Token(), Reason: "stuck"}); p[0].Token != two.Token() {
			t.Errorf("evicted %+v", p)
		}
		<-two.Context().Done()
		wantErr(t, two.Err(), pawl.ErrLost)
		if cause := context.Cause(two.Context()); !strings.Contains(cause.Error(), "broken by anna: stuck") {
			t.Errorf("the holder is told: %v", cause)
		}
		if one.Err() != nil || three.Err() != nil {
			t.Error("others were evicted")
		}
		is, err := operator.Show(t.Context(), "m")
		if err != nil || is.Broken == nil || is.Broken.String() != "broken by anna: stuck" || is.Broken.Token != two.Token() {
			t.Fatalf("%+v, %v", is.Broken, err)
		}
		breaks(1, pawl.BreakOptions{Claim: is.Waiters[0].Claim, Label: "ben"})
		evicted := (<-waiter).err
		wantErr(t, evicted, pawl.ErrNotAcquired)
		if !strings.Contains(evicted.Error(), "broken by ben") {
			t.Errorf("the waiter is told: %v", evicted)
		}
		breaks(2, pawl.BreakOptions{})
		<-one.Context().Done()
		<-three.Context().Done()
		if err := three.Err(); !strings.Contains(err.Error(), "broken by anna") || strings.Contains(err.Error(), "stuck") {
			t.Errorf("the last holder is told: %v", err)
		}
		later := mustLock(t, t.Context(), c.Mutex("m")) // this holder does not end by that note
		breakLock(t, eng, "m")
		<-later.Context().Done()
		if err := later.Err(); strings.Contains(err.Error(), "anna") {
			t.Errorf("a later holder is told: %v", err)
		}
		breaks(0, pawl.BreakOptions{})
		for _, opts := range []pawl.BreakOptions{{Token: 1, Claim: "x"}, {Reason: "a\nb"}, {Label: "\x00"}} {
			_, err := operator.Break(t.Context(), "m", opts)
			wantErr(t, err, pawl.ErrInvalid)
		}
	})
}

// TestBreakUnnoted: a break leaves no note if the operator wants none.
func TestBreakUnnoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		held := mustLock(t, t.Context(), c.Mutex("m"))
		if evicted, err := c.Break(t.Context(), "m", pawl.BreakOptions{Unnoted: true}); err != nil || len(evicted) != 1 {
			t.Errorf("evicted %v, %v", evicted, err)
		}
		<-held.Context().Done()
		for name, err := range eng.ListValues(t.Context(), "") {
			t.Errorf("%s stays, %v", name, err)
		}
	})
}

// TestBreakWhenFull: an operator can break a lock also when the store has no room for the note.
func TestBreakWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newFaultyStore(memengine.New())
		c := newClient(t, eng, nil)
		held := mustLock(t, t.Context(), c.Mutex("m"))
		eng.set(fails, verbPut)
		evicted, err := c.Break(t.Context(), "m", pawl.BreakOptions{})
		wantErr(t, err, pawl.ErrUnavailable)
		if len(evicted) != 1 {
			t.Errorf("evicted %v", evicted)
		}
		<-held.Context().Done()
	})
}

// TestLazy: a program that only reads opens no session.
func TestLazy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newFaultyStore(memengine.New())
		c := newClient(t, eng, &pawl.Options{Lazy: true})
		if _, err := c.Show(t.Context(), "m"); err != nil {
			t.Error(err)
		}
		if n := len(eng.called(verbOpen)); n != 0 || c.Err() != nil {
			t.Errorf("%d sessions, %v", n, c.Err())
		}
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		if n := len(eng.called(verbOpen)); n != 1 {
			t.Errorf("%d sessions", n)
		}
		mustUnlock(t, lease)
	})
}

// TestClientErr: the client says whether it is well.
func TestClientErr(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newFaultyStore(memengine.New())
		c := newClient(t, eng, nil)
		held := mustLock(t, t.Context(), c.Mutex("m"))
		pass(time.Minute)
		if err := c.Err(); err != nil {
			t.Error(err)
		}
		eng.set(fails, verbRenew, verbOpen)
		pass(6 * time.Second)
		wantErr(t, c.Err(), pawl.ErrUnavailable)
		if err := held.Err(); err != nil || errors.Is(c.Err(), pawl.ErrLost) {
			t.Error(err, c.Err())
		}
		eng.set(nil, verbRenew)
		pass(6 * time.Second)
		if err := c.Err(); err != nil {
			t.Error(err)
		}
		eng.set(fails, verbRenew)
		<-held.Context().Done()
		wantErr(t, c.Err(), pawl.ErrLost)
		eng.set(nil, verbRenew, verbOpen)
		mustUnlock(t, mustLock(t, t.Context(), c.Mutex("n")))
		if err := c.Err(); err != nil {
			t.Error(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, c.Err(), pawl.ErrClosed)
	})
}

// farStore answers each Show after 2 ms.
type farStore struct{ engine.Engine }

func (f farStore) Show(ctx context.Context, name string) (engine.Resource, error) {
	pass(2 * time.Millisecond)
	return f.Engine.Show(ctx, name)
}

// TestListOfMany: to read many names of a distant store takes longer than one request may. The
// names come one after another.
func TestListOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const names = 1000
		eng := memengine.New()
		c := newClient(t, eng, nil)
		for i := range names {
			mustLock(t, t.Context(), c.Mutex(fmt.Sprint(i)))
		}
		operator := newClient(t, farStore{eng}, &pawl.Options{Lazy: true, TTL: 300 * time.Millisecond})
		n, began := 0, time.Now()
		for _, err := range operator.List(t.Context(), "") {
			noErr(t, err)
			if n++; n == 1 && time.Since(began) > 10*time.Millisecond {
				t.Errorf("the first came after %v", time.Since(began))
			}
		}
		if took := time.Since(began); n != names || took > names*2*time.Millisecond/10 {
			t.Errorf("%d names in %v", n, took)
		}
	})
}
