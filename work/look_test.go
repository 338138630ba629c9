package work_test

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/work"
)

// ofAPage is an item that fills a page.
var ofAPage = make([]byte, 9<<10)

// TestLookers: a process that only looks at a queue, or only settles dead letters, forgets the pages that are gone.
func TestLookers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const items = 50
		eng := memengine.New()
		q := work.New(newClient(t, eng), "q", nil)
		looker := work.New(newClient(t, eng), "q", nil)
		operator := work.New(newClient(t, eng), "q", nil).DeadLetters()
		for range items {
			noErr(t, q.Put(t.Context(), ofAPage, ofAPage))
			wantLen(t, looker, 2)
			noErr(t, mustClaim(t, q).Done(t.Context()))
			noErr(t, mustClaim(t, q).Bury(t.Context()))
			for _, l := range letters(t, looker) {
				noErr(t, operator.Drop(t.Context(), l.ID))
			}
		}
		_, err := q.TryClaim(t.Context()) // takes the pages off the head
		wantErr(t, err, pawl.ErrNotAcquired)
		wantLen(t, looker, 0)
		for who, pages := range map[string]int{
			"looks": looker.Remembered(), "lists": looker.DeadLetters().Remembered(), "drops": operator.Remembered(),
		} {
			if pages > 16 { // so many are taken off the head at once
				t.Errorf("a process that %s remembers %d pages of none", who, pages)
			}
		}
		if pages := looker.Remembered(); pages > 0 {
			t.Errorf("a process that looks at an empty queue remembers %d pages", pages)
		}
	})
}

// TestRoomOfDeadLetters: dead letters that an operator settled, each in a process of its own, take no room. To list the others costs no
// request for each letter that is gone.
func TestRoomOfDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		q := work.New(newClient(t, eng), "q", nil)
		for range 50 {
			noErr(t, q.Put(t.Context(), ofAPage))
			noErr(t, mustClaim(t, q).Bury(t.Context()))
		}
		for i, l := range letters(t, q) {
			operator := work.New(newClient(t, eng), "q", nil).DeadLetters()
			if i%2 == 0 {
				noErr(t, operator.Drop(t.Context(), l.ID))
			} else {
				noErr(t, operator.Retry(t.Context(), l.ID))
			}
		}
		c, store := newFaultyClient(t, eng)
		if left := letters(t, work.New(c, "q", nil)); len(left) != 0 {
			t.Fatalf("%d dead letters are left", len(left))
		}
		before := len(store.Called(faulty.Get))
		if left := letters(t, work.New(c, "q", nil)); len(left) != 0 {
			t.Fatalf("%d dead letters are left", len(left))
		}
		if n := len(store.Called(faulty.Get)) - before; n > 2*(1+16) { // letters looks twice
			t.Errorf("%d requests tell that there is no dead letter", n)
		}
	})
}

// TestRoomOfDeadLettersBetweenOthers: a list takes the pages off also while workers bury other items all the time.
func TestRoomOfDeadLettersBetweenOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pages = 300
		eng := memengine.New()
		putDeadPages(t, eng, pages)
		worker := work.New(newClient(t, eng), "q", nil)
		noErr(t, worker.Put(t.Context(), ofAPage))
		c, store := newFaultyClient(t, eng)
		buried := 0
		store.Set(func(ctx context.Context, do func(context.Context) error) error {
			if len(store.Called(faulty.Get))%50 == 0 {
				noErr(t, worker.Put(t.Context(), ofAPage))
				noErr(t, mustClaim(t, worker).Bury(t.Context()))
				buried++
			}
			return do(ctx)
		}, faulty.Get)
		for _, err := range work.New(c, "q", nil).DeadLetters().All(t.Context()) {
			noErr(t, err)
		}
		if n := len(store.Called(faulty.Get)); n >= 3*pages {
			t.Errorf("%d requests for %d pages of none", n, pages)
		}
		c, store = newFaultyClient(t, eng)
		for _, err := range work.New(c, "q", nil).DeadLetters().All(t.Context()) {
			noErr(t, err)
		}
		if n := len(store.Called(faulty.Get)); n != 1+buried { // the head, and a page for each
			t.Errorf("%d requests for %d dead letters", n, buried)
		}
	})
}

