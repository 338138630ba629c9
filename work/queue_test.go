package work_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/work"
)

// keyStore knows which values there are.
type keyStore struct {
	*memengine.Engine
	mu   sync.Mutex
	keys map[string]bool
}

func newKeyStore() *keyStore { return &keyStore{Engine: memengine.New(), keys: make(map[string]bool)} }

func (s *keyStore) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	written, err := s.Engine.Put(ctx, key, data, version)
	if err == nil {
		if s.keys[key] = data != nil; data == nil {
			delete(s.keys, key)
		}
	}
	return written, err
}

// wantEmpty fails unless nothing is left of a queue but its head.
func (s *keyStore) wantEmpty(t *testing.T, name string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) != 1 || !s.keys["pawl:pool/"+name] {
		t.Errorf("values that stay: %v", s.keys)
	}
	for name := range s.List(t.Context(), "") {
		t.Errorf("claims stay on %q", name)
	}
}

func tasks(from, to int) (items [][]byte) {
	for i := from; i < to; i++ {
		items = append(items, fmt.Appendf(nil, "item %d", i))
	}
	return items
}

func mustClaim(t *testing.T, p *work.Queue) *work.Item {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	item, err := p.Claim(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return item
}

func wantLen(t *testing.T, p *work.Queue, want int) {
	t.Helper()
	if n, err := p.Len(t.Context()); err != nil || n != want {
		t.Errorf("%d items, %v, want %d", n, err, want)
	}
}

func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newKeyStore()
		p, other := work.New(newClient(t, eng), "p", nil), work.New(newClient(t, eng), "p", nil)
		_, err := p.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		noErr(t, p.Put(t.Context()))
		noErr(t, p.Put(t.Context(), tasks(0, 50)...))
		noErr(t, other.Put(t.Context(), tasks(50, 51)...))
		wantLen(t, other, 51)
		names := make(map[string]bool)
		var returned *work.Item
		for i := range 52 { // the last is the item that was given back
			item, want := mustClaim(t, other), i
			if i == 51 {
				want = 7
			}
			if string(item.Data) != fmt.Sprintf("item %d", want) || item.Token() == 0 || names[item.Name()] != (i == 51) {
				t.Errorf("%q as %q with token %v, want item %d", item.Data, item.Name(), item.Token(), want)
			}
			names[item.Name()] = true
			switch i {
			case 7:
				noErr(t, item.Return(t.Context()))
				returned = item
				continue
			case 51:
				wantErr(t, returned.Done(t.Context()), pawl.ErrClosed)
				if item.Token() <= returned.Token() || item.Attempts != 2 {
					t.Errorf("attempt %d with token %v after %v", item.Attempts, item.Token(), returned.Token())
				}
			}
			noErr(t, item.Done(t.Context()))
			noErr(t, item.Done(t.Context()))
		}
		_, err = other.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		wantLen(t, p, 0)
		eng.wantEmpty(t, "p")
		// Another process begins anew, and no name comes twice.
		noErr(t, p.Put(t.Context(), []byte{}, nil))
		for range 2 {
			item := mustClaim(t, work.New(newClient(t, eng), "p", nil))
			if len(item.Data) != 0 || names[item.Name()] {
				t.Errorf("%q as %q", item.Data, item.Name())
			}
			noErr(t, item.Done(t.Context()))
		}
	})
}

func TestArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New())
		bad := work.New(c, "a\nb", nil)
		wantErr(t, bad.Put(t.Context(), []byte("x")), pawl.ErrInvalid)
		_, err := bad.Claim(t.Context())
		wantErr(t, err, pawl.ErrInvalid)
		p := work.New(c, strings.Repeat("é", 256), nil)
		large := bytes.Repeat([]byte("x"), work.MaxItem)
		noErr(t, p.Put(t.Context(), []byte("a"), large, large))
		wantErr(t, p.Put(t.Context(), []byte("a"), append(large, 'x')), pawl.ErrInvalid)
		wantLen(t, p, 3)
		wantErr(t, p.Put(t.Context(), make([][]byte, 20_000*32)...), work.ErrFull)
		noErr(t, mustClaim(t, p).Done(t.Context()))
		if item := mustClaim(t, p); !bytes.Equal(item.Data, large) {
			t.Errorf("an item of %d bytes", len(item.Data))
		}
		for _, data := range []string{"\x80", "\x01", "\x05\x01\x80"} {
			eng := memengine.New()
			_, err := eng.Put(t.Context(), "pawl:pool/other", []byte(data), 0)
			noErr(t, err)
			_, err = work.New(newClient(t, eng), "other", nil).Claim(t.Context())
			wantErr(t, err, pawl.ErrMismatch)
		}
	})
}

