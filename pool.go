package pawl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// PoolOptions change how a [Pool] is used. The zero value is the default.
type PoolOptions struct {
	// Random claims items in no order instead of the oldest first: workers get
	// less in each other's way. It is this worker's choice, not the pool's.
	Random bool
}

// Pool holds items of work and hands each to one worker at a time, until one
// has done it: two that ask for any item never get the same. Items of a worker
// that died come back. It needs a store that keeps versioned values; one small value
// stays there when the pool is empty.
//
// The oldest item comes first. When several workers claim at once, an item may be
// overtaken by some that were put soon after it.
//
// An item is done at least once. One that lost its claim and does not know may still be
// at it when another one is: what is worked on can refuse the smaller token. And one
// that did its work and died before it said so has it done again, unless what is
// worked on knows that it is done.
//
// Unlike [Mutex] it remembers what it saw in the store: make one, and share it.
type Pool struct {
	client *Client
	name   string
	random bool
	head   *Value

	mu      sync.Mutex
	version uint64                // of the head as it was seen last
	pages   []uint64              // in it
	items   map[uint64][]seenItem // of the pages that were read, as they were then
	round   uint64                // in each of them all items are asked for once
	asked   time.Time             // when it began
	every   time.Duration         // how long it is to the next one
	spread  int                   // among how many of the first items and pages to choose
}

type seenItem struct {
	number uint64
	round  uint64 // in which it was found claimed, or is being tried; 0: none
}

// itemID is a page and a number in it.
type itemID struct{ page, number uint64 }

func (id itemID) String() string { return fmt.Sprintf("%d.%d", id.page, id.number) }

const (
	askAgain  = 500 * time.Millisecond // about items that were found claimed
	maxSpread = 64
)

// Pool returns the pool of this name. Nil opts are the defaults. See
// [Client.Mutex] for names.
func (c *Client) Pool(name string, opts *PoolOptions) *Pool {
	p := &Pool{
		client: c, name: name, head: newValue(c, "pool", name),
		items: make(map[uint64][]seenItem), spread: 1,
	}
	p.head.again = true // all changes of it may be said again
	if opts != nil {
		p.random = opts.Random
	}
	return p
}

// Name returns the name of the pool.
func (p *Pool) Name() string { return p.name }

// lock is that of an item, or of who puts.
func (p *Pool) lock(of string) *lock {
	l := newLock(p.client, scopedName("pool", p.name+"/"+of), engine.KindLock, engine.LockCapacity, engine.LockCapacity)
	l.alone = true // who claims twice wants two items
	return &l
}

// Item is work that was claimed. Its lease is the claim: while it is valid
// nobody else has the item, and its token fences what is done. The name of
// the lease names the item and is never used again. End it with Done or Return.
type Item struct {
	*Lease
	Data []byte

	pool *Pool
	id   itemID
	done atomic.Bool
}

// Claim waits for an item that nobody has claimed. It fails with
// [ErrNotAcquired] joined with the error of ctx when that ends first, and goes on
// waiting while the store is away. Who waits is told at once of items that are put,
// and asks twice a second for those that others have claimed: what a dead worker
// had is claimed anew within its TTL and a second. Where so many are claimed that to ask
// for all takes longer than 100 ms it does that for a fifth of the time.
func (p *Pool) Claim(ctx context.Context) (*Item, error) {
	for pause := newBackoff(p.client.opts.TTL); ; {
		began := time.Now()
		item, version, trouble := p.search(ctx, p.begin(began, false))
		if item != nil {
			return item, nil
		}
		err := trouble
		if err == nil {
			var v Version
			if v, err = p.head.next(ctx, version, p.rest(began)); err == nil {
				err = p.learnHead(v)
				pause = newBackoff(p.client.opts.TTL)
			}
		}
		if err == nil || errors.Is(err, ErrUnavailable) && pause.sleep(ctx, p.client.life) {
			continue
		}
		if ctx.Err() != nil {
			err = trouble
		}
		return nil, p.head.failed("claim", p.client.stopped(ctx, err))
	}
}

// TryClaim claims an item if one is free now, and fails with [ErrNotAcquired] if
// none is.
func (p *Pool) TryClaim(ctx context.Context) (*Item, error) {
	item, _, err := p.search(ctx, p.begin(time.Now(), true)) // what it remembers may be over
	if item == nil && err == nil {
		err = fmt.Errorf("%w: no item is free", ErrNotAcquired)
	}
	if err != nil {
		return nil, p.head.failed("claim", err)
	}
	return item, nil
}

// begin returns the round to ask in, a new one if it is time or that is wanted. Who began
// earlier goes on with the one before, and comes to its end.
func (p *Pool) begin(now time.Time, anew bool) (round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if anew || now.Sub(p.asked) >= p.every {
		p.round++
		p.asked, p.every = now, askAgain
	}
	return p.round
}

// search looks for an item, also in pages that are new. If there is none it
// returns the version of the head in which there was none.
func (p *Pool) search(ctx context.Context, round uint64) (*Item, uint64, error) {
	for {
		p.mu.Lock()
		seen := p.version
		p.mu.Unlock()
		item, err := p.take(ctx, round)
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
		if v.Number == seen || err != nil {
			return nil, seen, err
		}
	}
}

