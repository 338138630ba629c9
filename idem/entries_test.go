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
)

// TestList: an operator sees the keys of a scope, how far each is, and its worker. Keys that have expired are listed while their workers work.
func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		l, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(party(t, eng), nil)
		long := idem.Key{Scope: "pay/user-7", ID: strings.Repeat("é", 120)}
		var claims []*idem.Claim
		for _, key := range []idem.Key{pay, long, {Scope: "pay/user-77", ID: "a"}, {Scope: "pay", ID: "user-7|a"}} {
			c, err := l.Begin(t.Context(), key, print, &idem.BeginOptions{Label: "the till"})
			noErr(t, err)
			noErr(t, c.Reach(t.Context(), "reserved", nil))
			claims = append(claims, c)
			if key == long {
				noErr(t, c.Complete(t.Context(), make([]byte, 200_000)))
			}
		}
		if _, err := idem.Once(t.Context(), l, idem.Key{Scope: "mail", ID: "1"}, print); err != nil {
			t.Fatal(err)
		}
		list := func(scope string) (found []string) {
			for e, err := range b.List(t.Context(), scope) {
				noErr(t, err)
				if e.State == idem.Claimed && (e.Holder == nil || e.Holder.Label != "the till" || e.Holder.Token != e.Token || !slices.Equal(e.Points, []string{"reserved"})) {
					t.Errorf("%+v", e)
				}
				found = append(found, fmt.Sprintf("%.20s %s %d", e.Key, e.State, e.Size))
			}
			slices.Sort(found)
			return found
		}
		if got, want := list("pay/user-7"), []string{"pay/user-7|a claimed 0", "pay/user-7|ééééééééé done 200000"}; !slices.Equal(got, want) {
			t.Errorf("listed %q", got)
		}
		if got := list(""); len(got) != 5 || !slices.Contains(got, "mail|1 used 0") {
			t.Errorf("listed %q", got)
		}
		for range b.List(t.Context(), "") {
			break
		}
		<-time.After(idem.DefaultExpiry)
		if got, want := list(""), []string{"pay/user-77|a claimed 0", "pay/user-7|a claimed 0", "pay|user-7|a claimed 0"}; !slices.Equal(got, want) {
			t.Errorf("listed %q, want %q: those with workers", got, want)
		}
		for _, c := range claims {
			noErr(t, c.Abort(t.Context())) // the point keeps the record
		}
		if got := list(""); len(got) > 0 {
			t.Errorf("%q are listed, and have expired", got)
		}
	})
}

// TestSweep: it removes expired keys, and the parts of results that no record names, and nothing
// else.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		client := party(t, eng)
		l, b := idem.NewLeases(party(t, eng), nil), idem.NewLeases(client, nil)
		large := make([]byte, 200_000) // in 4 parts
		sweep := func(want, left int) {
			t.Helper()
			if n, err := b.Sweep(t.Context()); n != want || err != nil {
				t.Errorf("%d keys are swept, %v: want %d", n, err, want)
			}
			wantValues(t, client, left)
		}
		noErr(t, begin(t, l).Complete(t.Context(), large))
		live, err := l.Begin(t.Context(), idem.Key{Scope: "a", ID: "live"}, print, nil)
		noErr(t, err)
		_, err = l.Begin(t.Context(), idem.Key{Scope: "a", ID: "later"}, print, &idem.BeginOptions{Expiry: 72 * time.Hour})
		noErr(t, err)
		wantValues(t, client, 1+4+1+1)
		sweep(0, 7)
		// The parts of a worker that died before its record named them.
		for i := range 4 {
			_, err := client.Scope("idem").Value(fmt.Sprintf("part/%s/AAAA/%d", pay.Name(), i)).Put(t.Context(), large[:10], 0)
			noErr(t, err)
		}
		sweep(0, 7)
		<-time.After(idem.DefaultExpiry)
		sweep(1, 2) // the record of the live one has expired, and stays
		noErr(t, live.Complete(t.Context(), large))
		sweep(0, 6)
		<-time.After(idem.DefaultExpiry)
		sweep(1, 1)
		crash(t, eng, b, idem.Key{Scope: "a", ID: "later"})
		noErr(t, begin(t, b).Complete(t.Context(), large))
		<-time.After(idem.DefaultExpiry)
		noErr(t, begin(t, b).Complete(t.Context(), nil)) // over a key that had parts
		sweep(1, 1)
		wantKept(t, b, "")
	})
}

