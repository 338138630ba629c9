package turn

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPlaces: callers have as many places as there are, and a waiter gets the next one.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := New(2)
		for range 2 {
			if err := places.Take(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if places.TryTake() {
			t.Fatal("a third place was taken")
		}
		taken := make(chan error, 1)
		go func() { taken <- places.Take(context.Background()) }()
		synctest.Wait()
		if len(taken) > 0 {
			t.Fatal("a waiter has a place that nobody gave back")
		}
		places.Give()
		if err := <-taken; err != nil {
			t.Error(err)
		}
		places.Give()
		if !places.TryTake() {
			t.Error("a place that was given back is not free")
		}
	})
}

// TestGivesUp: a waiter whose context ends gets the cause, and takes no place.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := New(1)
		if !one.TryTake() {
			t.Fatal("a new mutex is taken")
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(context.Background())
		given := make(chan error, 1)
		go func() { given <- one.Take(ctx) }()
		synctest.Wait()
		cancel(why)
		if err := <-given; !errors.Is(err, why) {
			t.Errorf("%v, want %v", err, why)
		}
		one.Give()
		if !one.TryTake() {
			t.Error("the caller that gave up has the place")
		}
	})
}

// TestNames: names do not wait for one another, and a name that nobody uses is forgotten.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := NewNames(1)
		giveA, err := names.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		giveB, err := names.Take(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		given := make(chan error, 1)
		go func() { _, err := names.Take(ctx, "a"); given <- err }()
		synctest.Wait()
		cancel()
		if err := <-given; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		giveA()
		giveB()
		if len(names.turns) > 0 {
			t.Errorf("%d names are kept", len(names.turns))
		}
	})
}

// TestPause: a pause lasts as long as it is to, or as its context.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Pause(t.Context(), time.Second); err != nil || time.Since(began) != time.Second {
			t.Error(err, time.Since(began))
		}
		why := errors.New("why")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		if err := Pause(ctx, time.Hour); !errors.Is(err, why) || time.Since(began) != 2*time.Second {
			t.Error(err, time.Since(began))
		}
	})
}
