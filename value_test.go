package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

func TestValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		v, same := newClient(t, eng, nil).Value("v"), newClient(t, eng, nil).Value("v")
		ctx := t.Context()
		if is, err := v.Get(ctx); err != nil || is.Number != 0 {
			t.Fatalf("a value that was never written: %+v, %v", is, err)
		}
		one, err := v.Put(ctx, []byte("one"), 0)
		noErr(t, err)
		two, err := same.Put(ctx, []byte("two"), one.Number)
		noErr(t, err)
		_, err = v.Put(ctx, []byte("late"), one.Number)
		wantErr(t, err, pawl.ErrConflict)
		if is, err := v.Get(ctx); err != nil || string(is.Data) != "two" || is.Number != two.Number {
			t.Errorf("%+v, %v", is, err)
		}
		_, err = v.Put(ctx, make([]byte, pawl.MaxValue+1), two.Number)
		wantErr(t, err, pawl.ErrInvalid)
		if _, err = v.Put(ctx, make([]byte, pawl.MaxValue), two.Number); err != nil {
			t.Error(err)
		}
		_, err = newClient(t, eng, nil).Value("a\nb").Get(ctx)
		wantErr(t, err, pawl.ErrInvalid)
	})
}

// TestUpdate: no update is lost, however many come at once.
func TestUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		const clients, goroutines, each = 4, 5, 10
		var all sync.WaitGroup
		for range clients {
			v := newClient(t, eng, nil).Value("count")
			for range goroutines {
				all.Go(func() {
					for range each {
						_, err := v.Update(t.Context(), func(is pawl.Snapshot) ([]byte, error) {
							n, _ := strconv.Atoi(string(is.Data))
							return strconv.AppendInt(nil, int64(n+1), 10), nil
						})
						noErr(t, err)
					}
				})
			}
		}
		all.Wait()
		if is, err := newClient(t, eng, nil).Value("count").Get(t.Context()); err != nil || string(is.Data) != strconv.Itoa(clients*goroutines*each) {
			t.Errorf("%s, %v", is.Data, err)
		}
	})
}

func TestUpdateEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		v, mine := c.Value("v"), errors.New("mine")
		_, err := v.Update(t.Context(), func(pawl.Snapshot) ([]byte, error) { return nil, mine })
		wantErr(t, err, mine)
		// Nobody knows whether the value was written, so Update must not write it twice.
		store.set(losesReply, verbPut)
		appendX := func(is pawl.Snapshot) ([]byte, error) { return append(bytes.Clone(is.Data), 'x'), nil }
		_, err = v.Update(t.Context(), appendX)
		wantErr(t, err, pawl.ErrUnavailable)
		store.set(nil, verbPut)
		if is, err := v.Get(t.Context()); err != nil || string(is.Data) != "x" {
			t.Errorf("%q, %v", is.Data, err)
		}
		store.set(hangs, verbGet)
		start := time.Now()
		_, err = v.Update(t.Context(), appendX)
		wantErr(t, err, pawl.ErrUnavailable)
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("it took %v", took)
		}
		// This client writes all the time, and does not queue.
		store.set(nil, verbGet)
		other := newClient(t, eng, nil).Value("v")
		_, err = v.Update(t.Context(), func(is pawl.Snapshot) ([]byte, error) {
			if _, err := other.Put(t.Context(), []byte("other"), is.Number); err != nil {
				t.Fatal(err)
			}
			return []byte("mine"), nil
		})
		wantErr(t, err, pawl.ErrConflict)
	})
}

// TestUpdateIsStopped: if its context or client ends an update in a pause, the error says so, and
// also gives the reason of the pause.
func TestUpdateIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		other := newClient(t, eng, nil).Value("v")
		update := func(ctx context.Context) error {
			_, err := c.Value("v").Update(ctx, func(is pawl.Snapshot) ([]byte, error) {
				_, err := other.Put(t.Context(), []byte("other"), is.Number)
				return []byte("mine"), err
			})
			return err
		}
		for _, d := range []time.Duration{time.Millisecond, 500 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			wantErr(t, update(ctx), context.DeadlineExceeded)
			cancel()
		}
		store.set(fails, verbPut)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, c.Latch("l", 1).CountDown(ctx, "party"), context.DeadlineExceeded, pawl.ErrUnavailable)
		store.set(nil, verbPut)
		time.AfterFunc(500*time.Millisecond, func() { c.Close(context.Background()) })
		wantErr(t, update(t.Context()), pawl.ErrClosed)
	})
}

// TestWatch: a watch begins with the present value, misses no last change, and tolerates trouble.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		writer := newClient(t, eng, nil).Value("v")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := make(chan string)
		go func() {
			defer close(seen)
			for is, err := range c.Value("v").Watch(ctx) {
				noErr(t, err)
				seen <- string(is.Data)
			}
		}()
		put := func(text string) {
			_, err := writer.Update(t.Context(), func(pawl.Snapshot) ([]byte, error) { return []byte(text), nil })
			noErr(t, err)
		}
		if is := <-seen; is != "" {
			t.Fatalf("first %q", is)
		}
		put("one")
		if is := <-seen; is != "one" {
			t.Fatalf("then %q", is)
		}
		store.set(fails, verbWatch, verbGet)
		put("unseen")
		put("two")
		pass(time.Minute)
		store.set(nil, verbWatch, verbGet)
		for is := range seen {
			if is == "two" {
				break
			}
		}
		cancel()
		for is := range seen {
			t.Errorf("after the end %q", is)
		}
	})
}

// TestLongNames: names that the store could not carry with a prefix are kept apart all the same.
func TestLongNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		for _, name := range []string{strings.Repeat("é", 256), strings.Repeat("é", 255) + "ab"} {
			_, err := c.Value(name).Put(t.Context(), []byte(name), 0)
			noErr(t, err)
		}
	})
}

// TestValueClosed: the end of the client ends every wait.
func TestValueClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		time.AfterFunc(time.Minute, func() { c.Close(context.Background()) })
		var last error
		for _, err := range c.Value("v").Watch(t.Context()) {
			last = err
		}
		wantErr(t, last, pawl.ErrClosed)
		wantErr(t, c.Latch("l", 1).Wait(t.Context()), pawl.ErrClosed)
	})
}

// TestUpdateConflictOfItsFunction: a conflict that the function reports is its own, and ends the update.
func TestUpdateConflictOfItsFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		mine, calls := fmt.Errorf("state: %w", pawl.ErrConflict), 0
		for _, v := range []*pawl.Value{c.Value("v"), c.Value("v").Idempotent()} {
			if _, err := v.Update(t.Context(), func(pawl.Snapshot) ([]byte, error) { calls++; return nil, mine }); err != mine { //nolint:errorlint // unchanged
				t.Errorf("error %v", err)
			}
		}
		if calls != 2 {
			t.Errorf("the function was called %d times", calls)
		}
	})
}
