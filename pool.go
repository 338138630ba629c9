package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// PoolOptions change how a [Pool] is used. The zero value is the default.
type PoolOptions struct {
	// Random claims items in no order instead of the oldest first: workers get
	// less in each other's way. Random is this worker's choice, not the pool's.
	Random bool

	// MaxAttempts is how often an item is claimed before it is a dead letter, if no
	// worker has done it: 0 (without end, the default) to 1,000,000. An attempt that its
	// worker did not survive counts. Workers of a pool should agree on MaxAttempts, because each
	// worker uses its own.
	MaxAttempts int
}

// Pool holds items of work and hands each item to one worker at a time, until a worker
// has done it: two workers that ask for any item never get the same. Items of a worker
// that died come back. A pool needs a store that keeps versioned values; one small value
// stays there when the pool is empty.
//
// The oldest item comes first; an item that was given back comes after those that were there
// then. When several workers claim at once, an item may be overtaken by some that were
// put soon after it.
//
// An item is done at least once. A worker that lost its claim and does not know may still
// work beside the next worker: the protected resource can refuse the smaller token. If a worker
// dies after its work and before Done, another worker repeats the work, unless the
// resource knows that it is done.
//
// # Items that cannot be done
//
// An item that kills its worker, or that every worker gives back, would be tried for ever.
// With [PoolOptions].MaxAttempts the item is tried so often and is then a dead letter, which
// no worker gets: see [Pool.DeadLetters]. A worker follows this recipe:
//
//   - The work is done: [Item.Done].
//   - The work failed and may succeed later: [Item.ReturnAfter], with a time that grows with
//     [Item].Attempts; or [Item.Return], for another worker to try.
//   - The work can never succeed, because the data is no order at all: [Item.Bury].
//   - The worker dies: no call is needed. The attempt counts.
//
// An operator lists the dead letters, mends the cause, and retries or drops each.
//
// Unlike [Mutex], a Pool remembers the pages that it read: make one Pool, and share it.
type Pool struct {
	client *Client
	kind   string // of its locks and values
	name   string
	opts   PoolOptions
	head   *Value
	dead   *Pool // the dead letters

	mu      sync.Mutex
	version uint64               // of the head as it was seen last
	pages   []uint64             // in it
	items   map[uint64]*seenPage // the pages that were read, as they were then
	claimed int                  // how many of the items in them were claimed
	round   uint64               // in each of them all pages are read and items asked for once
	asked   time.Time            // when it began
	every   time.Duration        // how long it is to the next round
	spread  int                  // among how many of the first items and pages to choose
}

// itemID is a page and a number in it.
type itemID struct{ page, number uint64 }

func (id itemID) String() string { return fmt.Sprintf("%d.%d", id.page, id.number) }

const maxAttempts = 1_000_000

// Pool returns the pool of this name. Nil opts are the defaults. See
// [Client.Mutex] for names.
func (c *Client) Pool(name string, opts *PoolOptions) *Pool {
	p := newPool(c, "pool", name)
	p.dead = newPool(c, "dead", name)
	if opts != nil {
		p.opts = *opts
	}
	if n := p.opts.MaxAttempts; p.head.err == nil && (n < 0 || n > maxAttempts) {
		p.head.err = invalid("PoolOptions.MaxAttempts is %d: 0 (without end) to %d are allowed", n, maxAttempts)
	}
	return p
}

func newPool(c *Client, kind, name string) *Pool {
	p := &Pool{
		client: c, kind: kind, name: name, head: newValue(c, kind, name),
		items: make(map[uint64]*seenPage), spread: 1,
	}
	p.head.again = true // all changes of it may be said again
	return p
}

// Name returns the name of the pool.
func (p *Pool) Name() string { return p.name }

// lock is the lock of an item, of the caller that puts, or of the worker that waits for all.
func (p *Pool) lock(of string) *lock {
	l := newLock(p.client, scopedName(p.kind, p.name+"/"+of), engine.KindLock, engine.LockCapacity, engine.LockCapacity)
	l.alone = true // a worker that claims twice wants two items
	return &l
}

// Claim waits for an item that nobody has claimed. Claim fails with
// [ErrNotAcquired] joined with the error of ctx when that ends first, and goes on
// waiting while the store is away.
//
// One waiting worker of a pool looks for items, and the next worker looks when the first
// has found an item; the others only queue. The looking worker is told at once of new items. It
// reads all pages twice a second, so it sees an item that is given back within
// half a second. The items of a dead worker are claimed anew within its TTL and a second; or,
// where more than 30 items are claimed, within its TTL and a third of the TTL. Where a look
// at all claimed items takes longer than 100 ms, the worker looks for a fifth of the time.
func (p *Pool) Claim(ctx context.Context) (*Item, error) {
	for pause := newBackoff(p.client.opts.TTL); ; {
		item, err := p.claim(ctx)
		switch {
		case item != nil:
			return item, nil
		case err == nil:
			pause = newBackoff(p.client.opts.TTL)
		case !errors.Is(err, ErrUnavailable) || !pause.sleep(ctx, p.client.life):
			return nil, p.head.failed("claim", p.client.stopped(ctx, err))
		}
	}
}

