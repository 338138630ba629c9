package work_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/work"
)

// TestPutFails: a caller that cannot put all puts nothing, and the pages that it left behind go.
func TestPutFails(t *testing.T) {
	for writes := range 6 { // reserve, four pages, publish
		t.Run(fmt.Sprint(writes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := newKeyStore()
				mortal, store := newFaultyClient(t, eng)
				p := work.New(newClient(t, eng), "p", nil)
				store.Set(faulty.First(writes, nil, faulty.Fails), faulty.Put)
				wantErr(t, work.New(mortal, "p", nil).Put(t.Context(), tasks(0, 128)...), pawl.ErrUnavailable)
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

// TestPutFrozen: a caller that was frozen while it put, and lost its turn, puts nothing in the
// midst of others.
func TestPutFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newKeyStore()
		frozen, store := newFaultyClient(t, eng)
		store.Set(faulty.First(3, nil, faulty.ArrivesLate(20*time.Second)), faulty.Put)
		store.Set(faulty.Hangs, faulty.Renew)
		done := make(chan error)
		go func() { done <- work.New(frozen, "p", nil).Put(t.Context(), tasks(0, 128)...) }()
		synctest.Wait()
		p := work.New(newClient(t, eng), "p", nil)
		noErr(t, p.Put(t.Context(), tasks(128, 129)...))
		wantErr(t, <-done, pawl.ErrLost)
		wantLen(t, p, 1)
	})
}

// TestPutEvicted: a caller that lost its turn and has not noticed publishes nothing of which the
// next caller removes the pages.
func TestPutEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newKeyStore()
		evicted, slow := faulty.New(eng), faulty.New(eng)
		evicted.Set(faulty.First(3, nil, faulty.First(1, faulty.ArrivesLate(2*time.Second), nil)), faulty.Put) // to publish two pages
		slow.Set(faulty.First(1, nil, faulty.First(1, faulty.ArrivesLate(4*time.Second), nil)), faulty.Put)    // to remove the first of them
		done := make(chan error, 2)
		put := func(c *pawl.Client, from, to int) {
			go func() { done <- work.New(c, "p", nil).Put(t.Context(), tasks(from, to)...) }()
			synctest.Wait()
		}
		c := newClient(t, evicted)
		evicted.Set(faulty.Hangs, faulty.Renew) // so it does not hear of it
		put(c, 0, 64)
		is, err := eng.Show(t.Context(), "pawl:pool/p/put")
		noErr(t, err)
		noErr(t, eng.Evict(t.Context(), "pawl:pool/p/put", is.Claims[0].ID))
		put(newClient(t, slow), 64, 65)
		wantErr(t, <-done, pawl.ErrLost)
		noErr(t, <-done)
		p := work.New(newClient(t, eng), "p", nil)
		wantLen(t, p, 1)
		noErr(t, mustClaim(t, p).Done(t.Context()))
		_, err = p.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		eng.wantEmpty(t, "p")
	})
}

// TestPutLostReplies: an item that goes into a page that is there is put once, whatever reply
// is lost and whatever workers do meanwhile.
func TestPutLostReplies(t *testing.T) {
	for _, verb := range []string{faulty.Put, faulty.Get, faulty.Enter, faulty.Leave} {
		for skip := range 4 {
			t.Run(fmt.Sprint(verb, skip), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := newKeyStore()
					c, store := newFaultyClient(t, eng)
					p := work.New(c, "p", nil)
					noErr(t, p.Put(t.Context(), tasks(0, 1)...))
					store.Set(faulty.First(skip, nil, faulty.First(1, faulty.LosesReply, nil)), verb)
					noErr(t, p.Put(t.Context(), tasks(1, 3)...))
					for i := range 3 {
						item := mustClaim(t, work.New(newClient(t, eng), "p", nil))
						if want := fmt.Sprintf("item %d", i); string(item.Data) != want || item.Name() != fmt.Sprintf("pawl:pool/p/1.%d", i) {
							t.Errorf("%q as %q, want %q", item.Data, item.Name(), want)
						}
						noErr(t, item.Done(t.Context()))
					}
					store.Set(nil, verb)
					pass(time.Minute)
					_, err := p.TryClaim(t.Context())
					wantErr(t, err, pawl.ErrNotAcquired)
					eng.wantEmpty(t, "p")
				})
			})
		}
	}
}

// TestPutIntoEmptied: a page that workers empty while somebody puts into it is gone, and the item
// comes in another page. Where the reply was lost nobody knows.
func TestPutIntoEmptied(t *testing.T) {
	for name, slow := range map[string]faulty.Fault{"in time": faulty.ArrivesLate(2 * time.Second), "lost reply": faulty.LosesReply} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := newKeyStore()
				c, store := newFaultyClient(t, eng)
				other := work.New(newClient(t, eng), "p", nil)
				noErr(t, other.Put(t.Context(), tasks(0, 1)...))
				item := mustClaim(t, other)
				store.Set(faulty.First(1, slow, faulty.First(1, faulty.RepliesLate(time.Second), nil)), faulty.Put)
				if name == "lost reply" {
					store.Set(faulty.First(2, nil, faulty.First(1, faulty.ArrivesLate(time.Second), nil)), faulty.Get)
				}
				done := make(chan error, 1)
				go func() { done <- work.New(c, "p", nil).Put(t.Context(), tasks(1, 2)...) }()
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

// TestFormat: a queue of another format is refused.
func TestFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const other = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x07"
		for data, want := range map[string]error{"\x05\x00\x01\x01": pawl.ErrMismatch, other: pawl.ErrUnsupported, other + "\x05": pawl.ErrUnsupported} {
			eng := memengine.New()
			version, err := eng.Put(t.Context(), "pawl:pool/p", []byte(data), 0)
			noErr(t, err)
			p := work.New(newClient(t, eng), "p", nil)
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
