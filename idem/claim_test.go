package idem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/faulty"
)

// party returns a client of the store, which is closed at the end of the test.
func party(t *testing.T, eng engine.Engine) *pawl.Client {
	t.Helper()
	c, err := pawl.New(t.Context(), eng, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

var (
	pay   = idem.Key{Scope: "pay/user-7", ID: "a"}
	print = idem.FingerprintOf([]byte("5 EUR"))
	other = idem.FingerprintOf([]byte("6 EUR"))
)

// begin claims the key pay.
func begin(t *testing.T, l *idem.Leases) *idem.Claim {
	t.Helper()
	c, err := l.Begin(t.Context(), pay, print, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestGrace: a store that was restarted and grants nothing yet is not another caller that works on the key.
func TestGrace(t *testing.T) {
	store := faulty.New(memengine.New())
	l := idem.NewLeases(party(t, store), nil)
	store.Set(func(context.Context, func(context.Context) error) error {
		return &engine.GraceError{Grace: engine.Grace{Age: time.Second, Left: time.Minute}}
	}, faulty.Enter)
	_, err := l.Begin(t.Context(), pay, print, &idem.BeginOptions{NoWait: true})
	if !errors.Is(err, pawl.ErrGrace) || errors.Is(err, idem.ErrInFlight) {
		t.Error(err)
	}
}

// TestRepeat: the second call gets the result of the first, also as a caller that waited.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		l := idem.NewLeases(party(t, eng), nil)
		first := begin(t, l)
		if _, kept := first.Kept(); kept || first.Token() == 0 || first.Attempts() != 1 {
			t.Errorf("the first claim: %v, %d, %d", kept, first.Token(), first.Attempts())
		}
		waited := make(chan *idem.Claim)
		go func() { waited <- begin(t, idem.NewLeases(party(t, eng), nil)) }()
		synctest.Wait()
		<-time.After(time.Minute)
		var flight *idem.InFlightError
		if _, err := l.Begin(t.Context(), pay, print, &idem.BeginOptions{NoWait: true}); !errors.Is(err, idem.ErrInFlight) || !errors.As(err, &flight) || flight.Held != time.Minute {
			t.Errorf("a call that does not wait: %v", err)
		}
		if err := first.Complete(t.Context(), []byte("paid")); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*idem.Claim{<-waited, begin(t, l)} {
			if result, kept := c.Kept(); !kept || string(result) != "paid" {
				t.Errorf("a repeat has %q, %v", result, kept)
			}
			if c.Lease() != nil || c.Token() != 0 || c.Err() == nil {
				t.Errorf("a repeat holds %v, token %d, %v", c.Lease(), c.Token(), c.Err())
			}
		}
		if _, err := l.Begin(t.Context(), pay, other, nil); !errors.Is(err, idem.ErrReused) {
			t.Errorf("another request with the key: %v", err)
		}
		<-time.After(idem.DefaultExpiry)
		if c := begin(t, l); c.Attempts() != 1 {
			t.Error("the key is not forgotten")
		}
	})
}

// crash ends the session of the holder of a key in the store, and the holder does not notice.
func crash(t *testing.T, eng *memengine.Engine, l *idem.Leases, key idem.Key) {
	t.Helper()
	e, found, err := l.Show(t.Context(), key)
	if err != nil || !found || e.Holder == nil {
		t.Fatalf("%+v, %v, %v", e, found, err)
	}
	eng.Expire(e.Holder.Session)
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, is := range want {
		if !errors.Is(err, is) {
			t.Errorf("the error is %v: want %v", err, is)
		}
	}
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKept(t *testing.T, l *idem.Leases, want string) {
	t.Helper()
	if result, kept := begin(t, l).Kept(); !kept || string(result) != want {
		t.Errorf("kept is %.60q, %v: want %.60q", result, kept, want)
	}
}

// TestTakeOver: the key of a dead worker passes on with a larger token and its points, and the late
// worker is refused.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		late := begin(t, a)
		noErr(t, late.Reach(t.Context(), "reserved", []byte("room 7")))
		crash(t, eng, b, pay)
		next := begin(t, b)
		if next.Token() <= late.Token() || next.Attempts() != 2 {
			t.Errorf("token %d after %d, attempt %d", next.Token(), late.Token(), next.Attempts())
		}
		if data, reached := next.Point("reserved"); !reached || string(data) != "room 7" {
			t.Errorf("the point has %q, %v", data, reached)
		}
		if _, reached := next.Point("charged"); reached {
			t.Error("a point is reached that nobody reached")
		}
		wantErr(t, late.Complete(t.Context(), []byte("late")), idem.ErrTakenOver)
		wantErr(t, late.Complete(t.Context(), []byte("late")), idem.ErrTakenOver)
		wantErr(t, late.Reach(t.Context(), "charged", nil), idem.ErrTakenOver)
		noErr(t, late.Abort(t.Context()))
		noErr(t, next.Reach(t.Context(), "charged", nil))
		noErr(t, next.Complete(t.Context(), []byte("paid")))
		wantKept(t, a, "paid")
	})
}