// claim claims an item, or takes its turn in waiting for all. claim may return neither an
// item nor an error.
func (p *Pool) claim(ctx context.Context) (*Item, error) {
	item, _, err := p.search(ctx, p.begin(time.Now(), false))
	if item != nil || err != nil {
		return item, err
	}
	turn, err := p.lock("wait").Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer turn.Unlock(ctx) //nolint:errcheck // the heartbeat tells the store again
	for ctx.Err() == nil {
		began := time.Now()
		round := p.begin(began, false)
		round.waits = true
		item, version, err := p.search(ctx, round)
		if item != nil || err != nil {
			return item, err
		}
		v, err := p.head.next(ctx, version, p.rest(began))
		if err == nil {
			err = p.learnHead(v)
		}
		if err != nil || turn.Err() != nil { // this worker waits behind the present one
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// TryClaim claims an item if one is free now, and fails with [ErrNotAcquired] if
// none is. TryClaim asks the store about each claimed item, except those that this
// Pool has asked about within half a second: to wait for work, use Claim.
func (p *Pool) TryClaim(ctx context.Context) (*Item, error) {
	round := p.begin(time.Now(), true) // remembered claims may be over
	round.waits, round.all = true, true
	item, _, err := p.search(ctx, round)
	if item == nil && err == nil {
		err = fmt.Errorf("%w: no item is free", ErrNotAcquired)
	}
	if err != nil {
		return nil, p.head.failed("claim", err)
	}
	return item, nil
}

// search looks for an item, also in new pages. If there is no item it
// returns the version of the head in which there was none.
func (p *Pool) search(ctx context.Context, r round) (*Item, uint64, error) {
	for {
		p.mu.Lock()
		seen := p.version
		p.mu.Unlock()
		item, err := p.take(ctx, r)
		if item != nil || err != nil {
			return item, 0, err
		}
		if err := p.dropPages(ctx, 1); err != nil {
			return nil, 0, err
		}
		v, err := p.head.Get(ctx)
		if err == nil {
			err = p.learnHead(v)
		}
		if err != nil {
			return nil, 0, err
		}
		r.fresh = true
		if v.Number == seen { // nothing is new, so it is the turn of those that were given back
			item, err = p.take(ctx, r)
			return item, seen, err
		}
	}
}

// take claims an item among those that are known.
func (p *Pool) take(ctx context.Context, r round) (*Item, error) {
	for ctx.Err() == nil {
		id, unread, ok := p.choose(r)
		switch {
		case !ok:
			return nil, nil
		case unread:
			is, err := p.read(ctx, id.page, r.number)
			if err == nil && len(is.items) == 0 {
				err = p.dropPages(ctx, deadPages)
			}
			if err != nil {
				return nil, err
			}
		default:
			if item, err := p.try(ctx, id); item != nil || err != nil {
				return item, err
			}
		}
	}
	return nil, ctx.Err()
}

// try claims an item, if nobody has claimed it and it is still to be done. try looks
// under the item's lock, because the item may have been done since it was seen.
func (p *Pool) try(ctx context.Context, id itemID) (*Item, error) {
	lease, err := p.lock(id.String()).TryLock(ctx)
	if errors.Is(err, ErrNotAcquired) && ctx.Err() == nil {
		p.crowd(true)
		p.missed(id)
		return nil, nil
	}
	if err != nil {
		p.forget(id)
		return nil, err
	}
	it := &Item{Lease: lease, pool: p, id: id}
	found, err := it.begin(ctx)
	if found && err == nil {
		return it, nil
	}
	p.forget(id)
	lease.Unlock(ctx) //nolint:errcheck // the heartbeat tells the store again
	return nil, err
}

// Len returns how many items are not done yet, claimed or not, without the dead letters.
// Len reads all of them.
func (p *Pool) Len(ctx context.Context) (int, error) {
	n := 0
	for _, err := range p.all(ctx) {
		if err != nil {
			return 0, p.head.failed("len", err)
		}
		n++
	}
	return n, nil
}

// all yields all items and where they are.
func (p *Pool) all(ctx context.Context) func(yield func(itemOf, error) bool) {
	return func(yield func(itemOf, error) bool) {
		var head poolHead
		v, err := p.head.Get(ctx)
		if err == nil {
			head, err = parseHead(v)
		}
		for _, page := range head.pages {
			var is poolPage
			if is, err = p.read(ctx, page, 0); err != nil {
				break
			}
			for _, item := range is.items {
				if !yield(itemOf{itemID{page, item.number}, item}, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(itemOf{}, err)
		}
	}
}

// itemOf is an item of a pool.
type itemOf struct {
	id itemID
	poolItem
}

// remove takes an item off its page. An item that another worker claimed since, after the
// claim with this token, stays.
func (p *Pool) remove(ctx context.Context, id itemID, token uint64) error {
	left, err := p.changePage(ctx, id.page, func(is *poolPage) error {
		i := is.index(id.number)
		switch {
		case i < 0: // it was taken off, and the reply was lost
			return ErrUnchanged
		case is.items[i].claim > token:
			return errClaimedAnew
		}
		is.items = slices.Delete(is.items, i, i+1)
		return nil
	})
	if err == nil && len(left.items) == 0 {
		p.dropPages(ctx, deadPages) //nolint:errcheck // the next call does it
	}
	return err
}

var errClaimedAnew = fmt.Errorf("%w: another worker has claimed the item since", ErrLost)
