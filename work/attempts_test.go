package work_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/work"
)

// letters returns the dead letters of a queue.
func letters(t *testing.T, p *work.Queue) (all []work.DeadLetter) {
	t.Helper()
	for l, err := range p.DeadLetters().All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	if n, err := p.DeadLetters().Len(t.Context()); err != nil || n != len(all) {
		t.Errorf("%d dead letters, %v, and %d are listed", n, err, len(all))
	}
	return all
}

// TestPoison: an item that every worker gives back lets all others pass, also the items of its
// page. The item is tried as often as it may.
func TestPoison(t *testing.T) {
	for _, most := range []int{0, 3} {
		for _, items := range []int{8, 100} {
			t.Run(fmt.Sprint(most, " of ", items), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := newKeyStore()
					p := work.New(newClient(t, eng), "p", &work.Options{MaxAttempts: most})
					noErr(t, p.Put(t.Context(), tasks(0, items)...))
					tries := 0
					for done := 0; done < items-1; {
						item := mustClaim(t, p)
						if string(item.Data) != "item 0" {
							noErr(t, item.Done(t.Context()))
							done++
							continue
						}
						if tries++; item.Attempts != tries {
							t.Errorf("attempt %d says that it is %d", tries, item.Attempts)
						}
						noErr(t, item.Return(t.Context()))
					}
					if tries != 1 { // the others were there before it was given back
						t.Errorf("the poison was claimed %d times before all others were done", tries)
					}
					for most > 0 && tries < most {
						item := mustClaim(t, p)
						tries++
						noErr(t, item.Return(t.Context()))
					}
					if most == 0 {
						noErr(t, mustClaim(t, p).Done(t.Context()))
						return
					}
					_, err := p.TryClaim(t.Context())
					wantErr(t, err, pawl.ErrNotAcquired)
					wantLen(t, p, 0)
					if all := letters(t, p); len(all) != 1 || string(all[0].Data) != "item 0" || all[0].Attempts != most {
						t.Errorf("dead letters: %+v", all)
					}
				})
			})
		}
	}
}

// TestPoisonStarvesNobody: while new items come, items that are given back are tried again and
// again, and each of the others is done soon.
func TestPoisonStarvesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		p := work.New(newClient(t, eng), "p", nil)
		putter := work.New(newClient(t, eng), "p", nil)
		noErr(t, putter.Put(t.Context(), tasks(0, 3)...)) // poison
		tries := make(map[string]int)
		for i := range 200 {
			noErr(t, putter.Put(t.Context(), fmt.Appendf(nil, "good %d", i)))
			for range 2 { // one of them good, one poison
				item := mustClaim(t, p)
				if tries[string(item.Data)]++; string(item.Data)[:4] == "good" {
					noErr(t, item.Done(t.Context()))
				} else {
					noErr(t, item.Return(t.Context()))
				}
			}
		}
		n, err := p.Len(t.Context())
		noErr(t, err)
		for i := range 3 {
			if is := tries[fmt.Sprintf("item %d", i)]; is < 20 {
				t.Errorf("item %d was tried %d times: %d are left", i, is, n)
			}
		}
		if n > 40 {
			t.Errorf("%d are left", n)
		}
	})
}

// TestCrashCounts: an item that ends its worker is a dead letter after so many attempts, of
// which nobody could tell, and others are served meanwhile.
func TestCrashCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newKeyStore()
		opts := &work.Options{MaxAttempts: 3}
		p := work.New(newClient(t, eng), "p", opts)
		noErr(t, p.Put(t.Context(), tasks(0, 10)...))
		for attempt := 1; attempt <= 3; attempt++ {
			mortal, store := newFaultyClient(t, eng)
			workers := work.New(mortal, "p", opts)
			item := mustClaim(t, workers)
			for string(item.Data) != "item 0" {
				noErr(t, item.Done(t.Context()))
				item = mustClaim(t, workers)
			}
			if item.Attempts != attempt {
				t.Errorf("attempt %d says that it is %d", attempt, item.Attempts)
			}
			store.Set(faulty.Fails, faulty.Renew, faulty.Open, faulty.Enter, faulty.Leave, faulty.Close, faulty.Get, faulty.Put, faulty.Watch)
			put := time.Now()
			noErr(t, p.Put(t.Context(), tasks(10, 11)...))
			another := mustClaim(t, p)
			if took := time.Since(put); took > 0 || string(another.Data) == "item 0" {
				t.Errorf("%q was claimed after %v", another.Data, took)
			}
			noErr(t, another.Done(t.Context()))
			<-item.Context().Done()
			pass(5 * time.Second)
		}
		for n, err := p.Len(t.Context()); n > 1; n, err = p.Len(t.Context()) {
			noErr(t, err)
			noErr(t, mustClaim(t, p).Done(t.Context()))
		}
		_, err := p.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		all := letters(t, p)
		if len(all) != 1 || string(all[0].Data) != "item 0" || all[0].Attempts != 3 || all[0].Name != "pawl:pool/p/1.0" {
			t.Errorf("dead letters: %+v", all)
		}
		wantLen(t, p, 0)
	})
}

