// Package work hands items of work to workers. Each item of a [Queue] goes to one worker at a time,
// until a worker has done it. The item comes back when its worker dies. The queue stands in the
// store that the locks are in, and needs versioned values there, see [pawl.Value].
//
// The package is built on the exported API of package pawl only, as a service of your own would be.
package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
)

// Options change how a [Queue] is used. The zero value is the default.
type Options struct {
	// Random claims items in no order instead of the oldest first: workers get
	// less in each other's way. Random is this worker's choice, not the queue's.
	Random bool

	// MaxAttempts is how often an item is claimed before it is a dead letter, if no worker has done
	// it. The range is 0 (without end, the default) to 1,000,000. An attempt that its worker did not
	// survive counts. Workers of a queue should agree on MaxAttempts, because each worker uses its own.
	MaxAttempts int
}

// Queue holds items of work and hands each item to one worker at a time, until a worker has done
// it. Two workers that ask for any item never get the same. Items of a worker that died come back.
// A queue needs a store that keeps versioned values; one small value stays there when the queue is
// empty.
//
// The oldest item comes first; an item that was given back comes after the items that were there
// then. When several workers claim at once, an item may be overtaken by some that were put soon
// after it.
//
// An item is done at least once. A worker that lost its claim and does not know may still
// work beside the next worker: the protected resource can refuse the smaller token. If a worker
// dies after its work and before Done, another worker repeats the work, unless the
// resource knows that it is done.
//
// # Items that cannot be done
//
// An item that kills its worker, or that every worker gives back, would be tried for ever.
// With [Options].MaxAttempts the item is tried so often and is then a dead letter, which
// no worker gets: see [Queue.DeadLetters]. A worker follows this recipe:
//
//   - The work is done: [Item.Done].
//   - The work failed and may succeed later: [Item.ReturnAfter], with a time that grows with
//     [Item].Attempts; or [Item.Return], which lets another worker try.
//   - The work can never succeed, because the data is no order at all: [Item.Bury].
//   - The worker dies: no call is needed. The attempt counts.
//
// An operator lists the dead letters, mends the cause, and retries or drops each.
//
// Unlike [pawl.Mutex], a Queue remembers the pages that it read: make one Queue, and share it. All
// methods are safe for concurrent use.
type Queue struct {
	client *pawl.Client
	locks  *pawl.Scope // of items, of callers that put, and of workers that wait
	values *pawl.Scope // of the pages
	name   string
	opts   Options
	err    error // the mistake in the description, returned at the first use
	head   *pawl.Value
	dead   *Queue // the dead letters

	mu      sync.Mutex
	version uint64               // of the head as it was seen last
	pages   []uint64             // in it
	items   map[uint64]*seenPage // the pages that were read, as they were then
	claimed int                  // how many of the items in them were claimed
	round   uint64               // in each of them all pages are read and items asked for once
	full    uint64               // the last round in which the dead letters had no room
	asked   time.Time            // when it began
	every   time.Duration        // how long it is to the next round
	spread  int                  // among how many of the first items and pages to choose
}

// itemID is a page and a number in it.
type itemID struct{ page, number uint64 }

func (id itemID) String() string { return fmt.Sprintf("%d.%d", id.page, id.number) }

const maxAttempts = 1_000_000

// New returns the queue of this name in the store of the client. Nil opts are the defaults. See
// [pawl.Client.Mutex] for names. New asks the store nothing. A name or option out of its range is a
// [pawl.ErrInvalid] at the first use, and a store without versioned values a [pawl.ErrUnsupported].
func New(client *pawl.Client, name string, opts *Options) *Queue {
	q := newQueue(client, "pool", name) // the name in the store since version 0, see page.go
	q.dead = newQueue(client, "dead", name)
	if opts != nil {
		q.opts = *opts
	}
	if n := q.opts.MaxAttempts; q.err == nil && (n < 0 || n > maxAttempts) {
		q.err = fmt.Errorf("%w: Options.MaxAttempts is %d: 0 (without end) to %d are allowed", pawl.ErrInvalid, n, maxAttempts)
	}
	return q
}

func newQueue(client *pawl.Client, kind, name string) *Queue {
	q := &Queue{
		client: client, locks: client.Scope(kind), values: client.Scope(kind + "-page"), name: name,
		err:   pawl.CheckName(name),
		items: make(map[uint64]*seenPage), spread: 1,
	}
	q.head = q.locks.Value(name).Idempotent() // all changes of it may be said again
	if q.err == nil {
		q.err = q.head.Err()
	}
	return q
}

// Name returns the name of the queue.
func (q *Queue) Name() string { return q.name }

func (q *Queue) failed(doing string, err error) error {
	return fmt.Errorf("queue %q: %s: %w", q.name, doing, err)
}

