package idem_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem"
)

// party returns a client of the store, which is closed at the end of the test.
func party(t *testing.T, eng *memengine.Engine) *pawl.Client {
	t.Helper()
	c, err := pawl.New(t.Context(), eng, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

var (
	pay   = idem.Key{Scope: "pay/user-7", ID: "a"}
	print = idem.FingerprintOf([]byte("5 EUR"))
	other = idem.FingerprintOf([]byte("6 EUR"))
)

func begin(t *testing.T, l *idem.Leases) *idem.Claim {
	t.Helper()
	c, err := l.Begin(t.Context(), pay, print, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRepeat: the second call gets the result of the first, also as a caller that waited.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		l := idem.NewLeases(party(t, eng), nil)
		first := begin(t, l)
		if _, kept := first.Kept(); kept || first.Token() == 0 || first.Attempts() != 1 {
			t.Errorf("the first claim: %v, %d, %d", kept, first.Token(), first.Attempts())
		}
		waited := make(chan *idem.Claim)
		go func() { waited <- begin(t, idem.NewLeases(party(t, eng), nil)) }()
		synctest.Wait()
		<-time.After(time.Minute)
		var flight *idem.InFlightError
		if _, err := l.Begin(t.Context(), pay, print, &idem.BeginOptions{NoWait: true}); !errors.Is(err, idem.ErrInFlight) || !errors.As(err, &flight) || flight.Held != time.Minute {
			t.Errorf("a call that does not wait: %v", err)
		}
		if err := first.Complete(t.Context(), []byte("paid")); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*idem.Claim{<-waited, begin(t, l)} {
			if result, kept := c.Kept(); !kept || string(result) != "paid" {
				t.Errorf("a repeat has %q, %v", result, kept)
			}
		}
		if _, err := l.Begin(t.Context(), pay, other, nil); !errors.Is(err, idem.ErrReused) {
			t.Errorf("another request with the key: %v", err)
		}
		<-time.After(idem.DefaultExpiry)
		if c := begin(t, l); c.Attempts() != 1 {
			t.Error("the key is not forgotten")
		}
	})
}