// TestOwner: an owner is nobody to share an item with.
func TestOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New())
		noErr(t, work.New(c, "p", nil).Put(t.Context(), tasks(0, 1)...))
		first := mustClaim(t, work.New(c, "p", nil))
		_, err := work.New(c, "p", nil).TryClaim(first.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
	})
}

// TestRandom: each item once, in no order.
func TestRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := work.New(newClient(t, memengine.New()), "p", &work.Options{Random: true})
		noErr(t, p.Put(t.Context(), tasks(0, 200)...))
		var got []string
		for range 200 {
			item := mustClaim(t, p)
			got = append(got, string(item.Data))
			noErr(t, item.Done(t.Context()))
		}
		if slices.IsSorted(got) || got[0] == "item 0" && got[1] == "item 1" {
			t.Errorf("in order: %q", got[:9])
		}
		slices.Sort(got)
		if n := len(slices.Compact(got)); n != 200 {
			t.Errorf("%d items", n)
		}
	})
}

type claimed struct {
	item *work.Item
	err  error
	at   time.Time
}

func claimSoon(ctx context.Context, p *work.Queue) <-chan claimed {
	done := make(chan claimed, 1)
	go func() {
		item, err := p.Claim(ctx)
		done <- claimed{item, err, time.Now()}
	}()
	return done
}

// TestWaits: a waiting worker is told at once of new items, hears of returned items, and ends with
// its context or client.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		worker, putter := newClient(t, eng), work.New(newClient(t, eng), "p", nil)
		p := work.New(worker, "p", nil)
		for range 2 { // of a queue that never was, and of an empty one
			waits := claimSoon(t.Context(), p)
			pass(time.Minute)
			put := time.Now()
			noErr(t, putter.Put(t.Context(), tasks(0, 1)...))
			got := <-waits
			if noErr(t, got.err); got.at != put {
				t.Errorf("told after %v", got.at.Sub(put))
			}
			noErr(t, got.item.Done(t.Context()))
		}
		noErr(t, putter.Put(t.Context(), tasks(0, 1)...))
		item := mustClaim(t, putter)
		waits := claimSoon(t.Context(), p)
		pass(time.Minute)
		returned := time.Now()
		noErr(t, item.Return(t.Context()))
		got := <-waits
		if noErr(t, got.err); got.at.Sub(returned) > 500*time.Millisecond {
			t.Errorf("noticed after %v", got.at.Sub(returned))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantErr(t, (<-claimSoon(ctx, p)).err, pawl.ErrNotAcquired, context.DeadlineExceeded)
		waits = claimSoon(t.Context(), p)
		time.AfterFunc(time.Minute, func() { worker.Close(context.Background()) })
		wantErr(t, (<-waits).err, pawl.ErrClosed)
	})
}

// TestEndsAtALook: a worker's context may end at the very moment of a look that found a busy item. The error matches that context.
func TestEndsAtALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		putter, p := work.New(newClient(t, eng), "p", nil), work.New(newClient(t, eng), "p", nil)
		noErr(t, putter.Put(t.Context(), tasks(0, 1)...))
		mustClaim(t, putter)
		for range 500 { // of which some meet that moment
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			wantErr(t, (<-claimSoon(ctx, p)).err, pawl.ErrNotAcquired, context.DeadlineExceeded)
			cancel()
		}
	})
}