// TestLeaseLost: the claim's context ends with the lease. If nobody took the key over, the result
// of the effect is kept all the same.
func TestLeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		c := begin(t, a)
		crash(t, eng, b, pay)
		<-c.Context().Done()
		wantErr(t, context.Cause(c.Context()), pawl.ErrLost)
		wantErr(t, c.Err(), pawl.ErrLost)
		noErr(t, c.Complete(t.Context(), []byte("paid")))
		wantKept(t, b, "paid")
	})
}

// TestAbort: the next caller begins at once. That caller begins anew only if there is nothing to know.
func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		l, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		noErr(t, begin(t, l).Abort(t.Context()))
		if _, found, err := l.Show(t.Context(), pay); found || err != nil {
			t.Errorf("the key is not forgotten: %v", err)
		}
		c := begin(t, l)
		noErr(t, c.Reach(t.Context(), "reserved", nil))
		noErr(t, c.Abort(t.Context()))
		noErr(t, c.Abort(t.Context()))
		wantErr(t, c.Complete(t.Context(), nil), pawl.ErrClosed)
		_, err := l.Begin(t.Context(), pay, other, nil)
		wantErr(t, err, idem.ErrReused)
		next := begin(t, l)
		if _, reached := next.Point("reserved"); !reached || next.Attempts() != 2 {
			t.Errorf("the point is lost, attempt %d", next.Attempts())
		}
		noErr(t, l.Forget(t.Context(), idem.Key{Scope: "x", ID: "y"}))
		wantErr(t, l.Forget(t.Context(), pay), idem.ErrInFlight)
		noErr(t, next.Abort(t.Context()))
		noErr(t, l.Forget(t.Context(), pay))
		begin(t, l)
		crash(t, eng, b, pay)
		noErr(t, begin(t, b).Abort(t.Context()))
		if c := begin(t, b); c.Attempts() != 3 {
			t.Errorf("attempt %d: that a worker died is forgotten", c.Attempts())
		}
	})
}

// TestBeginIsCut: a caller whose context ends while its claim is written leaves no attempt, because no
// work has begun.
func TestBeginIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		store := faulty.New(eng)
		l := idem.NewLeases(party(t, engine.Like(eng, store)), nil)
		store.Set(faulty.First(1, faulty.RepliesLate(time.Second), nil), faulty.Put)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.Begin(ctx, pay, print, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Begin: %v", err)
		}
		if c := begin(t, l); c.Attempts() != 1 {
			t.Errorf("attempt %d, although no earlier work has begun", c.Attempts())
		}
	})
}

// TestLostReplies: an outcome that is unknown is read again.
func TestLostReplies(t *testing.T) {
	for _, fault := range []faulty.Fault{faulty.LosesReply, faulty.Fails, faulty.Strays(time.Millisecond), faulty.Strays(time.Minute)} {
		synctest.Test(t, func(t *testing.T) {
			eng := memengine.New()
			store := faulty.New(eng)
			once := func() { store.Set(faulty.First(1, fault, nil), faulty.Put) }
			l := idem.NewLeases(party(t, engine.Like(eng, store)), nil)
			once()
			c := begin(t, l)
			once()
			noErr(t, c.Reach(t.Context(), "reserved", []byte("7")))
			once()
			noErr(t, c.Complete(t.Context(), []byte("paid")))
			wantKept(t, l, "paid")
			<-time.After(2 * time.Minute) // all that strays has arrived
			wantKept(t, l, "paid")
			noErr(t, l.Forget(t.Context(), pay))
			c = begin(t, l)
			once()
			noErr(t, c.Abort(t.Context()))
			once()
			if first, err := idem.Once(t.Context(), l, pay, print); !first || err != nil {
				t.Errorf("once: %v, %v", first, err)
			}
			once()
			noErr(t, l.Forget(t.Context(), pay))
		})
	}
}

