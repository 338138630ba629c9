package work

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/fence"
)

// Item is claimed work. The claim is a lease: while the lease is valid
// no other worker has the item, and the token fences the work. End the claim with Done, Return,
// ReturnAfter or Bury. All methods are safe for concurrent use.
type Item struct {
	Data []byte

	// Attempts is how often the item was claimed, this time included: by this worker, by others,
	// and by workers that died.
	Attempts int

	lease  *pawl.Lease
	queue  *Queue
	id     itemID
	done   atomic.Bool
	buried atomic.Bool // among the dead letters, perhaps also in the queue still
	before *storedItem // what the claim replaces in the page; nil: nothing
}

// Name names the item, and no later item unless the store comes back with an older copy of the queue. The name is the name of the lock
// that the claim holds, under which guards of package fence find the token.
func (it *Item) Name() string { return it.lease.Name() }

// Token is the fencing token of the claim, as [pawl.Lease.Token]: the next claim of the item has a
// larger one.
func (it *Item) Token() fence.Token { return it.lease.Token() }

// Err returns nil while the claim may be believed in, as [pawl.Lease.Err] does, and an error that
// matches [pawl.ErrClosed] after the claim has ended.
func (it *Item) Err() error { return it.lease.Err() }

// ValidUntil returns until when the claim may be believed in if the store does not answer any
// more, as [pawl.Lease.ValidUntil] does.
func (it *Item) ValidUntil() time.Time { return it.lease.ValidUntil() }

// Context returns a context for the work, which ends with the claim, as [pawl.Lease.Context] does.
func (it *Item) Context() context.Context { return it.lease.Context() }

// Within returns ctx, ended also with the claim, as [pawl.Lease.Within] does. cancel frees it.
func (it *Item) Within(ctx context.Context) (within context.Context, cancel func()) {
	return it.lease.Within(ctx)
}

func (it *Item) failed(doing string, err error) error {
	return it.queue.failed(doing+" "+it.id.String(), err)
}

// begin counts the attempt, in the page of the item. When the worker dies, others see that
// count. begin finds nothing if the item is done, or if it is a dead letter now.
func (it *Item) begin(ctx context.Context) (found bool, err error) {
	token := uint64(it.Token())
	work, stop := it.Within(ctx)
	defer stop()
	var is storedItem
	times, spent := 0, false
	_, err = it.queue.changePage(work, it.id.page, func(page *pageValue) error {
		times++
		i := page.index(it.id.number)
		if found = i >= 0; !found {
			return pawl.ErrUnchanged
		}
		switch is = page.items[i]; {
		case is.claim > token:
			return errClaimedAnew
		case is.claim == token: // the reply was lost
			return pawl.ErrUnchanged
		}
		if spent = it.queue.spent(is.attempts); spent {
			return pawl.ErrUnchanged
		}
		before := is
		it.before = &before
		is.attempts, is.claim, is.behind = is.attempts+1, token, 0
		page.items[i] = is
		return nil
	})
	it.Data, it.Attempts = is.data, int(is.attempts) //nolint:gosec // not so many
	switch {
	case err != nil || !found:
		return false, err
	case spent: // by workers that died
		return false, it.Bury(ctx)
	}
	it.queue.crowd(times > 1)
	return true, nil
}

// Done takes the item off the queue and ends the claim. [pawl.ErrLost] says that the
// claim was lost before: the item is another worker's. As with [pawl.Lease.Unlock], ctx bounds only
// the wait for the answer, by its end and 100 ms more. After [pawl.ErrUnavailable] the claim
// stands, and Done may be repeated; once Done has succeeded, a repetition changes nothing.
func (it *Item) Done(ctx context.Context) error {
	ends, end := pawl.Linger(ctx)
	defer end()
	work, stop := it.Within(ends)
	defer stop()
	return it.finish(ends, "done", func() error { return it.queue.remove(work, it.id, uint64(it.Token())) })
}

// Bury makes the item a dead letter, which no worker gets: see [Queue.DeadLetters]. Bury is
// for work that can never be done. ctx and the claim bound the call. The errors are those
// of Done, and [ErrFull] if the dead letters have no room: then the claim stands. When Bury is repeated
// after [pawl.ErrUnavailable], the dead letter may be there twice.
func (it *Item) Bury(ctx context.Context) error {
	ends, end := pawl.Linger(ctx)
	defer end()
	work, stop := it.Within(ctx)
	defer stop()
	return it.finish(ends, "bury", func() error {
		if !it.buried.Load() {
			if err := it.queue.bury(work, it); err != nil {
				return err
			}
			it.buried.Store(true)
		}
		return it.queue.remove(work, it.id, uint64(it.Token()))
	})
}