// TestCrash: the items of a dead worker are claimed anew within its TTL and a second, also while
// there is other work. The dead worker has nothing to say.
func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		mortal, store := newFaultyClient(t, eng)
		p := work.New(newClient(t, eng), "p", nil)
		noErr(t, p.Put(t.Context(), tasks(0, 3)...))
		lost := []*work.Item{mustClaim(t, work.New(mortal, "p", nil)), mustClaim(t, work.New(mortal, "p", nil))}
		died := time.Now()
		store.Set(faulty.Fails, faulty.Renew, faulty.Open, faulty.Leave, faulty.Close)
		noErr(t, mustClaim(t, p).Done(t.Context()))
		for i, was := range lost {
			got := <-claimSoon(t.Context(), p)
			if noErr(t, got.err); got.at.Sub(died) > 16*time.Second || got.item.Token() <= was.Token() {
				t.Errorf("item %d came back after %v with token %v after %v", i, got.at.Sub(died), got.item.Token(), was.Token())
			}
			wantErr(t, was.Err(), pawl.ErrLost)
			wantErr(t, was.Done(t.Context()), pawl.ErrLost)
			wantErr(t, was.Return(t.Context()), pawl.ErrLost)
			noErr(t, got.item.Done(t.Context()))
		}
		wantLen(t, p, 0)
	})
}

// TestLostReplies: whatever reply is lost, each item is there once and done
// once.
func TestLostReplies(t *testing.T) {
	for _, verb := range []string{faulty.Put, faulty.Get, faulty.Enter, faulty.Leave, faulty.Watch} {
		for skip := range 6 {
			t.Run(fmt.Sprint(verb, skip), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := newKeyStore()
					c, store := newFaultyClient(t, eng)
					p := work.New(c, "p", nil)
					noErr(t, p.Put(t.Context(), tasks(0, 1)...))
					store.Set(faulty.First(skip, nil, faulty.First(1, faulty.LosesReply, nil)), verb)
					if err := p.Put(t.Context(), tasks(1, 40)...); err != nil {
						t.Fatal(err)
					}
					seen := make(map[string]bool)
					for range 40 {
						item := mustClaim(t, p)
						if seen[string(item.Data)] {
							t.Errorf("%q comes twice", item.Data)
						}
						seen[string(item.Data)] = true
						noErr(t, item.Done(t.Context()))
					}
					pass(time.Minute) // the heartbeat leaves what could not be left
					_, err := p.TryClaim(t.Context())
					wantErr(t, err, pawl.ErrNotAcquired)
					eng.wantEmpty(t, "p")
				})
			})
		}
	}
}

// ledger is a protected resource: it takes work with the largest token that it
// has seen for an item, once.
type ledger struct {
	mu     sync.Mutex
	tokens map[string]fence.Token
	done   map[string]int
}

func (l *ledger) do(name string, token fence.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token < l.tokens[name] || l.done[name] > 0 {
		return false
	}
	l.tokens[name] = token
	l.done[name]++
	return true
}

// TestModel: workers that die, forget, return, and lose replies, while
// others put. Each item is done once, and nothing stays.
func TestModel(t *testing.T) {
	const items = 600
	for _, random := range []bool{false, true} {
		t.Run(fmt.Sprint("random ", random), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := newKeyStore()
				book := &ledger{tokens: make(map[string]fence.Token), done: make(map[string]int)}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var workers, putters sync.WaitGroup
				for range 8 {
					workers.Go(func() {
						for ctx.Err() == nil {
							liveAndDie(ctx, t, eng, random, book)
						}
					})
				}
				for i := range 3 {
					p := work.New(newClient(t, eng), "p", nil)
					putters.Go(func() {
						for n := i * items / 3; n < (i+1)*items/3; n += 10 {
							noErr(t, p.Put(t.Context(), tasks(n, n+10)...))
							pass(rand.N(time.Second))
						}
					})
				}
				putters.Wait()
				p := work.New(newClient(t, eng), "p", nil)
				for n := 1; n > 0; pass(time.Second) {
					var err error
					n, err = p.Len(t.Context())
					noErr(t, err)
				}
				cancel()
				workers.Wait()
				pass(time.Minute)
				p.TryClaim(t.Context()) //nolint:errcheck // it takes pages off the head
				eng.wantEmpty(t, "p")
				if len(book.done) != items {
					t.Errorf("%d items were done of %d", len(book.done), items)
				}
			})
		})
	}
}