// TestReturnAfter: nobody gets the item before its time, also when the worker that said so
// ends, and soon after it somebody does.
func TestReturnAfter(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprint("closes ", closes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				worker := newClient(t, eng)
				p := work.New(newClient(t, eng), "p", nil)
				noErr(t, p.Put(t.Context(), tasks(0, 2)...))
				first := mustClaim(t, work.New(worker, "p", nil))
				wantErr(t, first.ReturnAfter(t.Context(), time.Millisecond), pawl.ErrInvalid)
				noErr(t, first.Err())
				returned := time.Now()
				noErr(t, first.ReturnAfter(t.Context(), 10*time.Minute))
				wantErr(t, first.Err(), pawl.ErrClosed)
				if closes {
					noErr(t, worker.Close(t.Context()))
				}
				noErr(t, mustClaim(t, p).Done(t.Context()))
				again := mustClaim(t, p)
				took := time.Since(returned)
				if took < 10*time.Minute || took > 10*time.Minute+time.Second {
					t.Errorf("claimed again after %v", took)
				}
				if again.Attempts != 2 || again.Token() <= first.Token() {
					t.Errorf("attempt %d with token %v after %v", again.Attempts, again.Token(), first.Token())
				}
				noErr(t, again.Done(t.Context()))
			})
		})
	}
}

// TestBounded: on a store that faulty.Hangs, calls are back within 100 ms of the end of their ctx.
// The item comes back when the store answers.
func TestBounded(t *testing.T) {
	for name, call := range map[string]func(*work.Item, context.Context) error{
		"done": (*work.Item).Done, "return": (*work.Item).Return, "bury": (*work.Item).Bury,
		"later": func(item *work.Item, ctx context.Context) error { return item.ReturnAfter(ctx, time.Minute) },
	} {
		for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
			t.Run(fmt.Sprint(name, wait), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, store := newFaultyClient(t, memengine.New())
					p := work.New(c, "p", nil)
					noErr(t, p.Put(t.Context(), tasks(0, 1)...))
					item := mustClaim(t, p)
					verbs := []string{faulty.Get, faulty.Put, faulty.Leave, faulty.Enter, faulty.Open}
					store.Set(faulty.Hangs, verbs...)
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					defer cancel()
					start := time.Now()
					if err := call(item, ctx); err == nil || name != "bury" && !errors.Is(err, pawl.ErrUnavailable) {
						t.Errorf("it said %v", err)
					}
					if took := time.Since(start); took > wait+100*time.Millisecond {
						t.Errorf("it took %v", took)
					}
					store.Set(nil, verbs...)
					if name != "return" {
						noErr(t, item.Return(t.Context()))
					}
					noErr(t, mustClaim(t, p).Done(t.Context()))
				})
			})
		}
	}
}