// lock is the lock of an item, of the caller that puts, or of the worker that waits for all.
func (q *Queue) lock(of string) *pawl.Mutex { return q.locks.Mutex(q.name + "/" + of) }

// Claim waits for an item that nobody has claimed. Claim fails with
// [pawl.ErrNotAcquired] joined with the error of ctx when that ends first, and goes on
// waiting while the store is away.
//
// One waiting worker of a queue looks for items, and the next worker looks when the first has found
// an item; the others only queue. The looking worker is told at once of new items. The looking worker reads all
// pages twice a second, so it sees an item that is given back within half a second. If the looking worker dies, the next worker
// looks when the session of the dead worker has ended, within its TTL. Until then only workers that begin a Claim see new items. Where a worker
// waits, the items of a dead worker are claimed anew within its TTL and a second. Where more than 30 items are claimed,
// that is its TTL and a third of the TTL. Where a look at all claimed items takes longer than 100
// ms, the worker looks for a fifth of the time.
//
// While each Claim finds a free item, no worker waits. Then each Claim asks about one claimed item at most, the item that was not asked about
// for longest, with two requests. The Claims of a Queue ask about an item twice a second at most. So the item of a dead worker may wait for
// as many Claims as items are claimed.
func (q *Queue) Claim(ctx context.Context) (*Item, error) {
	item, err := (*Item)(nil), q.err
	for item == nil && err == nil {
		err = q.client.Retry(ctx, 0, func() (err error) {
			item, err = q.claim(ctx)
			return err
		})
	}
	if err != nil {
		return nil, q.failed("claim", waited(ctx, err))
	}
	return item, nil
}

// waited is the error of a wait that its context may have ended.
func waited(ctx context.Context, err error) error {
	ended := ctx.Err()
	told := errors.Is(err, pawl.ErrNotAcquired) && errors.Is(err, ended) // an item that others hold says nothing of ctx
	if ended != nil && !told && !errors.Is(err, pawl.ErrClosed) {
		err = fmt.Errorf("%w: %w", pawl.ErrNotAcquired, errors.Join(context.Cause(ctx), err))
	}
	return err
}