// liveAndDie is a worker that works until it dies.
func liveAndDie(ctx context.Context, t *testing.T, eng engine.Engine, random bool, book *ledger) {
	store := faulty.New(eng)
	c, err := pawl.New(t.Context(), store, &pawl.Options{TTL: 3 * time.Second})
	if err != nil {
		t.Error(err)
		return
	}
	p := work.New(c, "p", &work.Options{Random: random})
	defer c.Close(context.Background())
	for range rand.N(40) {
		item, err := p.Claim(ctx)
		if err != nil {
			return
		}
		pass(rand.N(200 * time.Millisecond))
		switch rand.N(12) {
		case 0:
			noErr(t, item.Return(ctx))
			continue
		case 1:
			store.Set(faulty.First(1, faulty.LosesReply, nil), []string{faulty.Put, faulty.Get, faulty.Enter, faulty.Leave}[rand.N(4)])
		}
		if err := item.Err(); err != nil {
			t.Error(err)
		}
		if !book.do(string(item.Data), item.Token()) {
			t.Errorf("%q was done already", item.Data)
		}
		for item.Done(ctx) != nil {
			pass(time.Millisecond)
		}
	}
	p.Claim(ctx) //nolint:errcheck // and dies with it
	store.Set(faulty.Fails, faulty.Renew, faulty.Open, faulty.Enter, faulty.Leave, faulty.Close, faulty.Get, faulty.Put, faulty.Watch)
}

// TestOfClaimed: it takes a while to ask for many items that others have claimed. A worker that
// asks comes to an end of that, does not do it all the time, and hears of new items.
func TestOfClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		busy := work.New(newClient(t, eng), "p", nil)
		noErr(t, busy.Put(t.Context(), tasks(0, 100)...))
		for range 100 {
			mustClaim(t, busy)
		}
		c, store := newFaultyClient(t, eng)
		store.Set(faulty.RepliesLate(10*time.Millisecond), faulty.Enter)
		p := work.New(c, "p", nil)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := p.TryClaim(ctx)
		wantErr(t, err, pawl.ErrNotAcquired)
		if took, asked := time.Since(start), len(store.Called(faulty.Enter)); took > 2*time.Second || asked != 100 {
			t.Errorf("it took %v and %d requests to find that all are claimed", took, asked)
		}
		waits := claimSoon(t.Context(), p)
		pass(time.Minute)
		if asked := len(store.Called(faulty.Enter)); asked > 60*100/4 {
			t.Errorf("asked %d times in a minute", asked)
		}
		put := time.Now()
		noErr(t, busy.Put(t.Context(), tasks(100, 101)...))
		got := <-waits
		if noErr(t, got.err); got.at.Sub(put) > 2*time.Second {
			t.Errorf("told after %v", got.at.Sub(put))
		}
	})
}

// TestOfMany: thousands of items and eight workers take O(n) requests.
func TestOfMany(t *testing.T) {
	for _, random := range []bool{false, true} {
		t.Run(fmt.Sprint("random ", random), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				const items, workers = 5000, 8
				noErr(t, work.New(newClient(t, eng), "p", nil).Put(t.Context(), tasks(0, items)...))
				var all sync.WaitGroup
				var stores []*faulty.Store
				for range workers {
					c, store := newFaultyClient(t, eng)
					stores = append(stores, store)
					p := work.New(c, "p", &work.Options{Random: random})
					all.Go(func() {
						for {
							item, err := p.TryClaim(t.Context())
							if err != nil {
								wantErr(t, err, pawl.ErrNotAcquired)
								return
							}
							pass(rand.N(10 * time.Millisecond))
							noErr(t, item.Done(t.Context()))
						}
					})
				}
				all.Wait()
				calls := make(map[string]int)
				requests := 0
				for _, s := range stores {
					for _, verb := range []string{faulty.Get, faulty.Put, faulty.Enter, faulty.Await, faulty.Leave} {
						calls[verb] += len(s.Called(verb))
						requests += len(s.Called(verb))
					}
				}
				if t.Logf("%d items took %d requests: %v", items, requests, calls); requests > 10*items {
					t.Errorf("%d items took %d requests: %v", items, requests, calls)
				}
				wantLen(t, work.New(newClient(t, eng), "p", nil), 0)
			})
		})
	}
}