// TestSweepGoesOn: a record of another program, or of a later version, holds up no sweep of other keys. The record
// and its parts stay.
func TestSweepGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := party(t, memengine.New())
		l := idem.NewLeases(client, nil)
		for name, data := range map[string]string{"key/a|bad": "x", "key/z|later": `{"v":2}`, "part/z|later/AAAA/0": "part", "part/y|gone/AAAA/0": "part"} {
			_, err := client.Scope("idem").Value(name).Put(t.Context(), []byte(data), 0)
			noErr(t, err)
		}
		for i := range 20 {
			_, err := idem.Once(t.Context(), l, idem.Key{Scope: string(rune('a' + i)), ID: "1"}, print)
			noErr(t, err)
		}
		<-time.After(idem.DefaultExpiry)
		n, err := l.Sweep(t.Context())
		wantErr(t, err, pawl.ErrMismatch)
		wantErr(t, err, pawl.ErrUnsupported)
		if n != 20 || !strings.Contains(err.Error(), "a|bad") || !strings.Contains(err.Error(), "z|later") {
			t.Errorf("%d keys are swept, %v", n, err)
		}
		wantValues(t, client, 3)
	})
}

// TestListGoesOn: a record of another program, or of a later version, hides no other key. In other scopes nobody hears of that record.
func TestListGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := party(t, memengine.New())
		l := idem.NewLeases(client, nil)
		for name, data := range map[string]string{"key/a|bad": "x", `key/a\|b|bad`: "x", "key/z|later": `{"v":2}`} {
			_, err := client.Scope("idem").Value(name).Put(t.Context(), []byte(data), 0)
			noErr(t, err)
		}
		for i := range 20 {
			_, err := idem.Once(t.Context(), l, idem.Key{Scope: "a", ID: fmt.Sprint(i)}, print)
			noErr(t, err)
		}
		_, err := idem.Once(t.Context(), l, idem.Key{Scope: "a|b", ID: strings.Repeat("b", 255)}, print)
		noErr(t, err)
		for scope, want := range map[string][2]int{"": {21, 3}, "a": {20, 1}, "a|b": {1, 1}, "b": {0, 0}} {
			var is [2]int
			for _, err := range l.List(t.Context(), scope) {
				if err == nil {
					is[0]++
				} else if is[1]++; !errors.Is(err, pawl.ErrMismatch) && !errors.Is(err, pawl.ErrUnsupported) {
					t.Error(err)
				}
			}
			if is != want {
				t.Errorf("scope %q: %d keys and errors, want %d", scope, is, want)
			}
		}
	})
}

// ending is a store in which a worker ends before an operator looks at its lock.
type ending struct {
	*memengine.Engine
	end func()
}

func (e *ending) Show(ctx context.Context, name string) (engine.Resource, error) {
	if end := e.end; end != nil {
		e.end = nil
		end()
	}
	return e.Engine.Show(ctx, name)
}

// TestShowWhileWorkEnds: between the look at the record and the look at the lock the worker may end. The key is told as the worker left it.
func TestShowWhileWorkEnds(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			eng := &ending{Engine: memengine.New()}
			l := idem.NewLeases(party(t, eng), nil)
			work := func() *idem.Claim {
				c := begin(t, l)
				if late {
					<-time.After(2 * idem.DefaultExpiry)
				}
				return c
			}
			c := work()
			eng.end = func() { noErr(t, c.Abort(t.Context())) }
			if e, found, err := l.Show(t.Context(), pay); found || err != nil {
				t.Errorf("late %v: %+v, %v: want no key", late, e, err)
			}
			c = work()
			eng.end = func() { noErr(t, c.Complete(t.Context(), []byte("paid"))) }
			if e, found, err := l.Show(t.Context(), pay); !found || e.State != idem.Done || string(e.Result) != "paid" || err != nil {
				t.Errorf("late %v: %+v, %v, %v: want the result", late, e, found, err)
			}
			noErr(t, l.Forget(t.Context(), pay))
			c = work()
			eng.end = func() { noErr(t, c.Complete(t.Context(), []byte("paid"))) }
			var all []idem.State
			for e, err := range l.List(t.Context(), pay.Scope) {
				noErr(t, err)
				all = append(all, e.State)
			}
			if !slices.Equal(all, []idem.State{idem.Done}) {
				t.Errorf("late %v: listed %q", late, all)
			}
		})
	}
}

// TestLostPart: a result that is no longer whole is an error, and never a reason to run again.
func TestLostPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		client := party(t, eng)
		l := idem.NewLeases(client, nil)
		noErr(t, begin(t, l).Complete(t.Context(), make([]byte, 200_000)))
		for name, err := range client.Scope("idem").Values(t.Context(), "part/") {
			noErr(t, err)
			v := client.Scope("idem").Value(name)
			is, err := v.Get(t.Context())
			noErr(t, err)
			_, err = v.Put(t.Context(), nil, is.Number)
			noErr(t, err)
			break
		}
		_, err := l.Begin(t.Context(), pay, print, nil)
		wantErr(t, err, pawl.ErrMismatch)
	})
}
