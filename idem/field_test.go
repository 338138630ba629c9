package idem_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/faulty"
)

// The tests of this file are mistakes of others in the field, each named by its report.

// TestLiveClaimIsNotReclaimed: aws-powertools/powertools-lambda-python#8386 took a live record without a deadline
// for an orphan, and ran twice. Here a claim lives as long as its worker, however long that is.
func TestLiveClaimIsNotReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := idem.NewLeases(party(t, eng), &idem.LeaseOptions{Expiry: time.Minute}), idem.NewLeases(party(t, eng), nil)
		c := begin(t, a)
		<-time.After(48 * time.Hour)
		if e, found, err := b.Show(t.Context(), pay); !found || err != nil || e.Expires.After(time.Now()) || e.Holder == nil {
			t.Errorf("%+v, %v, %v: want the worker of a record that has expired", e, found, err)
		}
		_, err := b.Begin(t.Context(), pay, print, &idem.BeginOptions{NoWait: true})
		wantErr(t, err, idem.ErrInFlight)
		_, err = idem.Once(t.Context(), b, pay, print)
		wantErr(t, err, idem.ErrInFlight)
		wantErr(t, b.Forget(t.Context(), pay), idem.ErrInFlight)
		if n, err := b.Sweep(t.Context()); n != 0 || err != nil {
			t.Errorf("%d swept, %v", n, err)
		}
		noErr(t, c.Complete(t.Context(), []byte("paid")))
		wantKept(t, b, "paid")
	})
}

// TestCompletionKeepsTheFingerprint: in powertools-lambda-typescript#5705 the write of the result dropped the hash
// of the payload, so every repeat failed; or passed with any payload.
func TestCompletionKeepsTheFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		l, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		c := begin(t, l)
		noErr(t, c.Reach(t.Context(), "a", nil))
		_, err := l.Begin(t.Context(), pay, other, &idem.BeginOptions{NoWait: true})
		wantErr(t, err, idem.ErrReused)
		crash(t, eng, b, pay)
		_, err = b.Begin(t.Context(), pay, other, nil)
		wantErr(t, err, idem.ErrReused)
		c, err = b.Begin(t.Context(), pay, idem.Fingerprint{}, nil) // a caller that does not compare
		noErr(t, err)
		noErr(t, c.Complete(t.Context(), []byte("paid")))
		_, err = l.Begin(t.Context(), pay, other, nil)
		wantErr(t, err, idem.ErrReused)
		_, err = idem.Once(t.Context(), l, pay, other)
		wantErr(t, err, idem.ErrReused)
		wantKept(t, l, "paid")
	})
}

// TestNobodyEndsTheWorkOfOthers: the _update_record and _delete_record of powertools name no owner, so a late worker
// writes over the record of the next one, or removes it.
func TestNobodyEndsTheWorkOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		for _, end := range []func(late *idem.Claim) error{
			func(late *idem.Claim) error { return late.Complete(t.Context(), []byte("late")) },
			func(late *idem.Claim) error { return late.Abort(t.Context()) },
			func(late *idem.Claim) error { return late.Reach(t.Context(), "late", nil) },
		} {
			late := begin(t, a)
			crash(t, eng, b, pay)
			next := begin(t, b)
			wantErr(t, end(late), idem.ErrTakenOver)
			if e, found, err := b.Show(t.Context(), pay); err != nil || !found || e.State != idem.Claimed || e.Token != next.Token() || len(e.Points) > 0 {
				t.Errorf("the record is %+v, %v, %v", e, found, err)
			}
			noErr(t, next.Complete(t.Context(), []byte("paid")))
			noErr(t, late.Abort(t.Context()))
			wantKept(t, a, "paid")
			noErr(t, a.Forget(t.Context(), pay))
		}
	})
}

// TestForgottenKeyIsNotCompleted: an operator has removed the key below a frozen worker. That worker's result does not come
// back, because nobody compares fingerprints with it any more.
func TestForgottenKeyIsNotCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		late := begin(t, a)
		crash(t, eng, b, pay)
		noErr(t, b.Forget(t.Context(), pay))
		wantErr(t, late.Complete(t.Context(), []byte("late")), idem.ErrTakenOver)
		if _, found, err := b.Show(t.Context(), pay); found || err != nil {
			t.Errorf("the key is there: %v", err)
		}
	})
}

// TestStoreDownIsRefused: aura-vault#581 let requests through while its store was away. Here no claim is given then.
func TestStoreDownIsRefused(t *testing.T) {
	for _, verbs := range [][]string{{faulty.Get}, {faulty.Put}, {faulty.Enter}} {
		for _, fault := range []faulty.Fault{faulty.Fails, faulty.Hangs} {
			synctest.Test(t, func(t *testing.T) {
				store := faulty.New(memengine.New())
				client := party(t, engine.Like(store.Engine, store))
				l := idem.NewLeases(client, nil)
				store.Set(fault, verbs...)
				began := time.Now()
				if c, err := l.Begin(t.Context(), pay, print, nil); c != nil || !errors.Is(err, pawl.ErrUnavailable) {
					t.Errorf("%q: %v, %v", verbs, c, err)
				}
				if took := time.Since(began); took > 4*client.TTL() {
					t.Errorf("%q: refused after %v", verbs, took)
				}
				if first, err := idem.Once(t.Context(), l, idem.Key{Scope: "once", ID: "a"}, print); verbs[0] == faulty.Put && (first || !errors.Is(err, pawl.ErrUnavailable)) {
					t.Errorf("once: %v, %v", first, err)
				}
				store.Set(nil, verbs...)
				noErr(t, begin(t, l).Complete(t.Context(), nil))
			})
		}
	}
}

