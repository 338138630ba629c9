// Package fencetest holds what every guard has to keep, whatever it guards: for
// the tests of the packages under fence.
package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/pawl-go/pawl/fence"
)

// Resource is a guarded thing that holds the token with which it was written
// last. Both are safe for concurrent use.
type Resource struct {
	// Write writes the token under the guard.
	Write func(ctx context.Context, token fence.Token) error
	// Read returns the stored token; 0: nothing was written yet.
	Read func(ctx context.Context) (fence.Token, error)
	// Early says that tokens are also checked in a step before the write: what
	// refused an older one may not be written yet.
	Early bool
}

// Text is the Read of a resource that holds its token as text, "" before it was
// written.
func Text(read func(ctx context.Context) (string, error)) func(context.Context) (fence.Token, error) {
	return func(ctx context.Context) (fence.Token, error) {
		text, err := read(ctx)
		if err != nil || text == "" {
			return 0, err
		}
		return fence.ParseToken(text)
	}
}

// Race lets several writers at a new resource, each with random tokens, some of them equal, and
// returns all that was wrong. The resource must never go back. An accepted token is there, or a
// newer token is. A refused token met a newer token. At the end the largest token is there.
func Race(ctx context.Context, r Resource, writers, writes int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all, watch sync.WaitGroup
	var largest, accepted, refused atomic.Uint64
	spawn := func(group *sync.WaitGroup, f func() error) {
		group.Go(func() {
			if err := f(); err != nil {
				cancel(err)
			}
		})
	}
	for range writers {
		spawn(&all, func() error {
			for range writes {
				token := fence.Token(1 + rand.Uint64N(uint64(writers*writes)))
				raise(&largest, uint64(token))
				err := r.writeOnce(ctx, token)
				switch {
				case err == nil:
					accepted.Add(1)
				case errors.Is(err, fence.ErrStale):
					refused.Add(1)
				default:
					return err
				}
			}
			return nil
		})
	}
	done := make(chan struct{})
	spawn(&watch, func() error { return r.watch(ctx, done) })
	all.Wait()
	close(done)
	watch.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	switch last, err := r.Read(ctx); {
	case err != nil:
		return err
	case uint64(last) != largest.Load():
		return fmt.Errorf("it ends with %d, but %d was written", last, largest.Load())
	case accepted.Load() == 0 || refused.Load() == 0:
		return fmt.Errorf("%d writes accepted, %d refused: that was no race", accepted.Load(), refused.Load())
	}
	return nil
}

// writeOnce writes and looks what came of it. The error of writeOnce matches
// [fence.ErrStale] only when the write was rightly refused.
func (r Resource) writeOnce(ctx context.Context, token fence.Token) error {
	refused := r.Write(ctx, token)
	if refused != nil && !errors.Is(refused, fence.ErrStale) {
		return fmt.Errorf("write %d: %w", token, refused)
	}
	is, err := r.Read(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read: %w", err)
	case refused == nil && is < token:
		return fmt.Errorf("%d was accepted and then there is %d", token, is)
	case refused != nil && is <= token && !r.Early:
		return fmt.Errorf("%d was refused and there is %d: %v", token, is, refused)
	}
	return refused
}

// watch reads until done and fails if what it reads goes back.
func (r Resource) watch(ctx context.Context, done <-chan struct{}) error {
	for before := fence.Token(0); ; {
		select {
		case <-done:
			return nil
		default:
		}
		is, err := r.Read(ctx)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if is < before {
			return fmt.Errorf("it went back from %d to %d", before, is)
		}
		before = is
	}
}

func raise(mark *atomic.Uint64, to uint64) {
	for {
		is := mark.Load()
		if is >= to || mark.CompareAndSwap(is, to) {
			return
		}
	}
}

// Contract is what every guard of package fence agrees on, of new resources whose names begin
// with prefix. Contract returns the faults that it found.
func Contract(ctx context.Context, guard fence.Guard, prefix string) error {
	var wrong []error
	for _, step := range []struct {
		resource string
		token    fence.Token
		want     error
		why      string
	}{
		{"a", 5, nil, "the first token passes"},
		{"a", 5, nil, "an equal token is the same holder"},
		{"a", 4, fence.ErrStale, "an older one is refused"},
		{"b", 4, nil, "another resource has a mark of its own"},
		{"A", 3, nil, "names differ by case"},
		{"a ", 3, nil, "names differ by a space at the end"},
		{"a", 10, nil, "a newer one passes, and 10 is more than 5"},
		{"a", 9, fence.ErrStale, "and 9 is less than 10"},
		{"a", 5, fence.ErrStale, "who passed before is refused after a newer one"},
		{"a", fence.MaxToken - 1, nil, "large numbers are told apart"},
		{"a", fence.MaxToken, nil, "also by one"},
		{"a", fence.MaxToken - 1, fence.ErrStale, "also by one"},
		{"c", 0, fence.ErrInvalid, "no token is none"},
		{"c", fence.MaxToken + 1, fence.ErrInvalid, "a token that is too large would refuse all others for ever"},
		{"c", 1, nil, "and what was invalid left no mark"},
		{"line\nbreak", 1, fence.ErrInvalid, "control characters are not for names"},
		{"\xff", 1, fence.ErrInvalid, "nor is what is no UTF-8"},
		{"'\"`\\ {}%s ; -- é", 2, nil, "every other character is"},
		{"'\"`\\ {}%s ; -- é", 1, fence.ErrStale, "every other character is"},
	} {
		if err := guard.Check(ctx, prefix+step.resource, step.token); !errors.Is(err, step.want) {
			wrong = append(wrong, fmt.Errorf("%q, token %d: %v, want %v: %s", step.resource, step.token, err, step.want, step.why))
		}
	}
	if err := guard.Check(ctx, "", 1); !errors.Is(err, fence.ErrInvalid) {
		wrong = append(wrong, fmt.Errorf("no name: %v", err))
	}
	return errors.Join(wrong...)
}
