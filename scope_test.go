package pawl_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestScope: the names of a service are apart from those of users, and of any length.
func TestScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		s := c.Scope("work-x")
		long := strings.Repeat("é", 400)
		for _, name := range []string{"a", long} {
			m := s.Mutex(name)
			lease := mustLock(t, t.Context(), m)
			if !strings.HasPrefix(lease.Name(), "pawl:work-x/") || len(lease.Name()) > pawl.MaxName {
				t.Errorf("the lock is %q", lease.Name())
			}
			_, err := m.TryLock(lease.Context()) // takes no owner
			wantErr(t, err, pawl.ErrNotAcquired)
			mustUnlock(t, lease)
			_, err = s.Value(name).Put(t.Context(), []byte("x"), 0)
			noErr(t, err)
			if v, err := eng.Get(t.Context(), lease.Name()); err != nil || string(v.Data) != "x" {
				t.Errorf("the value of %q is %q, %v", lease.Name(), v.Data, err)
			}
		}
		if is, err := c.Value("a").Get(t.Context()); err != nil || is.Number != 0 {
			t.Errorf("the user's value is %+v, %v", is, err)
		}
		for _, kind := range []string{"", "a/b", "value", "election", "a\nb", strings.Repeat("x", pawl.MaxKind+1)} {
			wantErr(t, c.Scope(kind).Value("a").Err(), pawl.ErrInvalid)
			_, err := c.Scope(kind).Mutex("a").TryLock(t.Context())
			wantErr(t, err, pawl.ErrInvalid)
		}
		for _, name := range []string{"", "a\nb", "\xff"} {
			wantErr(t, s.Value(name).Err(), pawl.ErrInvalid)
		}
		noErr(t, s.Value("a").Err())
	})
}

// TestScopeValues: the values of a service are listed, and no others.
func TestScopeValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		s := c.Scope("work-x")
		for _, v := range []*pawl.Value{s.Value("a/1"), s.Value("a/2"), s.Value("b"), c.Value("a/3"), c.Scope("work").Value("a/4")} {
			_, err := v.Put(t.Context(), []byte("x"), 0)
			noErr(t, err)
		}
		mustLock(t, t.Context(), s.Mutex("a/5"))
		list := func(s *pawl.Scope, prefix string) (names []string, err error) {
			for name, err := range s.Values(t.Context(), prefix) {
				if err != nil {
					return names, err
				}
				names = append(names, name)
			}
			slices.Sort(names)
			return names, nil
		}
		for prefix, want := range map[string][]string{"": {"a/1", "a/2", "b"}, "a/": {"a/1", "a/2"}, "x": nil} {
			if got, err := list(s, prefix); err != nil || !slices.Equal(got, want) {
				t.Errorf("with prefix %q: %q, %v", prefix, got, err)
			}
		}
		for range s.Values(t.Context(), "") {
			break
		}
		_, err := list(c.Scope("value"), "")
		wantErr(t, err, pawl.ErrInvalid)
		noErr(t, c.Close(t.Context()))
		_, err = list(s, "")
		wantErr(t, err, pawl.ErrClosed)
	})
}

// TestRetry: Retry goes on for as long as it may, and returns why it ended.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), &pawl.Options{TTL: 6 * time.Second})
		if c.TTL() != 6*time.Second {
			t.Errorf("the TTL is %v", c.TTL())
		}
		calls := 0
		down := func() error { calls++; return pawl.Unavailable(context.Background(), errTrouble) }
		noErr(t, c.Retry(t.Context(), 0, func() error {
			if calls < 100 {
				return down()
			}
			return nil
		}))
		began := time.Now()
		err := c.Retry(t.Context(), time.Minute, down)
		wantErr(t, err, pawl.ErrUnavailable, errTrouble)
		if took := time.Since(began); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("gave up after %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		wantErr(t, c.Retry(ctx, 0, down), pawl.ErrUnavailable, context.DeadlineExceeded)
		calls = 0
		wantErr(t, c.Retry(t.Context(), 0, func() error { calls++; return pawl.ErrConflict }), pawl.ErrConflict)
		if calls != 1 {
			t.Errorf("retried %d times what retrying does not mend", calls-1)
		}
		time.AfterFunc(time.Second, func() { c.Close(context.Background()) })
		wantErr(t, c.Retry(t.Context(), 0, down), pawl.ErrClosed)
	})
}

