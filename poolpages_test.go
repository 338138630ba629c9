package pawl_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
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
		noErr(t, eng.Evict(t.Context(), "pawl:pool/p/put", show(t, eng, "pawl:pool/p/put").Claims[0].ID))
		put(newClient(t, slow, nil), 64, 65)
		wantErr(t, <-done, pawl.ErrLost)
		noErr(t, <-done)
		p := newClient(t, eng, nil).Pool("p", nil)
		wantLen(t, p, 1)
		noErr(t, mustClaim(t, p).Done(t.Context()))
		_, err := p.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		eng.wantEmpty(t, "p")
	})
}

// TestPoolPutLostReplies: an item that goes into a page that is there is put once, whatever reply
// is lost and whatever workers do meanwhile.
func TestPoolPutLostReplies(t *testing.T) {
	for _, verb := range []string{verbPut, verbGet, verbEnter, verbLeave} {
		for skip := range 4 {
			t.Run(fmt.Sprint(verb, skip), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := newKeyStore()
					c, store := newFaultyClient(t, eng, nil)
					p := c.Pool("p", nil)
					noErr(t, p.Put(t.Context(), tasks(0, 1)...))
					store.set(first(skip, nil, first(1, losesReply, nil)), verb)
					noErr(t, p.Put(t.Context(), tasks(1, 3)...))
					for i := range 3 {
						item := mustClaim(t, newClient(t, eng, nil).Pool("p", nil))
						if want := fmt.Sprintf("item %d", i); string(item.Data) != want || item.Name() != fmt.Sprintf("pawl:pool/p/1.%d", i) {
							t.Errorf("%q as %q, want %q", item.Data, item.Name(), want)
						}
						noErr(t, item.Done(t.Context()))
					}
					store.set(nil, verb)
					pass(time.Minute)
					_, err := p.TryClaim(t.Context())
					wantErr(t, err, pawl.ErrNotAcquired)
					eng.wantEmpty(t, "p")
				})
			})
		}
	}
}

// TestPoolPutIntoEmptied: a page that workers empty while somebody puts into it is gone, and the
// item comes in another one; where the reply was lost nobody knows.
func TestPoolPutIntoEmptied(t *testing.T) {
	for name, slow := range map[string]fault{"in time": arrivesLate(2 * time.Second), "lost reply": losesReply} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := newKeyStore()
				c, store := newFaultyClient(t, eng, nil)
				other := newClient(t, eng, nil).Pool("p", nil)
				noErr(t, other.Put(t.Context(), tasks(0, 1)...))
				item := mustClaim(t, other)
				store.set(first(1, slow, first(1, repliesLate(time.Second), nil)), verbPut)
				if name == "lost reply" {
					store.set(first(2, nil, first(1, arrivesLate(time.Second), nil)), verbGet)
				}
				done := make(chan error, 1)
				go func() { done <- c.Pool("p", nil).Put(t.Context(), tasks(1, 2)...) }()
				pass(500 * time.Millisecond)
				noErr(t, item.Done(t.Context()))
				if name == "lost reply" { // it was put, and is done before the putter hears of it
					noErr(t, mustClaim(t, other).Done(t.Context()))
					wantErr(t, <-done, pawl.ErrUnavailable)
				} else {
					noErr(t, <-done)
					noErr(t, mustClaim(t, other).Done(t.Context()))
				}
				_, err := other.TryClaim(t.Context())
				wantErr(t, err, pawl.ErrNotAcquired)
				eng.wantEmpty(t, "p")
			})
		})
	}
}

// TestPoolFormat: a pool of another format is refused.
func TestPoolFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const other = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x07"
		for data, want := range map[string]error{"\x05\x00\x01\x01": pawl.ErrMismatch, other: pawl.ErrUnsupported, other + "\x05": pawl.ErrUnsupported} {
			eng := memengine.New()
			version, err := eng.Put(t.Context(), "pawl:pool/p", []byte(data), 0)
			noErr(t, err)
			p := newClient(t, eng, nil).Pool("p", nil)
			wantErr(t, p.Put(t.Context(), nil), want)
			_, err = p.TryClaim(t.Context())
			wantErr(t, err, want)
			_, err = p.Len(t.Context())
			wantErr(t, err, want)
			if is, err := eng.Get(t.Context(), "pawl:pool/p"); err != nil || is.Version != version {
				t.Errorf("it was changed: %+v, %v", is, err)
			}
		}
	})
}