// claim claims an item, or takes its turn in waiting for all. claim may return neither an
// item nor an error.
func (q *Queue) claim(ctx context.Context) (*Item, error) {
	first := q.begin(time.Now(), false)
	item, _, err := q.search(ctx, &first)
	if item != nil || err != nil {
		return item, err
	}
	ends, end := pawl.Linger(ctx)
	defer end()
	turn, err := q.lock("wait").Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer turn.Unlock(ends) //nolint:errcheck // the heartbeat tells the store again
	for ctx.Err() == nil {
		began := time.Now()
		round := q.begin(began, false)
		round.waits = true
		item, version, err := q.search(ctx, &round)
		if item != nil || err != nil {
			return item, err
		}
		v, err := q.next(ctx, version, q.rest(began))
		if err == nil {
			err = q.learnHead(v, version)
		}
		if err != nil || turn.Err() != nil { // this worker waits behind the present one
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// next waits until the head is at another version, or for so long; 0 is without end.
func (q *Queue) next(ctx context.Context, version uint64, most time.Duration) (v pawl.Snapshot, err error) {
	if most == 0 {
		return q.head.Next(ctx, version)
	}
	bound, stop := context.WithTimeout(ctx, most)
	defer stop()
	v, err = q.head.Next(bound, version)
	if err == nil || bound.Err() == nil || ctx.Err() != nil {
		return v, err
	}
	err = q.client.Retry(ctx, 0, func() (err error) {
		v, err = q.head.Get(ctx)
		return err
	})
	return v, err
}

// TryClaim claims an item if one is free now, and fails with [pawl.ErrNotAcquired] if none is. In a restart grace that error
// also matches [pawl.ErrGrace].
// TryClaim asks the store about each claimed item, unless this Queue has asked about the item
// within half a second. To wait for work, use Claim.
func (q *Queue) TryClaim(ctx context.Context) (*Item, error) {
	if q.err != nil {
		return nil, q.failed("claim", q.err)
	}
	round := q.begin(time.Now(), true) // remembered claims may be over
	round.waits, round.all = true, true
	item, _, err := q.search(ctx, &round)
	if item == nil && err == nil {
		err = cmp.Or(round.grace, fmt.Errorf("%w: no item is free", pawl.ErrNotAcquired))
	}
	if err != nil {
		return nil, q.failed("claim", err)
	}
	return item, nil
}

// search looks for an item, also in new pages. If there is no item it
// returns the version of the head in which there was none.
func (q *Queue) search(ctx context.Context, r *round) (*Item, uint64, error) {
	for {
		seen := q.knownHead()
		item, err := q.take(ctx, r)
		if item != nil || err != nil {
			return item, 0, err
		}
		if err := q.dropPages(ctx, 1); err != nil {
			return nil, 0, err
		}
		v, err := q.head.Get(ctx)
		if err == nil {
			err = q.learnHead(v, seen)
		}
		if err != nil {
			return nil, 0, err
		}
		r.fresh = true
		if v.Number == seen { // nothing is new, so it is the turn of items that were given back
			item, err = q.take(ctx, r)
			return item, seen, err
		}
	}
}

// take claims an item among the known ones.
func (q *Queue) take(ctx context.Context, r *round) (*Item, error) {
	for ctx.Err() == nil {
		id, unread, ok := q.choose(r)
		switch {
		case !ok:
			return nil, nil
		case unread:
			is, err := q.read(ctx, id.page, r.number)
			if err == nil && len(is.items) == 0 {
				err = q.dropPages(ctx, deadPages)
			}
			if err != nil {
				return nil, err
			}
		default:
			item, err := q.try(ctx, id)
			switch {
			case errors.Is(err, pawl.ErrGrace): // the store may grant other items
				r.grace, err = err, nil
			case errors.Is(err, errClaimedAnew), errors.Is(err, errItemLost): // another worker may have this item now
				err = nil
			}
			if item != nil || err != nil {
				return item, err
			}
		}
	}
	return nil, ctx.Err()
}

// try claims an item, if nobody has claimed it and it is still to be done. try looks
// under the item's lock, because the item may have been done since it was seen. The only error that matches
// pawl.ErrNotAcquired is a restart grace, unless ctx has ended.
func (q *Queue) try(ctx context.Context, id itemID) (*Item, error) {
	lease, err := q.lock(id.String()).TryLock(ctx)
	if errors.Is(err, pawl.ErrNotAcquired) && ctx.Err() == nil {
		grace := errors.Is(err, pawl.ErrGrace)
		q.missed(id, grace)
		if !grace {
			err = nil
		}
		return nil, err
	}
	if err != nil {
		q.forget(id)
		return nil, err
	}
	ends, end := pawl.Linger(ctx)
	defer end()
	it := &Item{lease: lease, queue: q, id: id}
	found, err := it.begin(ctx)
	if found && err == nil {
		return it, nil
	}
	q.forget(id)
	switch {
	case errors.Is(err, ErrFull): // the dead letters are: the item stays, and lets others pass
		q.keepSpent()
		err = nil
	case errors.Is(err, errClaimedAnew):
		q.missed(id, false)
	case err != nil && errors.Is(lease.Err(), pawl.ErrLost): // so err says nothing of the store
		err = fmt.Errorf("%w: %w", errItemLost, errors.Join(lease.Err(), err))
	}
	it.undo(ends)      // under the lock, because the next worker may find the attempts spent
	lease.Unlock(ends) //nolint:errcheck // the request is sent also after ends, and the heartbeat tells the store again
	return nil, err
}

// Len returns how many items are not done yet, claimed or not, without the dead letters.
// Len reads all of them.
func (q *Queue) Len(ctx context.Context) (int, error) {
	n := 0
	for _, err := range q.all(ctx) {
		if err != nil {
			return 0, q.failed("len", err)
		}
		n++
	}
	return n, nil
}

// all yields all items and where they are.
func (q *Queue) all(ctx context.Context) func(yield func(itemOf, error) bool) {
	return func(yield func(itemOf, error) bool) {
		var head headValue
		var v pawl.Snapshot
		err, known := q.err, q.knownHead()
		if err == nil {
			v, err = q.head.Get(ctx)
		}
		if err == nil {
			head, err = parseHead(v)
		}
		if err == nil {
			err = q.learnHead(v, known)
		}
		for _, page := range head.pages {
			var is pageValue
			if is, err = q.read(ctx, page, 0); err != nil {
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

// itemOf is an item of a queue.
type itemOf struct {
	id itemID
	storedItem
}

// remove takes an item off its page. An item that another worker claimed since, after the
// claim with this token, stays.
func (q *Queue) remove(ctx context.Context, id itemID, token uint64) error {
	left, err := q.changePage(ctx, id.page, func(is *pageValue) error {
		i := is.index(id.number)
		switch {
		case i < 0: // it was taken off, and the reply was lost
			return pawl.ErrUnchanged
		case is.items[i].claim > token:
			return errClaimedAnew
		}
		is.items = slices.Delete(is.items, i, i+1)
		return nil
	})
	if err == nil && len(left.items) == 0 {
		q.dropPages(ctx, deadPages) //nolint:errcheck // the next call does it
	}
	return err
}

// The two ways to lose an item before the work begins. Also other locks may be lost meanwhile, such as that of the dead letters.
var (
	errItemLost    = errors.New("the item was lost")
	errClaimedAnew = fmt.Errorf("%w: another worker has claimed the item since", pawl.ErrLost)
)
