package idemleasetest

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

// TestStores: each store has what a key needs besides a claim: Once, large results, lists and sweeps.
func TestStores(t *testing.T) {
	for name, s := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := newStorm(t, s)
			client := run.client()
			leases := idem.NewLeases(client, &idem.LeaseOptions{Expiry: time.Hour})
			once(t, client, run.client())
			scope := fmt.Sprintf("stores/%d", time.Now().UnixNano())
			large := strings.Repeat("0123456789", idem.MaxResult/10)
			for i, expiry := range []time.Duration{time.Hour, idem.MinExpiry, idem.MinExpiry} {
				c, err := leases.Begin(t.Context(), idem.Key{Scope: scope, ID: fmt.Sprint(i)}, idem.Fingerprint{}, &idem.BeginOptions{Expiry: expiry})
				if err == nil {
					err = c.Complete(t.Context(), []byte(large))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if e, found, err := leases.Show(t.Context(), idem.Key{Scope: scope, ID: "0"}); err != nil || !found || string(e.Result) != large {
				t.Errorf("%v, %d bytes, %v", found, len(e.Result), err)
			}
			<-time.After(idem.MinExpiry + 10*time.Millisecond)
			if got := list(t, leases, scope); got != "0" {
				t.Errorf("the keys %s are listed", got)
			}
			if n, err := leases.Sweep(t.Context()); n != 2 || err != nil {
				t.Errorf("%d keys are swept, %v", n, err)
			}
			parts := 0
			for name, err := range client.Scope("idem").Values(t.Context(), "part/"+scope) {
				if err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(name, "part/"+scope+"|0/") {
					t.Errorf("%s is left", name)
				}
				parts++
			}
			if parts != idem.MaxResult/(60<<10)+1 {
				t.Errorf("%d parts are left", parts)
			}
			if err := leases.Forget(t.Context(), idem.Key{Scope: scope, ID: "0"}); err != nil {
				t.Error(err)
			}
			if got := list(t, leases, scope); got != "" {
				t.Errorf("the keys %s are listed", got)
			}
		})
	}
}

func list(t *testing.T, leases *idem.Leases, scope string) (ids string) {
	t.Helper()
	for e, err := range leases.List(t.Context(), scope) {
		if err != nil {
			t.Fatal(err)
		}
		ids += e.Key.ID
	}
	return ids
}

// once has two clients check the same ids at once.
func once(t *testing.T, clients ...*pawl.Client) {
	t.Helper()
	const ids, callers = 10, 8
	scope := fmt.Sprintf("once/%d", time.Now().UnixNano())
	var firsts atomic.Int64
	var group sync.WaitGroup
	for i := range callers {
		leases := idem.NewLeases(clients[i%len(clients)], nil)
		group.Go(func() {
			for id := range ids {
				first, err := idem.Once(t.Context(), leases, idem.Key{Scope: scope, ID: fmt.Sprint(id)}, idem.Fingerprint{})
				if err != nil {
					t.Error(err)
				}
				if first {
					firsts.Add(1)
				}
			}
		})
	}
	group.Wait()
	if firsts.Load() != ids {
		t.Errorf("%d of %d calls are the first", firsts.Load(), ids)
	}
}