// TestDeadLetters: an operator retries one and drops another.
func TestDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newKeyStore()
		c, store := newFaultyClient(t, eng)
		p := work.New(c, "p", &work.Options{MaxAttempts: 1})
		noErr(t, p.Put(t.Context(), tasks(0, 3)...))
		for range 3 {
			noErr(t, mustClaim(t, p).Bury(t.Context()))
		}
		all := letters(t, p)
		if len(all) != 3 || string(all[2].Data) != "item 2" || all[2].Attempts != 1 {
			t.Fatalf("dead letters: %+v", all)
		}
		dead := work.New(newClient(t, eng), "p", nil).DeadLetters()
		store.Set(faulty.First(1, faulty.LosesReply, nil), faulty.Put)
		noErr(t, p.DeadLetters().Retry(t.Context(), all[1].ID))
		wantErr(t, dead.Retry(t.Context(), all[1].ID), pawl.ErrNotAcquired)
		store.Set(faulty.First(1, faulty.LosesReply, nil), faulty.Put)
		for range 2 {
			noErr(t, p.DeadLetters().Drop(t.Context(), all[0].ID))
		}
		for _, bad := range []string{"", "1", "1.x", "1.2.3", "all"} {
			wantErr(t, dead.Drop(t.Context(), bad), pawl.ErrInvalid)
			wantErr(t, dead.Retry(t.Context(), bad), pawl.ErrInvalid)
		}
		wantLen(t, p, 1)
		item := mustClaim(t, p)
		if string(item.Data) != "item 1" || item.Attempts != 1 || item.Name() == all[1].Name {
			t.Errorf("%q as %q, attempt %d", item.Data, item.Name(), item.Attempts)
		}
		noErr(t, item.Done(t.Context()))
		if left := letters(t, p); len(left) != 1 || left[0].ID != all[2].ID {
			t.Errorf("dead letters: %+v", left)
		}
		_, err := p.TryClaim(t.Context()) // takes the page off the head
		wantErr(t, err, pawl.ErrNotAcquired)
		bad := work.New(c, "a\nb", nil).DeadLetters()
		wantErr(t, bad.Drop(t.Context(), "1.1"), pawl.ErrInvalid)
		for _, most := range []int{-1, 1_000_001} {
			wantErr(t, work.New(c, "p", &work.Options{MaxAttempts: most}).Put(t.Context(), nil), pawl.ErrInvalid)
		}
	})
}

// TestFullDeadLetters: an item is to be a dead letter, and the dead letters are full. Workers get the items behind that item. A worker that waits is told
// of nothing, and asks the store seldom. When there is room, the item is a dead letter.
func TestFullDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng)
		const pages = 20_000 // as many as a queue may have, none of which is there
		head := []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02")
		for _, n := range []uint64{pages + 1, 0, 1, pages} {
			head = binary.AppendUvarint(head, n)
		}
		_, err := eng.Put(t.Context(), "pawl:dead/p", head, 0)
		noErr(t, err)
		p := work.New(c, "p", &work.Options{MaxAttempts: 1})
		noErr(t, p.Put(t.Context(), make([]byte, 9<<10))) // fills a page
		noErr(t, mustClaim(t, p).ReturnAfter(t.Context(), time.Second))
		<-time.After(2 * time.Second)
		for range 3 {
			noErr(t, p.Put(t.Context(), []byte("good")))
			item, err := p.Claim(t.Context())
			if err != nil || string(item.Data) != "good" {
				t.Fatalf("an item behind is not claimed: %v", err)
			}
			noErr(t, item.Done(t.Context()))
		}
		_, err = p.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		asked := func() (n int) {
			for _, verb := range []string{faulty.Enter, faulty.Leave, faulty.Get, faulty.Put} {
				n += len(store.Called(verb))
			}
			return n
		}
		const seconds = 60
		before := asked()
		ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
		defer cancel()
		_, err = p.Claim(ctx)
		wantErr(t, err, pawl.ErrNotAcquired, context.DeadlineExceeded)
		if n := (asked() - before) / seconds; n > 60 {
			t.Errorf("an idle worker makes %d requests a second", n)
		}
		wantLen(t, p, 1)
		_, err = c.Scope("dead").Value("p").Update(t.Context(), func(pawl.Snapshot) ([]byte, error) { return nil, nil })
		noErr(t, err)
		_, err = p.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		wantLen(t, p, 0)
		if all := letters(t, p); len(all) != 1 || all[0].Attempts != 1 {
			t.Errorf("%d dead letters", len(all))
		}
	})
}