// take claims one of the items that are known.
func (p *Pool) take(ctx context.Context, round uint64) (*Item, error) {
	for ctx.Err() == nil {
		id, unread, ok := p.choose(round)
		switch {
		case !ok:
			return nil, nil
		case unread:
			items, err := p.read(ctx, id.page)
			if err == nil && len(items) == 0 {
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

// choose picks an item that may be free, or a page to be read.
func (p *Pool) choose(round uint64) (id itemID, unread, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start, enough := 0, p.spread
	if p.random {
		start, enough = rand.N(max(len(p.pages), 1)), 1
	}
	var open []uint64
	for i := range p.pages {
		page := p.pages[(start+i)%len(p.pages)]
		if _, read := p.items[page]; !read || len(p.free(page, round)) > 0 {
			if open = append(open, page); len(open) == enough {
				break
			}
		}
	}
	if len(open) == 0 {
		return id, false, false
	}
	id.page = open[rand.N(len(open))]
	if _, read := p.items[id.page]; !read {
		return id, true, true
	}
	free := p.free(id.page, round)
	if !p.random {
		free = free[:min(len(free), p.spread)]
	}
	item := free[rand.N(len(free))]
	id.number, item.round = item.number, p.round // another goroutine tries another one
	return id, false, true
}

// free returns the items of a page that may be free.
func (p *Pool) free(page, round uint64) (free []*seenItem) {
	items := p.items[page]
	for i := range items {
		if items[i].round < round {
			free = append(free, &items[i])
		}
	}
	return free
}

// try claims an item, if nobody has and it is still to be done. That is looked at
// under its lock, for the item may have been done since it was seen.
func (p *Pool) try(ctx context.Context, id itemID) (*Item, error) {
	lease, err := p.lock(id.String()).TryLock(ctx)
	if errors.Is(err, ErrNotAcquired) && ctx.Err() == nil {
		p.crowd(true)
		return nil, nil
	}
	if err != nil {
		p.forget(id)
		return nil, err
	}
	page, err := p.read(ctx, id.page)
	for _, item := range page {
		if item.number == id.number {
			p.crowd(false)
			return &Item{Lease: lease, Data: item.data, pool: p, id: id}, nil
		}
	}
	p.forget(id)
	lease.Unlock(ctx) //nolint:errcheck // the heartbeat tells the store again
	return nil, err
}

// crowd has claimers that meet keep away from one another, and those that do not go
// by the order.
func (p *Pool) crowd(met bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if met {
		p.spread = min(2*p.spread, maxSpread)
	} else {
		p.spread = max(p.spread-1, 1)
	}
}

// forget that an item is claimed.
func (p *Pool) forget(id itemID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, item := range p.items[id.page] {
		if item.number == id.number {
			p.items[id.page][i].round = 0
		}
	}
}

// rest is how long to wait before asking again for the items that are claimed, for who
// began to ask then. To ask for many of them takes a while, and shall not be all that it
// does; 0: there are none.
func (p *Pool) rest(began time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.asked.Equal(began) {
		p.every = max(askAgain, 5*now.Sub(began))
	}
	if len(p.pages) == 0 {
		return 0
	}
	return max(p.every-now.Sub(p.asked), time.Millisecond)
}

// Done takes the item off the pool and ends the claim. [ErrLost] says that the
// claim was lost before: the item is another worker's. As Unlock it works after
// ctx ended. After [ErrUnavailable] the claim stands, and it may be said again; once
// it has succeeded, that changes nothing.
func (it *Item) Done(ctx context.Context) error {
	if err := it.Err(); err != nil {
		if it.done.Load() {
			return nil
		}
		return it.lock.failed(err)
	}
	work, stop := it.Within(context.WithoutCancel(ctx))
	defer stop()
	if err := it.pool.remove(work, it.id); err != nil {
		if lost := it.Err(); lost != nil {
			err = errors.Join(lost, err)
		}
		return err
	}
	it.done.Store(true)
	it.Unlock(ctx) //nolint:errcheck // it is done; the heartbeat tells the store again
	return nil
}

// Return gives the item back for others to claim, as Unlock does. Who waits
// notices within half a second.
func (it *Item) Return(ctx context.Context) error {
	err := it.Unlock(ctx)
	it.pool.forget(it.id)
	return err
}

// remove takes an item off its page.
func (p *Pool) remove(ctx context.Context, id itemID) error {
	var left []poolItem
	if _, err := p.page(id.page).change(ctx, func(v Version) (data []byte, err error) {
		if left, err = parsePage(v); err != nil {
			return nil, err
		}
		i := slices.IndexFunc(left, func(item poolItem) bool { return item.number == id.number })
		if i < 0 { // it was taken off, and the reply was lost
			return nil, errUnchanged
		}
		left = slices.Delete(left, i, i+1)
		return pageData(left), nil
	}); err != nil {
		return err
	}
	p.learnPage(id.page, left)
	if len(left) == 0 {
		p.dropPages(ctx, deadPages) //nolint:errcheck // the next one does it
	}
	return nil
}

// Len returns how many items are not done yet, claimed or not. It reads all of
// them.
func (p *Pool) Len(ctx context.Context) (int, error) {
	v, err := p.head.Get(ctx)
	if err != nil {
		return 0, err
	}
	head, err := parseHead(v)
	n := 0
	for _, page := range head.pages {
		var items []poolItem
		if items, err = p.read(ctx, page); err != nil {
			break
		}
		n += len(items)
	}
	if err != nil {
		return 0, p.head.failed("len", err)
	}
	return n, nil
}

// page is the value with some of the items.
func (p *Pool) page(id uint64) *Value {
	v := newValue(p.client, "page", p.name)
	v.key, v.again = scopedName("page", p.name+"/"+strconv.FormatUint(id, 10)), true
	return v
}

// read reads a page, and remembers what is in it.
func (p *Pool) read(ctx context.Context, id uint64) ([]poolItem, error) {
	v, err := p.page(id).Get(ctx)
	if err != nil {
		return nil, err
	}
	items, err := parsePage(v)
	if err == nil {
		p.learnPage(id, items)
	}
	return items, err
}