// TestCrashAfterTheEffect: adcp-client#569 runs an operation again when its worker dies between the effect and the
// answer. That is so here too, and Attempts says it. Only an effect that records the key is applied once.
func TestCrashAfterTheEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		bare, recorded := 0, make(map[idem.Key]bool)
		effect := func(c *idem.Claim) { bare++; recorded[c.Key()] = true }
		effect(begin(t, a))
		crash(t, eng, b, pay)
		next := begin(t, b)
		if next.Attempts() != 2 {
			t.Errorf("attempt %d: nothing says that the effect may have happened", next.Attempts())
		}
		effect(next)
		noErr(t, next.Complete(t.Context(), nil))
		if bare != 2 || len(recorded) != 1 {
			t.Errorf("%d bare effects, %d recorded", bare, len(recorded))
		}
	})
}

// TestKeysOfOthers: a key that a client has guessed is another key in the scope of another client.
func TestKeysOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := idem.NewLeases(party(t, memengine.New()), nil)
		noErr(t, begin(t, l).Complete(t.Context(), []byte("secret")))
		c, err := l.Begin(t.Context(), idem.Key{Scope: "pay/user-8", ID: pay.ID}, print, nil)
		if noErr(t, err); c.Attempts() != 1 {
			t.Error("the result of another client is seen")
		}
		noErr(t, c.Abort(t.Context()))
	})
}

// TestOnce: of many calls one is the first. A caller that dies leaves the key used, until it expires or an operator
// gives it back.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		var firsts atomic.Int64
		var group sync.WaitGroup
		for range 3 {
			l := idem.NewLeases(party(t, eng), nil)
			for range 10 {
				group.Go(func() {
					first, err := idem.Once(t.Context(), l, pay, print)
					if err != nil {
						t.Error(err)
					}
					if first {
						firsts.Add(1) // and now it dies, before the effect
					}
				})
			}
		}
		group.Wait()
		l := idem.NewLeases(party(t, eng), nil)
		if firsts.Load() != 1 {
			t.Errorf("%d calls are the first", firsts.Load())
		}
		if e, found, err := l.Show(t.Context(), pay); err != nil || !found || e.State != idem.Used || e.Holder != nil {
			t.Errorf("the dead caller left %+v, %v, %v", e, found, err)
		}
		if c := begin(t, l); c.Attempts() != 1 {
			t.Error("a key of Once is begun")
		} else if result, kept := c.Kept(); !kept || len(result) != 0 {
			t.Errorf("a key of Once has the result %q, %v", result, kept)
		}
		noErr(t, l.Forget(t.Context(), pay))
		if first, err := idem.Once(t.Context(), l, pay, print); !first || err != nil {
			t.Errorf("after an operator gave it back: %v, %v", first, err)
		}
		<-time.After(idem.DefaultExpiry)
		if first, err := idem.Once(t.Context(), l, pay, print); !first || err != nil {
			t.Errorf("after it expired: %v, %v", first, err)
		}
	})
}

// TestOnceOverBegin: a key of Begin that has expired is free for Once when its worker is dead, also before a sweep. A worker that goes on keeps the key.
func TestOnceOverBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, l := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		inFlight := func(while string) {
			t.Helper()
			if first, err := idem.Once(t.Context(), l, pay, print); first || !errors.Is(err, idem.ErrInFlight) {
				t.Errorf("while %s: %v, %v", while, first, err)
			}
		}
		late := begin(t, a)
		inFlight("a worker works")
		<-time.After(idem.DefaultExpiry)
		inFlight("a worker works on an expired key")
		noErr(t, late.Reach(t.Context(), "reserved", nil))
		crash(t, eng, l, pay)
		inFlight("the key of a dead worker is kept")
		<-time.After(idem.DefaultExpiry)
		if first, err := idem.Once(t.Context(), l, pay, other); !first || err != nil {
			t.Errorf("the expired key of a dead worker: %v, %v", first, err)
		}
		if first, err := idem.Once(t.Context(), l, pay, other); first || err != nil {
			t.Errorf("the second call: %v, %v", first, err)
		}
		wantErr(t, late.Complete(t.Context(), []byte("late")), idem.ErrTakenOver)
		if e, found, err := l.Show(t.Context(), pay); err != nil || !found || e.State != idem.Used || e.Attempts != 1 || len(e.Points) > 0 {
			t.Errorf("the record is %+v, %v, %v", e, found, err)
		}
		noErr(t, l.Forget(t.Context(), pay)) // so Once has given the lock back
	})
}
