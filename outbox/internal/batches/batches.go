// Package batches deletes many rows by statements that each take a bounded time.
package batches

import (
	"context"
	"sync"
	"time"
)

const (
	most   = 1000 // rows of a statement
	usual  = 100  // rows of a statement that is slow for another reason than its rows, such as a slow network
	enough = 20   // refused rows that end a call
)

// Deleter deletes rows of a table. The zero value, with a Bound, begins with as many rows as a statement may have. A Deleter is for one goroutine.
type Deleter struct {
	Bound time.Duration // of a statement
	Turn  sync.Locker   // held during a statement; nil for none
	size  int
}

// Result is what became of rows.
type Result struct {
	Tried   int   // how many of the rows, from the first on
	Deleted int   // of these
	Refused int   // of these, because a statement for the row alone failed
	Err     error // the first of a row alone
}

// Delete deletes rows by their keys. After an error, the next statement has fewer rows. Rows may be large, and a row that cannot be deleted keeps the
// others of the statement. The latter is left. Delete ends early when ctx ends, or after 20 such rows. After each statement, Delete
// rests as long as the statement took.
func Delete[K any](ctx context.Context, d *Deleter, keys []K, statement func(context.Context, []K) (int, error)) (r Result) {
	for r.Tried < len(keys) && r.Refused < enough && ctx.Err() == nil {
		if d.size == 0 {
			d.size = most
		}
		some := keys[r.Tried:min(r.Tried+d.size, len(keys))]
		deleted, took, err := timed(ctx, d, some, statement)
		d.size = next(d.size, len(some), took, d.Bound, err)
		if err == nil {
			r.Tried += len(some)
			r.Deleted += deleted
		} else if len(some) == 1 && ctx.Err() == nil {
			r.Tried++
			r.Refused++
			if r.Err == nil {
				r.Err = err
			}
		}
		Rest(ctx, took)
	}
	return r
}

func timed[K any](ctx context.Context, d *Deleter, keys []K, statement func(context.Context, []K) (int, error)) (deleted int, took time.Duration, err error) {
	if d.Turn != nil {
		d.Turn.Lock()
		defer d.Turn.Unlock()
	}
	ctx, stop := context.WithTimeout(ctx, d.Bound)
	defer stop()
	began := time.Now()
	deleted, err = statement(ctx, keys)
	return deleted, time.Since(began), err
}

// next is how many rows the next statement has, after one with n rows. A slow network makes each batch slow, however small.
// So only an error makes a small batch smaller, and each success makes it larger.
func next(size, n int, took, bound time.Duration, err error) int {
	switch {
	case err != nil:
		return max(1, n/4)
	case took > bound/4 && n > usual:
		return max(usual, n/2)
	case took < bound/8 || size < usual && took < bound/2:
		return min(2*size, most)
	case size < usual:
		return size + max(1, size/4)
	}
	return size
}

// Rest waits so long, or until ctx ends.
func Rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
