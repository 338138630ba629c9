package pawl

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Item is claimed work. Its lease is the claim: while the lease is valid
// no other worker has the item, and the token fences the work. The name of
// the lease names the item and is never used again. End the claim with Done, Return, ReturnAfter
// or Bury.
type Item struct {
	*Lease
	Data []byte

	// Attempts is how often the item was claimed, this time included: by this worker,
	// by others, and by those that died.
	Attempts int

	pool   *Pool
	id     itemID
	done   atomic.Bool
	buried atomic.Bool // among the dead letters, perhaps also in the pool still
}

// begin counts the attempt, in the page of the item. When the worker dies, others see that
// count. begin finds nothing if the item is done, or if it is a dead letter now.
func (it *Item) begin(ctx context.Context) (found bool, err error) {
	token, most := uint64(it.Token()), uint64(it.pool.opts.MaxAttempts) //nolint:gosec // not negative
	work, stop := it.Within(ctx)
	defer stop()
	var is poolItem
	times, spent := 0, false
	_, err = it.pool.changePage(work, it.id.page, func(page *poolPage) error {
		times++
		i := page.index(it.id.number)
		if found = i >= 0; !found {
			return ErrUnchanged
		}
		switch is = page.items[i]; {
		case is.claim > token:
			return errClaimedAnew
		case is.claim == token: // the reply was lost
			return ErrUnchanged
		}
		if spent = most > 0 && is.attempts >= most; spent {
			return ErrUnchanged
		}
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
	it.pool.crowd(times > 1)
	return true, nil
}

// Done takes the item off the pool and ends the claim. [ErrLost] says that the
// claim was lost before: the item is another worker's. As with Unlock, ctx bounds only
// the wait for the answer, by its end and 100 ms more. After [ErrUnavailable] the claim
// stands, and Done may be repeated; once Done has succeeded, a repetition changes nothing.
func (it *Item) Done(ctx context.Context) error {
	work, stop := it.farewell(ctx)
	defer stop()
	return it.finish(ctx, func() error { return it.pool.remove(work, it.id, uint64(it.Token())) })
}

// Bury makes the item a dead letter, which no worker gets: see [Pool.DeadLetters]. Bury is
// for work that can never be done. ctx and the claim bound the call. Its errors are those
// of Done. When Bury is repeated after [ErrUnavailable], the dead letter may be there twice.
func (it *Item) Bury(ctx context.Context) error {
	work, stop := it.Within(ctx)
	defer stop()
	return it.finish(ctx, func() error {
		if !it.buried.Load() {
			if err := it.pool.bury(work, it); err != nil {
				return err
			}
			it.buried.Store(true)
		}
		return it.pool.remove(work, it.id, uint64(it.Token()))
	})
}

// finish ends the claim by a step that takes the item off its page.
func (it *Item) finish(ctx context.Context, step func() error) error {
	if err := it.Err(); err != nil {
		if it.done.Load() {
			return nil
		}
		return it.lock.failed(err)
	}
	if err := step(); err != nil {
		return errors.Join(it.Err(), err)
	}
	it.done.Store(true)
	it.Unlock(ctx) //nolint:errcheck // the item is done; the heartbeat repeats the release
	return nil
}

// farewell is for requests that are sent also after ctx ended. They end with the claim.
func (it *Item) farewell(ctx context.Context) (context.Context, func()) {
	work, stop := it.Within(context.WithoutCancel(ctx))
	bound, end := linger(work, ctx)
	return bound, func() { end(); stop() }
}

// Return gives the item back for others to claim, after those that are there. The attempt
// counts: the last attempt that MaxAttempts allows makes the item a dead letter, now or when the
// next worker finds it. Errors are those of Unlock. A waiting worker notices within half a second.
func (it *Item) Return(ctx context.Context) error {
	if it.spent() {
		if err := it.Bury(ctx); err == nil {
			return nil
		} // else the next worker does it
	}
	var says sync.WaitGroup // side by side, so that both are over soon after ctx
	if it.Err() == nil {
		says.Go(func() { it.giveBack(ctx) }) //nolint:errcheck // a waiting worker asks for its lock, later
	}
	err := it.Unlock(ctx)
	says.Wait()
	it.pool.forget(it.id)
	return err
}

func (it *Item) spent() bool {
	most := it.pool.opts.MaxAttempts
	return most > 0 && it.Attempts >= most && it.Err() == nil
}

// giveBack says in the page of the item that nobody has it, and where it stands now, unless
// another worker has claimed it since.
func (it *Item) giveBack(ctx context.Context) error {
	behind := it.pool.lastPage()
	work, stop := linger(context.WithoutCancel(ctx), ctx)
	defer stop()
	_, err := it.pool.changePage(work, it.id.page, func(page *poolPage) error {
		i := page.index(it.id.number)
		if i < 0 || page.items[i].claim != uint64(it.Token()) {
			return ErrUnchanged
		}
		page.items[i].claim, page.items[i].behind = 0, max(behind, it.id.page)
		return nil
	})
	return err
}

// ReturnAfter gives the item back as Return does, but nobody gets it for the time d,
// 100 ms (or the least TTL of the store) to 7 days on the clock of the store. The store
// keeps that time, also when this worker ends. A waiting worker notices within a second
// after d, or a third of its TTL. When ReturnAfter fails the item is still claimed: with
// [ErrInvalid] for another d; with [ErrUnsupported] on a store that keeps no sessions
// for so long; or with [ErrUnavailable], after which the item may stay claimed for d
// whatever becomes of the item.
func (it *Item) ReturnAfter(ctx context.Context, d time.Duration) error {
	if it.spent() {
		return it.Bury(ctx)
	}
	if err := it.Err(); err != nil {
		return it.lock.failed(err)
	}
	work, stop := Linger(ctx)
	defer stop()
	if err := it.Keep(work, d); err != nil {
		return err
	}
	return it.Unlock(ctx)
}

// changePage changes a page, unless change returns an error, and remembers it as it is then.
func (p *Pool) changePage(ctx context.Context, id uint64, change func(*poolPage) error) (is poolPage, err error) {
	v, err := p.page(id).Update(ctx, func(v Snapshot) (data []byte, err error) {
		if is, err = parsePage(v); err == nil {
			err = change(&is)
		}
		return is.data(), err
	})
	if err == nil {
		p.learnPage(id, v.Number, 0, is)
	}
	return is, err
}

// index is the place of an item in its page; negative: the item is not there.
func (is *poolPage) index(number uint64) int {
	return slices.IndexFunc(is.items, func(item poolItem) bool { return item.number == number })
}