// TestUnavailable: the class, the reason and the end of the ctx all match.
func TestUnavailable(t *testing.T) {
	if err := pawl.Unavailable(t.Context(), nil); err != nil {
		t.Error(err)
	}
	err := pawl.Unavailable(t.Context(), errTrouble)
	if wantErr(t, err, pawl.ErrUnavailable, errTrouble); errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	wantErr(t, pawl.Unavailable(ctx, err), pawl.ErrUnavailable, errTrouble, context.Canceled, why)
}

// TestKeep: the name stays taken for its time, also when the holder has left and its client is
// closed.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, other := newClient(t, eng, nil), newClient(t, eng, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		for _, d := range []time.Duration{0, time.Millisecond, 8 * 24 * time.Hour} {
			wantErr(t, lease.Keep(t.Context(), d), pawl.ErrInvalid)
		}
		noErr(t, lease.Err())
		began := time.Now()
		noErr(t, lease.Keep(t.Context(), 10*time.Minute))
		mustUnlock(t, lease)
		wantErr(t, lease.Keep(t.Context(), time.Minute), pawl.ErrClosed)
		noErr(t, c.Close(t.Context()))
		next := mustLock(t, t.Context(), other.Mutex("m"))
		if took := time.Since(began); took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("taken for %v", took)
		}
		mustUnlock(t, next)
	})
}

// TestNext: Next returns the next version, whenever that version comes, and ends with its ctx.
func TestNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		v := c.Value("v")
		one, err := v.Put(t.Context(), []byte("one"), 0)
		noErr(t, err)
		is, err := v.Next(t.Context(), 0)
		if noErr(t, err); is.Number != one.Number {
			t.Errorf("after none comes %+v", is)
		}
		time.AfterFunc(time.Hour, func() { v.Put(t.Context(), []byte("two"), one.Number) })
		if is, err = v.Next(t.Context(), one.Number); err != nil || string(is.Data) != "two" {
			t.Errorf("after one comes %q, %v", is.Data, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err = v.Next(ctx, is.Number)
		wantErr(t, err, context.DeadlineExceeded)
		_, err = c.Value("a\nb").Next(t.Context(), 0)
		wantErr(t, err, pawl.ErrInvalid)
		// With nothing to write, nothing is written, without an error.
		same, err := v.Update(t.Context(), func(pawl.Snapshot) ([]byte, error) { return nil, pawl.ErrUnchanged })
		if noErr(t, err); same.Number != is.Number || string(same.Data) != "two" {
			t.Errorf("unchanged: %+v", same)
		}
	})
}

// TestWithAdds: each With adds to the earlier options.
func TestWithAdds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		for name, l := range map[string]pawl.Locker{
			"mutex":     c.Mutex("mutex").With(pawl.LockOptions{Barging: true, Label: "first"}).With(pawl.LockOptions{MaxHold: time.Second, Label: "second"}).With(pawl.LockOptions{}),
			"semaphore": c.Semaphore("semaphore", 2).With(pawl.LockOptions{Barging: true, Label: "second"}).Weighted(2).With(pawl.LockOptions{MaxHold: time.Second}),
			"readers":   c.RWMutex("readers").With(pawl.LockOptions{Barging: true, MaxHold: time.Second}).With(pawl.LockOptions{Label: "second"}).RLocker(),
		} {
			lease := mustLock(t, t.Context(), l)
			if r := show(t, eng, name); !r.Barging || r.Claims[0].Label != "second" {
				t.Errorf("%s: %+v", name, r)
			}
			pass(2 * time.Second)
			wantErr(t, lease.Err(), pawl.ErrLost)
		}
		bad := c.Mutex("m").With(pawl.LockOptions{MaxHold: 1}).With(pawl.LockOptions{MaxHold: time.Second})
		_, err := bad.TryLock(t.Context())
		wantErr(t, err, pawl.ErrInvalid)
	})
}

// notOurs is a Locker of a user.
type notOurs struct{ pawl.Locker }

func TestLockAllOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		_, err := pawl.LockAll(t.Context(), c.Mutex("a"), notOurs{c.Mutex("b")})
		wantErr(t, err, pawl.ErrInvalid)
		wantFree(t, eng, "a")
	})
}