// TestStoreAway: Complete is repeated after an unknown outcome, and Abort removes nothing then.
func TestStoreAway(t *testing.T) {
	for name, fault := range map[string]faulty.Fault{"served": faulty.LosesReply, "not served": faulty.Hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				store := faulty.New(eng)
				l := idem.NewLeases(party(t, engine.Like(eng, store)), nil)
				for _, again := range []bool{true, false} {
					c := begin(t, l)
					store.Set(fault, faulty.Put)
					store.Set(faulty.Fails, faulty.Get)
					wantErr(t, c.Complete(t.Context(), []byte("paid")), pawl.ErrUnavailable)
					store.Set(nil, faulty.Put, faulty.Get)
					wantErr(t, c.Complete(t.Context(), []byte("other")), pawl.ErrInvalid)
					if again {
						noErr(t, c.Complete(t.Context(), []byte("paid")))
						wantKept(t, l, "paid")
						noErr(t, l.Forget(t.Context(), pay))
						continue
					}
					noErr(t, c.Abort(t.Context()))
					if next := begin(t, l); next.Attempts() != 2 {
						if _, kept := next.Kept(); !kept {
							t.Error("nothing tells of the effect that has happened")
						}
					}
				}
			})
		})
	}
}

// TestLargeResults: a result is up to a megabyte. A larger one is refused before anything is
// written, and its claim goes on.
func TestLargeResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		client := party(t, eng)
		l := idem.NewLeases(client, nil)
		for _, size := range []int{0, 1, 60 << 10, 60<<10 + 1, 300_000, idem.MaxResult} {
			result := strings.Repeat("\n", size)
			c := begin(t, l)
			wantErr(t, c.Complete(t.Context(), make([]byte, idem.MaxResult+1)), idem.ErrTooLarge)
			noErr(t, c.Complete(t.Context(), []byte(result)))
			wantKept(t, l, result)
			if e, found, err := l.Show(t.Context(), pay); err != nil || !found || string(e.Result) != result || e.Size != size {
				t.Errorf("shown with %d and %d bytes, %v, %v", e.Size, len(e.Result), found, err)
			}
			noErr(t, l.Forget(t.Context(), pay))
			wantValues(t, client, 0)
		}
	})
}

// wantValues counts the values that this package has in the store.
func wantValues(t *testing.T, c *pawl.Client, want int) {
	t.Helper()
	n := 0
	for _, err := range c.Scope("idem").Values(t.Context(), "") {
		noErr(t, err)
		n++
	}
	if n != want {
		t.Errorf("%d values are left, want %d", n, want)
	}
}

// TestDo: an error and a panic give the key back; a result is kept.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := idem.NewLeases(party(t, memengine.New()), nil)
		broken, runs := errors.New("broken"), 0
		do := func(fn func(context.Context, *idem.Claim) ([]byte, error)) ([]byte, bool, error) {
			return l.Do(t.Context(), pay, print, nil, fn)
		}
		_, _, err := do(func(context.Context, *idem.Claim) ([]byte, error) { return nil, broken })
		wantErr(t, err, broken)
		func() {
			defer func() { recover() }() //nolint:errcheck // it is ours
			do(func(context.Context, *idem.Claim) ([]byte, error) { panic(broken) })
		}()
		for i := range 3 {
			result, kept, err := do(func(ctx context.Context, c *idem.Claim) ([]byte, error) {
				runs++
				return []byte("paid"), ctx.Err()
			})
			if err != nil || string(result) != "paid" || kept != (i > 0) {
				t.Errorf("%q, %v, %v", result, kept, err)
			}
		}
		if runs != 1 {
			t.Errorf("it ran %d times", runs)
		}
	})
}

