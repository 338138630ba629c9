package pawl_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		for name, good := range map[string]bool{
			"a": true, "order/42": true, "日本語": true, "a b": true, " ": true, "{tag}:*?[": true,
			strings.Repeat("x", 512): true, strings.Repeat("é", 256): true,
			"": false, strings.Repeat("x", 513): false, strings.Repeat("é", 257): false,
			"a\x00b": false, "a\nb": false, "\t": false, "\x7f": false, "\u0085": false, "\xff": false, "a\xc3": false,
		} {
			lease, err := c.Mutex(name).Lock(t.Context())
			owned, ownerErr := c.Mutex("m").Lock(pawl.WithOwner(t.Context(), name))
			if good {
				if err != nil || ownerErr != nil || lease.Name() != name || owned.Owner() != name {
					t.Errorf("%q: %v, %v", name, err, ownerErr)
				}
				mustUnlock(t, pawl.Leases{lease, owned})
				continue
			}
			wantInvalid(t, err, "name")
			if name != "" { // the empty name is no owner
				wantInvalid(t, ownerErr, "owner")
			}
			mustUnlock(t, owned)
		}
	})
}

// TestInvalid: each way to lock refuses an argument out of range, names the field, and sends no
// request.
func TestInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		for _, tc := range []struct {
			lock  pawl.Locker
			field string
		}{
			{c.Mutex(""), "name"},
			{c.RWMutex(""), "name"},
			{c.RWMutex("").RLocker(), "name"},
			{c.Semaphore("", 1), "name"},
			{c.Semaphore("s", 0), "permits"},
			{c.Semaphore("s", -1), "permits"},
			{c.Semaphore("s", pawl.MaxPermits+1), "permits"},
			{c.Semaphore("s", 3).Weighted(0), "weight"},
			{c.Semaphore("s", 3).Weighted(-1), "weight"},
			{c.Semaphore("s", 3).Weighted(4), "weight"},
			{c.Semaphore("s", 0).Weighted(1), "permits"},
			{c.Mutex("m").With(pawl.LockOptions{MaxHold: -1}), "LockOptions.MaxHold"},
			{c.Mutex("m").With(pawl.LockOptions{MaxHold: 99 * time.Millisecond}), "LockOptions.MaxHold"},
			{c.RWMutex("m").With(pawl.LockOptions{MaxHold: 1}).RLocker(), "LockOptions.MaxHold"},
			{c.Semaphore("s", 1).With(pawl.LockOptions{Label: "a\nb"}), "LockOptions.Label"},
			{c.Mutex("m").With(pawl.LockOptions{Label: strings.Repeat("x", 513)}), "LockOptions.Label"},
			{c.Mutex("").With(pawl.LockOptions{MaxHold: -1}), "name"}, // the first mistake
		} {
			_, err := tc.lock.Lock(t.Context())
			wantInvalid(t, err, tc.field)
			_, err = tc.lock.TryLock(t.Context())
			wantInvalid(t, err, tc.field)
			wantInvalid(t, tc.lock.Do(t.Context(), func(context.Context) error { t.Error("it runs"); return nil }), tc.field)
			_, err = pawl.LockAll(t.Context(), tc.lock)
			wantInvalid(t, err, tc.field)
		}
		if n := len(store.called(verbEnter)); n != 0 {
			t.Errorf("the store was asked %d times", n)
		}
		for _, l := range []pawl.Locker{
			c.Semaphore("big", pawl.MaxPermits).Weighted(pawl.MaxPermits),
			c.Mutex("m").With(pawl.LockOptions{MaxHold: 100 * time.Millisecond, Label: "l"}),
		} {
			mustUnlock(t, mustLock(t, t.Context(), l))
		}
	})
}
