package pawl_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// TestPoolPutFails: who cannot put all puts nothing, and what it left behind
// goes.
func TestPoolPutFails(t *testing.T) {
	for writes := range 6 { // reserve, four pages, publish
		t.Run(fmt.Sprint(writes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := newKeyStore()
				mortal, store := newFaultyClient(t, eng, nil)
				p := newClient(t, eng, nil).Pool("p", nil)
				store.set(first(writes, nil, fails), verbPut)
				wantErr(t, mortal.Pool("p", nil).Put(t.Context(), tasks(0, 128)...), pawl.ErrUnavailable)
				wantLen(t, p, 0)
				noErr(t, p.Put(t.Context(), tasks(128, 129)...))
				noErr(t, mustClaim(t, p).Done(t.Context()))
				_, err := p.TryClaim(t.Context())
				wantErr(t, err, pawl.ErrNotAcquired)
				eng.wantEmpty(t, "p")
			})
		})
	}
}

// TestPoolPutFrozen: who was frozen while it put, and lost its turn, puts nothing
// in the midst of others.
func TestPoolPutFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newKeyStore()
		frozen, store := newFaultyClient(t, eng, nil)
		store.set(first(3, nil, arrivesLate(20*time.Second)), verbPut)
		store.set(hangs, verbRenew)
		done := make(chan error)
		go func() { done <- frozen.Pool("p", nil).Put(t.Context(), tasks(0, 128)...) }()
		synctest.Wait()
		p := newClient(t, eng, nil).Pool("p", nil)
		noErr(t, p.Put(t.Context(), tasks(128, 129)...))
		wantErr(t, <-done, pawl.ErrLost)
		wantLen(t, p, 1)
	})
}

// TestPoolPutEvicted: who lost its turn and has not noticed publishes nothing of which
// the next one removes the pages.
func TestPoolPutEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newKeyStore()
		evicted, slow := newFaultyStore(eng), newFaultyStore(eng)
		evicted.set(first(3, nil, first(1, arrivesLate(2*time.Second), nil)), verbPut) // to publish two pages
		slow.set(first(1, nil, first(1, arrivesLate(4*time.Second), nil)), verbPut)    // to remove the first of them
		done := make(chan error, 2)
		put := func(c *pawl.Client, from, to int) {
			go func() { done <- c.Pool("p", nil).Put(t.Context(), tasks(from, to)...) }()
			synctest.Wait()
		}
		c := newClient(t, evicted, nil)
		evicted.set(hangs, verbRenew) // so it does not hear of it
		put(c, 0, 64)
		operator, err := eng.Open(t.Context(), engine.SessionOptions{TTL: time.Hour})
		noErr(t, err)
		noErr(t, operator.Leave(t.Context(), "pawl:pool/p/put", show(t, eng, "pawl:pool/p/put").Claims[0].ID))
		put(newClient(t, slow, nil), 64, 65)
		wantErr(t, <-done, pawl.ErrLost)
		noErr(t, <-done)
		p := newClient(t, eng, nil).Pool("p", nil)
		wantLen(t, p, 1)
		noErr(t, mustClaim(t, p).Done(t.Context()))
		_, err = p.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		eng.wantEmpty(t, "p")
		noErr(t, operator.Close(t.Context()))
	})
}