// putDeadPages makes a list of dead letters whose pages are all gone.
func putDeadPages(t *testing.T, eng *memengine.Engine, pages uint64) {
	t.Helper()
	head := []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02")
	for _, n := range []uint64{pages + 1, 0, 1, pages} {
		head = binary.AppendUvarint(head, n)
	}
	_, err := eng.Put(t.Context(), "pawl:dead/q", head, 0)
	noErr(t, err)
}

// TestFullOfNoDeadLetters: dead letters whose 20,000 pages are all gone have room again once an operator has listed them.
func TestFullOfNoDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		putDeadPages(t, eng, 20_000)
		q := work.New(newClient(t, eng), "q", nil)
		noErr(t, q.Put(t.Context(), ofAPage))
		item := mustClaim(t, q)
		wantErr(t, item.Bury(t.Context()), work.ErrFull)
		letters(t, work.New(newClient(t, eng), "q", nil))
		noErr(t, item.Bury(t.Context()))
		if all := letters(t, q); len(all) != 1 {
			t.Errorf("%d dead letters, want 1", len(all))
		}
	})
}

// TestClaimGivenUp: a claim whose ctx ends before the store has answered counts no attempt, because nobody worked on the item. The item is
// no dead letter, and the next worker gets the item at once.
func TestClaimGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng)
		opts := &work.Options{MaxAttempts: 2}
		q, other := work.New(c, "q", opts), work.New(newClient(t, eng), "q", opts)
		noErr(t, q.Put(t.Context(), tasks(0, 2)...))
		noErr(t, mustClaim(t, q).Return(t.Context()))
		noErr(t, mustClaim(t, q).Done(t.Context()))
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			store.Set(faulty.First(1, faulty.RepliesLate(time.Second), nil), faulty.Put)
			_, err := q.TryClaim(ctx)
			wantErr(t, err, context.DeadlineExceeded)
			cancel()
		}
		began := time.Now()
		item, err := other.TryClaim(t.Context())
		if err != nil {
			t.Fatalf("%v, and there are %d dead letters", err, len(letters(t, q)))
		}
		if item.Attempts != 2 || time.Since(began) > 0 {
			t.Errorf("attempt %d after %v", item.Attempts, time.Since(began))
		}
	})
}

// TestClaimGivenUpInOrder: a claim that was given up is first undone and then released, so the next worker sees no attempt too many. The
// release arrives also when the store has not undone the claim within 100 ms. Then the attempt counts.
func TestClaimGivenUpInOrder(t *testing.T) {
	for name, is := range map[string]struct {
		undo     faulty.Fault
		most     int
		attempts int
	}{
		"slow":    {faulty.ArrivesLate(50 * time.Millisecond), 2, 2},
		"no more": {faulty.Hangs, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng)
				opts := &work.Options{MaxAttempts: is.most}
				q, other := work.New(c, "q", opts), work.New(newClient(t, eng), "q", opts)
				noErr(t, q.Put(t.Context(), tasks(0, 1)...))
				noErr(t, mustClaim(t, q).Return(t.Context()))
				next := make(chan *work.Item, 1)
				store.Set(faulty.First(1, func(ctx context.Context, do func(context.Context) error) error {
					err := do(ctx)
					item, _ := other.TryClaim(t.Context())
					next <- item
					return err
				}, nil), faulty.Leave)
				store.Set(faulty.First(1, faulty.RepliesLate(time.Second), is.undo), faulty.Put)
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				began := time.Now()
				_, err := q.TryClaim(ctx)
				wantErr(t, err, context.DeadlineExceeded)
				if took := time.Since(began); took > 600*time.Millisecond {
					t.Errorf("the call took %v", took)
				}
				if item := <-next; item == nil || item.Attempts != is.attempts {
					t.Errorf("the next worker has %+v, and there are %d dead letters", item, len(letters(t, other)))
				}
			})
		})
	}
}