// TestBuryLostReplies: whatever reply is lost as an item is buried, it is a dead letter and in
// the queue no more.
func TestBuryLostReplies(t *testing.T) {
	for _, verb := range []string{faulty.Put, faulty.Get, faulty.Enter, faulty.Leave} {
		for skip := range 6 {
			t.Run(fmt.Sprint(verb, skip), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := memengine.New()
					c, store := newFaultyClient(t, eng)
					p := work.New(c, "p", &work.Options{MaxAttempts: 1})
					noErr(t, p.Put(t.Context(), tasks(0, 2)...))
					item := mustClaim(t, p)
					store.Set(faulty.First(skip, nil, faulty.First(1, faulty.LosesReply, nil)), verb)
					noErr(t, item.Return(t.Context()))
					noErr(t, mustClaim(t, p).Done(t.Context()))
					wantLen(t, p, 0)
					if all := letters(t, p); len(all) != 1 || string(all[0].Data) != "item 0" {
						t.Errorf("dead letters: %+v", all)
					}
				})
			})
		}
	}
}

// TestIdleWorkers: what idle workers ask the store for does not grow with their number, nor
// much with the items that others have.
func TestIdleWorkers(t *testing.T) {
	rates := make(map[int]float64)
	for _, idle := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			const claimed, seconds = 300, 60
			eng := memengine.New()
			busy := work.New(newClient(t, eng), "p", nil)
			noErr(t, busy.Put(t.Context(), tasks(0, claimed)...))
			for range claimed {
				mustClaim(t, busy)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			var stores []*faulty.Store
			for range idle {
				c, store := newFaultyClient(t, eng)
				stores = append(stores, store)
				all.Go(func() { work.New(c, "p", nil).Claim(ctx) }) //nolint:errcheck // it waits for nothing
			}
			asked := func() (n int) {
				for _, s := range stores {
					for _, verb := range []string{faulty.Enter, faulty.Leave, faulty.Get, faulty.Put} {
						n += len(s.Called(verb))
					}
				}
				return n
			}
			pass(10 * time.Second)
			before := asked()
			pass(seconds * time.Second)
			rates[idle] = float64(asked()-before) / seconds
			cancel()
			all.Wait()
		})
	}
	t.Logf("requests a second: %v", rates)
	if rates[1] > 120 || rates[100] > rates[1]+20 {
		t.Errorf("1 idle worker makes %.0f requests a second, 100 make %.0f", rates[1], rates[100])
	}
}

// sizeStore counts the requests and the bytes that are read and written.
type sizeStore struct {
	*memengine.Engine
	requests, bytes int
}

func (s *sizeStore) Get(ctx context.Context, key string) (engine.Value, error) {
	v, err := s.Engine.Get(ctx, key)
	s.requests++
	s.bytes += len(v.Data)
	return v, err
}

func (s *sizeStore) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	s.requests++
	s.bytes += len(data)
	return s.Engine.Put(ctx, key, data, version)
}

// TestPutOneByOne: to put one item costs the same however many there are, up to the last of the pages.
func TestPutOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &sizeStore{Engine: memengine.New()}
		p := work.New(newClient(t, eng), "p", nil)
		const pages, inPage, items = 20_000, 32, 640
		for i := range 40 {
			noErr(t, p.Put(t.Context(), fmt.Appendf(nil, "item %d", i)))
		}
		noErr(t, p.Put(t.Context(), make([][]byte, pages*inPage-items-2*inPage)...)) // pages of their own
		eng.requests, eng.bytes = 0, 0
		for i := range items {
			requests, bytes := eng.requests, eng.bytes
			noErr(t, p.Put(t.Context(), fmt.Appendf(nil, "item %d", i)))
			requests, bytes = eng.requests-requests, eng.bytes-bytes
			if requests > 8 || bytes > 2<<10 {
				t.Fatalf("item %d took %d requests for values of %d bytes", i, requests, bytes)
			}
		}
		t.Logf("an item took %.1f requests and %d bytes", float64(eng.requests)/float64(items), eng.bytes/items)
		wantErr(t, p.Put(t.Context(), []byte("one more")), work.ErrFull)
		for i := range 40 {
			item := mustClaim(t, p)
			if want := fmt.Sprintf("item %d", i); string(item.Data) != want {
				t.Errorf("%q, want %q", item.Data, want)
			}
			noErr(t, item.Done(t.Context()))
		}
	})
}
