package fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/fencetest"
)

func TestMemory(t *testing.T) {
	if err := fencetest.Contract(t.Context(), new(fence.Memory), ""); err != nil {
		t.Error(err)
	}
}

// Do is the same guard as Check.
type runner struct{ fence.Memory }

func (r *runner) Check(ctx context.Context, resource string, token fence.Token) error {
	return r.Do(ctx, resource, token, func() error { return nil })
}

func TestMemoryDo(t *testing.T) {
	if err := fencetest.Contract(t.Context(), new(runner), ""); err != nil {
		t.Error(err)
	}
	var guard fence.Memory
	failed := errors.New("disk full")
	if err := guard.Do(t.Context(), "a", 2, func() error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	if err := guard.Check(t.Context(), "a", 1); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the write failed, but 2 was there: %v", err)
	}
}

func TestMemoryRace(t *testing.T) {
	var guard fence.Memory
	var value atomic.Uint64
	err := fencetest.Race(t.Context(), fencetest.Resource{
		Write: func(ctx context.Context, token fence.Token) error {
			return guard.Do(ctx, "it", token, func() error { value.Store(uint64(token)); return nil })
		},
		Read:  func(context.Context) (fence.Token, error) { return fence.Token(value.Load()), nil },
		Early: true, // a newer token that waits for an older one's write refuses others already
	}, 8, 500)
	if err != nil {
		t.Error(err)
	}
}

// A newer token waits for the running write of an older token, and lets no other older token
// in; equal tokens do not wait.
func TestMemoryDoIsOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var guard fence.Memory
		ctx := t.Context()
		finish := make(chan struct{})
		old := make(chan error, 2)
		for range 2 {
			go func() {
				old <- guard.Do(ctx, "it", 1, func() error { <-finish; return nil })
			}()
		}
		synctest.Wait() // both are in, or the second would be refused below
		newer := make(chan error, 1)
		var begun atomic.Bool
		go func() {
			newer <- guard.Do(ctx, "it", 2, func() error { begun.Store(true); return nil })
		}()
		synctest.Wait()
		if begun.Load() {
			t.Error("a newer write began beside an older one")
		}
		if err := guard.Do(ctx, "it", 1, func() error { return nil }); !errors.Is(err, fence.ErrStale) {
			t.Errorf("an older write while a newer one waits: %v", err)
		}
		gone, cancel := context.WithCancelCause(ctx)
		cancel(errors.New("enough"))
		if err := guard.Do(gone, "it", 3, func() error { t.Error("it ran"); return nil }); err == nil || err.Error() != "enough" {
			t.Error(err)
		}
		close(finish)
		for range 2 {
			if err := <-old; err != nil {
				t.Error(err)
			}
		}
		if err := <-newer; !errors.Is(err, fence.ErrStale) { // 3 was seen meanwhile
			t.Error(err)
		}
	})
}

func TestMemoryDoSurvivesAPanic(t *testing.T) {
	var guard fence.Memory
	func() {
		defer func() { _ = recover() }()
		_ = guard.Do(t.Context(), "it", 1, func() error { panic("write") })
	}()
	if err := guard.Do(t.Context(), "it", 2, func() error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestContext(t *testing.T) {
	if _, ok := fence.FromContext(t.Context(), "a"); ok || fence.Locks(t.Context()) != nil {
		t.Error("a token from nowhere")
	}
	ctx := fence.WithToken(fence.WithToken(fence.WithToken(t.Context(), "a", 7), "b", 9), "a", 8)
	for lock, want := range map[string]fence.Token{"a": 8, "b": 9, "c": 0} {
		if token, ok := fence.FromContext(ctx, lock); ok != (want != 0) || token != want {
			t.Errorf("%q: %v, %v", lock, token, ok)
		}
	}
	if locks := fence.Locks(ctx); !slices.Equal(locks, []string{"a", "b"}) {
		t.Error(locks)
	}
}

// Two holders of one lock write to a file that only this process writes. The
// first was frozen and comes late.
func ExampleMemory_Do() {
	ctx := context.Background()
	var guard fence.Memory
	file := ""
	write := func(token fence.Token, text string) error {
		return guard.Do(ctx, "report.txt", token, func() error {
			file = text
			return nil
		})
	}

	fmt.Println(write(33, "of the first holder"))
	fmt.Println(write(34, "of the second holder"))
	err := write(33, "of the first holder, late")
	fmt.Println(errors.Is(err, fence.ErrStale), err)
	fmt.Println(file)
	// Output:
	// <nil>
	// <nil>
	// true stale fencing token: "report.txt" has seen a newer token than 33
	// of the second holder
}

// The function that writes finds the token of the lock in its context.
func ExampleWithToken() {
	ctx := fence.WithToken(context.Background(), "orders/42", 33) // lease.Context()
	token, ok := fence.FromContext(ctx, "orders/42")
	if !ok {
		log.Fatal("not called under the lock")
	}
	fmt.Println(token)
	// Output: 33
}