// finish ends the claim by a step that takes the item off its page. The release is over by ends.
func (it *Item) finish(ends context.Context, doing string, step func() error) error {
	if err := it.Err(); err != nil {
		if it.done.Load() {
			return nil
		}
		return it.failed(doing, err)
	}
	if err := step(); err != nil {
		return it.failed(doing, errors.Join(it.Err(), err))
	}
	it.done.Store(true)
	it.lease.Unlock(ends) //nolint:errcheck // the item is done; the heartbeat repeats the release
	return nil
}

// Return gives the item back for others to claim, after the items that are there. The attempt
// counts: the last attempt that MaxAttempts allows makes the item a dead letter, now or when the
// next worker finds it. Errors are those of [pawl.Lease.Unlock]. A waiting worker notices within
// half a second.
func (it *Item) Return(ctx context.Context) error {
	ends, end := pawl.Linger(ctx)
	defer end()
	if it.spent() {
		if err := it.Bury(ctx); err == nil {
			return nil
		} // else the next worker does it
	}
	var says sync.WaitGroup // side by side, so that both are over soon after ctx
	if it.Err() == nil {
		behind := max(it.queue.lastPage(), it.id.page)
		says.Go(func() { it.giveBack(ends, func(is *storedItem) { is.behind = behind }) })
	}
	err := it.lease.Unlock(ends)
	says.Wait()
	it.queue.forget(it.id)
	return err
}

func (it *Item) spent() bool {
	return it.queue.spent(uint64(it.Attempts)) && it.Err() == nil //nolint:gosec // not negative
}

// giveBack says in the page of the item that nobody has it, unless another worker has claimed the item since. The function changes what
// else the page says of the item. Where giveBack fails, a worker asks for the lock of the item, later.
func (it *Item) giveBack(ctx context.Context, change func(*storedItem)) {
	it.queue.changePage(ctx, it.id.page, func(page *pageValue) error { //nolint:errcheck // see above
		i := page.index(it.id.number)
		if i < 0 || page.items[i].claim != uint64(it.Token()) {
			return pawl.ErrUnchanged
		}
		change(&page.items[i])
		page.items[i].claim = 0
		return nil
	})
}

// undo gives an item back on which nobody has worked, because the answer to begin came too late.
func (it *Item) undo(ctx context.Context) {
	if it.before != nil {
		it.giveBack(ctx, func(is *storedItem) { *is = *it.before })
	}
}

// ReturnAfter gives the item back, but nobody gets the item for the time d. That is
// 100 ms (or the least TTL of the store) to 7 days on the clock of the store. The store keeps that
// time, also when this worker ends. The attempt counts, as in Return. The item keeps its place. A waiting worker notices within a second
// after d, or a third of its TTL, and TryClaim notices. While each Claim finds a free item, [Queue.Claim] says when a worker notices.
// When ReturnAfter fails the item is still claimed. [pawl.ErrInvalid] is for another d,
// and [pawl.ErrUnsupported] for a store that keeps no sessions for so long. After
// [pawl.ErrUnavailable] the item may stay claimed for d whatever becomes of the item.
func (it *Item) ReturnAfter(ctx context.Context, d time.Duration) error {
	ends, end := pawl.Linger(ctx)
	defer end()
	if it.spent() {
		if err := it.Bury(ctx); !errors.Is(err, ErrFull) { // else a worker buries the item when there is room
			return err
		}
	}
	if err := it.Err(); err != nil {
		return it.failed("return", err)
	}
	if err := it.lease.Keep(ends, d); err != nil {
		return it.failed("return", err)
	}
	return it.lease.Unlock(ends)
}

// changePage changes a page, unless change returns an error, and remembers it as it is then.
func (q *Queue) changePage(ctx context.Context, id uint64, change func(*pageValue) error) (is pageValue, err error) {
	known := q.knownPage(id)
	v, err := q.page(id).Update(ctx, func(v pawl.Snapshot) (data []byte, err error) {
		if is, err = parsePage(v); err == nil {
			err = change(&is)
		}
		return is.data(), err
	})
	if err == nil {
		q.learnPage(id, v.Number, known, 0, is)
	}
	return is, err
}

// index is the place of an item in its page; negative: the item is not there.
func (is *pageValue) index(number uint64) int {
	return slices.IndexFunc(is.items, func(item storedItem) bool { return item.number == number })
}