// TestBounds: a value out of range is refused by name, before the store is asked.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := party(t, memengine.New())
		l := idem.NewLeases(client, nil)
		for field, err := range map[string]error{
			"LeaseOptions.Expiry": second(idem.NewLeases(client, &idem.LeaseOptions{Expiry: time.Millisecond}).Begin(t.Context(), pay, print, nil)),
			"BeginOptions.Expiry": second(l.Begin(t.Context(), pay, print, &idem.BeginOptions{Expiry: idem.MaxExpiry + 1})),
			"LockOptions.Label":   second(l.Begin(t.Context(), pay, print, &idem.BeginOptions{Label: "\n"})),
			"Key.ID":              second(l.Begin(t.Context(), idem.Key{Scope: "a"}, print, nil)),
			"Key.Scope":           second(idem.Once(t.Context(), l, idem.Key{}, print)),
		} {
			if wantErr(t, err, pawl.ErrInvalid); !strings.Contains(err.Error(), field) {
				t.Errorf("%v does not name %s", err, field)
			}
		}
		c := begin(t, l)
		wantErr(t, c.Reach(t.Context(), "", nil), pawl.ErrInvalid)
		noErr(t, c.Reach(t.Context(), "a", make([]byte, idem.MaxPoints-1)))
		noErr(t, c.Reach(t.Context(), "a", []byte("again")))
		wantErr(t, c.Reach(t.Context(), "b", nil), pawl.ErrInvalid)
		noErr(t, c.Complete(t.Context(), nil))
	})
}

// TestPointsFit: points that take much room in JSON are refused by name, and the next claims fit beside the other points.
func TestPointsFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := idem.NewLeases(party(t, memengine.New()), nil)
		c := begin(t, l)
		var err error
		for i := 10; err == nil; i++ { // JSON writes each character in six bytes
			err = c.Reach(t.Context(), fmt.Sprint(i)+strings.Repeat("\x01", idem.MaxPart-2), nil)
		}
		if wantErr(t, err, pawl.ErrInvalid); !strings.Contains(err.Error(), "points") {
			t.Errorf("%v does not name the points", err)
		}
		for i, n := 10, idem.MaxPart-2; n > 0; i++ { // up to the last byte
			if c.Reach(t.Context(), fmt.Sprint(i)+strings.Repeat("x", n), nil) != nil {
				n--
			}
		}
		for attempt := 1; attempt < 12; attempt++ { // the numbers of a claim get longer
			noErr(t, c.Abort(t.Context()))
			c = begin(t, l)
		}
		noErr(t, c.Complete(t.Context(), []byte("paid")))
		wantKept(t, l, "paid")
	})
}

func second[T any](_ T, err error) error { return err }

// TestRequests: the requests that a claim and a repeat cost.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		store := faulty.New(eng)
		l := idem.NewLeases(party(t, engine.Like(eng, store)), nil)
		want := func(doing string, want ...int) {
			t.Helper()
			var got []int
			for _, verb := range []string{faulty.Get, faulty.Put, faulty.Enter, faulty.Leave} {
				got = append(got, len(store.Called(verb)))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v reads, writes, locks and releases, want %v", doing, got, want)
			}
		}
		c := begin(t, l)
		want("begin", 1, 1, 1, 0)
		noErr(t, c.Complete(t.Context(), []byte("paid")))
		want("complete", 1, 2, 1, 1)
		wantKept(t, l, "paid")
		want("repeat", 2, 2, 1, 1)
		if _, err := idem.Once(t.Context(), l, other7, print); err != nil {
			t.Error(err)
		}
		want("once", 2, 3, 1, 1)
	})
}

var other7 = idem.Key{Scope: "mail", ID: "7"}

// TestDoGivesTheKeyBack: the effect has happened when Complete fails. So Do neither keeps the key, which nobody could end,
// nor forgets it: the next caller is told of an earlier worker.
func TestDoGivesTheKeyBack(t *testing.T) {
	for _, test := range []struct {
		size  int
		fault faulty.Fault
		want  error
	}{{idem.MaxResult + 1, nil, idem.ErrTooLarge}, {1, faulty.Fails, pawl.ErrUnavailable}} {
		synctest.Test(t, func(t *testing.T) {
			store := faulty.New(memengine.New())
			l := idem.NewLeases(party(t, store), nil)
			_, _, err := l.Do(t.Context(), pay, print, nil, func(context.Context, *idem.Claim) ([]byte, error) {
				store.Set(test.fault, faulty.Put)
				return make([]byte, test.size), nil
			})
			wantErr(t, err, test.want)
			store.Heal()
			c, err := l.Begin(t.Context(), pay, print, &idem.BeginOptions{NoWait: true})
			noErr(t, err)
			if c.Attempts() != 2 {
				t.Errorf("the claim after %v is number %d", test.want, c.Attempts())
			}
		})
	}
}
