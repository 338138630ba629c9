package work_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/faulty"
)

// newClient returns a client that is closed at the end of the test.
func newClient(t *testing.T, eng engine.Engine) *pawl.Client {
	t.Helper()
	c, err := pawl.New(t.Context(), eng, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// newFaultyClient returns a client with a disturbed view of the store.
func newFaultyClient(t *testing.T, eng engine.Engine) (*pawl.Client, *faulty.Store) {
	t.Helper()
	store := faulty.New(eng)
	return newClient(t, store), store
}

// wantErr fails unless err matches all of wants.
func wantErr(t *testing.T, err error, wants ...error) {
	t.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			t.Fatalf("error %v does not match %q", err, want)
		}
	}
}

// noErr may be called by any goroutine.
func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// pass lets the fake time of a bubble go on.
func pass(d time.Duration) { <-time.After(d) }
