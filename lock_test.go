package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

func newClient(t *testing.T, eng *memengine.Engine, opts *pawl.Options) *pawl.Client {
	t.Helper()
	c, err := pawl.New(t.Context(), eng, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestMutexExcludes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		held, err := a.Mutex("m").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Mutex("m").TryLock(t.Context()); !errors.Is(err, pawl.ErrNotAcquired) {
			t.Fatalf("TryLock of a held lock: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.Mutex("m").Lock(ctx); !errors.Is(err, pawl.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Lock past its deadline: %v", err)
		} else {
			fmt.Println(err)
		}
		if err := held.Err(); err != nil {
			t.Fatal(err)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		next, err := b.Mutex("m").TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if next.Token() <= held.Token() {
			t.Fatalf("token %v after %v", next.Token(), held.Token())
		}
	})
}
