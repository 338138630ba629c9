package work

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
)

// A worker's memory of a queue, and its choice of the next request to the store. The page
// of an item says that it is claimed, so no worker asks for its lock to learn that. A
// waiting worker asks about all such items, rarely, to learn whether their workers live. Each other search asks about one such item at
// most.

const (
	askAgain  = 500 * time.Millisecond // from one look at all pages to the next
	probeGap  = 30 * time.Millisecond  // from one question about a claimed item to the next
	maxSpread = 64
)

// seenPage is a page as it was when it was read.
type seenPage struct {
	version uint64
	head    uint64 // the version of the head that was known before
	stale   bool   // it has changed since
	round   uint64 // in which it was read
	claims  int    // how many of the items were claimed
	items   []seenItem
}

type seenItem struct {
	number, attempts, claim, behind uint64    // as in its page
	tried                           uint64    // the round in which its lock was asked for; 0: none
	asked                           time.Time // when that was, if it was claimed
	due                             time.Time // when to ask next, if it is claimed
}

// round is one look at all pages and items.
type round struct {
	number uint64
	began  time.Time
	waits  bool  // for all workers: looks again at pages with items that are claimed, and asks for those
	all    bool  // asks for all of those
	fresh  bool  // the head was read in this search
	grace  error // which kept an item from this search

	// A search that does not wait asks for one claimed item at most.
	looked bool   // has chosen that item, and read its page
	id     itemID // of that item
	claim  uint64 // the token of its claim then
	asked  bool   // has asked, or there is no such item
}

// begin returns the round to ask in, a new round if it is time or anew is set. A search that
// began earlier goes on with the earlier round, and comes to its end.
func (q *Queue) begin(now time.Time, anew bool) round {
	q.mu.Lock()
	defer q.mu.Unlock()
	if anew || now.Sub(q.asked) >= q.every {
		q.round++
		q.asked, q.every = now, askAgain
	}
	return round{number: q.round, began: now}
}

// rest is the pause of a waiting worker before it looks again, after a look that began then.
// A look at many items takes a while, and must not take all the time; 0: there is nothing.
func (q *Queue) rest(began time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if q.asked.Equal(began) {
		q.every = max(askAgain, 5*now.Sub(began))
	}
	if len(q.pages) == 0 {
		return 0
	}
	return max(q.every-now.Sub(q.asked), time.Millisecond)
}

// probing is how long it is from one question about a claimed item to the next.
func (q *Queue) probing() time.Duration {
	return min(max(askAgain, time.Duration(q.claimed)*probeGap), max(askAgain, q.client.TTL()/3))
}

// place is where there may be a free item: a page, or one item that was given back and
// stands behind another page.
type place struct{ position, attempts, page, number uint64 }

func (a place) before(b place) int {
	return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.attempts, b.attempts),
		cmp.Compare(a.page, b.page), cmp.Compare(a.number, b.number))
}

// choose picks an item that may be free, or a page to be read.
func (q *Queue) choose(r *round) (id itemID, unread, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !r.waits && !r.asked {
		if id, unread, ok = q.longestDue(r); ok {
			return id, unread, ok
		}
	}
	start, enough := 0, q.spread
	if q.opts.Random {
		start, enough = rand.N(max(len(q.pages), 1)), 1
	}
	var first []place // in order
	add := func(is place) {
		i, _ := slices.BinarySearchFunc(first, is, place.before)
		first = slices.Insert(first, i, is)
		first = first[:min(len(first), enough)]
	}
	for i := range q.pages {
		page := q.pages[(start+i)%len(q.pages)]
		if len(first) == enough && (q.opts.Random || first[enough-1].position < page) {
			break // all that comes now stands behind
		}
		if q.unread(page, r) {
			add(place{position: page, page: page})
			continue
		}
		here, later := q.free(page, r)
		if len(here) > 0 {
			add(place{position: page, attempts: here[0].attempts, page: page, number: here[0].number})
		}
		for _, item := range later {
			add(place{item.behind, item.attempts, page, item.number})
		}
	}
	if len(first) == 0 {
		return id, false, false
	}
	is := first[rand.N(len(first))]
	id.page = is.page
	if q.unread(is.page, r) {
		return id, true, true
	}
	item := q.pick(is, r)
	id.number, item.tried = item.number, r.number // another goroutine tries another item
	return id, false, true
}

// longestDue picks the claimed item for which it is longest time to ask, because its worker may be dead. The search reads the page of that
// item before, because an item that was given back may stand behind others now.
func (q *Queue) longestDue(r *round) (id itemID, unread, ok bool) {
	if r.looked {
		r.asked = true
		item := q.seen(r.id)
		if item == nil || item.claim != r.claim || item.tried >= r.number {
			return id, false, false
		}
		item.tried = r.number
		return r.id, false, true
	}
	if r.asked = q.claimed == 0; r.asked {
		return id, false, false
	}
	var longest *seenItem
	for _, page := range q.pages {
		is := q.items[page]
		if is == nil || is.claims == 0 {
			continue
		}
		for i := range is.items {
			item := &is.items[i]
			if item.claim == 0 || item.tried >= r.number || r.began.Before(item.due) || q.full >= r.number && q.spent(item.attempts) {
				continue
			}
			if longest == nil || item.due.Before(longest.due) {
				id, longest = itemID{page, item.number}, item
			}
		}
	}
	if r.asked = longest == nil; r.asked {
		return id, false, false
	}
	r.looked, r.id, r.claim = true, id, longest.claim
	longest.due = time.Now().Add(q.probing()) // other searches ask about the next, also while the page cannot be read
	return id, true, true
}

// pick chooses an item of a place.
func (q *Queue) pick(is place, r *round) *seenItem {
	here, later := q.free(is.page, r)
	if is.position != is.page {
		here = slices.DeleteFunc(later, func(item *seenItem) bool { return item.number != is.number })
	} else if !q.opts.Random {
		here = here[:min(len(here), q.spread)]
	}
	return here[rand.N(len(here))]
}

// unread reports whether a page is to be read in a round. A waiting worker reads the last page
// again in any case, because items may have been put there.
func (q *Queue) unread(page uint64, r *round) bool {
	is := q.items[page]
	if is == nil || is.stale {
		return true
	}
	return r.waits && is.round < r.number && (page == q.pages[len(q.pages)-1] ||
		slices.ContainsFunc(is.items, func(item seenItem) bool { return item.claim != 0 }))
}

// free returns the items of a page that may be free. Here are the items that stand there, the least
// tried first; later are the items that stand behind another page.
func (q *Queue) free(page uint64, r *round) (here, later []*seenItem) {
	items, last := q.items[page].items, q.pages[len(q.pages)-1]
	for i := range items {
		switch item := &items[i]; {
		case item.tried >= r.number, item.claim != 0 && !q.due(item, r), q.full >= r.number && q.spent(item.attempts):
		case item.behind >= last && !r.fresh: // it may stand before new ones
		case item.behind > page && !q.opts.Random:
			later = append(later, item)
		default:
			here = append(here, item)
		}
	}
	slices.SortStableFunc(here, func(a, b *seenItem) int { return cmp.Compare(a.attempts, b.attempts) })
	return here, later
}

// spent reports whether an item that was claimed so often is to be a dead letter.
func (q *Queue) spent(attempts uint64) bool {
	most := uint64(q.opts.MaxAttempts) //nolint:gosec // not negative
	return most > 0 && attempts >= most
}

// keepSpent keeps this round from items that are to be dead letters, because the dead letters have no room.
func (q *Queue) keepSpent() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.full = q.round
}

// due reports whether it is time to ask for an item that is claimed.
func (q *Queue) due(item *seenItem, r *round) bool {
	if r.all {
		return r.began.Sub(item.asked) >= askAgain
	}
	return r.waits && !r.began.Before(item.due)
}

// missed notes that an item was found locked, or that a restart grace keeps the item. Where nobody had claimed a locked item, claimers meet.
func (q *Queue) missed(id itemID, grace bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	item := q.seen(id)
	if item != nil && item.claim != 0 {
		item.asked, item.due = now, now.Add(q.probing())
		return
	}
	if grace {
		return
	}
	q.widen()
	if item != nil {
		q.items[id.page].stale = true // its worker has written so there, or is about to
	}
}

// forget that an item was asked for.
func (q *Queue) forget(id itemID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if item := q.seen(id); item != nil {
		item.tried, item.asked = 0, time.Time{}
	}
}

func (q *Queue) seen(id itemID) *seenItem {
	if is := q.items[id.page]; is != nil {
		for i := range is.items {
			if is.items[i].number == id.number {
				return &is.items[i]
			}
		}
	}
	return nil
}

// crowd makes claimers that meet keep away from one another; the others keep
// the order.
func (q *Queue) crowd(met bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if met {
		q.widen()
	} else {
		q.spread = max(q.spread-1, 1)
	}
}

// widen is crowd where q.mu is held and claimers have met.
func (q *Queue) widen() { q.spread = min(2*q.spread, maxSpread) }

// lastPage is the last known page; 0: none.
func (q *Queue) lastPage() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pages) == 0 {
		return 0
	}
	return q.pages[len(q.pages)-1]
}

// knownHead is the version of the head as it was seen last.
func (q *Queue) knownHead() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.version
}

// knew is what a worker knew when a request for a page began: the versions of the page and of the head.
type knew struct{ page, head uint64 }

func (q *Queue) knownPage(id uint64) knew {
	q.mu.Lock()
	defer q.mu.Unlock()
	known := knew{head: q.version}
	if is := q.items[id]; is != nil {
		known.page = is.version
	}
	return known
}

// deadPages are the known pages without items, each with the version of the head that was known before.
func (q *Queue) deadPages() map[uint64]uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	dead := make(map[uint64]uint64)
	for _, id := range q.pages {
		if is := q.items[id]; is != nil && len(is.items) == 0 {
			dead[id] = is.head
		}
	}
	return dead
}

// overtaken reports whether another goroutine has learnt a later version than that of an answer. An answer below the version that
// was known before its request is no late one: the store came back with an older copy.
func overtaken(version, known, learnt uint64) bool {
	return version != 0 && known <= version && version < learnt
}

// learnHead remembers the head. The version known was that of the head when the request began.
func (q *Queue) learnHead(v pawl.Snapshot, known uint64) error {
	h, err := parseHead(v)
	if err != nil {
		return q.failed("read", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if v.Number == q.version || overtaken(v.Number, known, q.version) {
		return nil
	}
	if v.Number < q.version { // pages that were deleted may be back
		clear(q.items)
		q.claimed = 0
	}
	if n := len(q.pages); n > 0 && q.items[q.pages[n-1]] != nil {
		q.items[q.pages[n-1]].stale = true // some may have been put there
	}
	q.version, q.pages = v.Number, h.pages
	for id, is := range q.items {
		if _, there := slices.BinarySearch(h.pages, id); !there {
			q.claimed -= is.claims
			delete(q.items, id)
		}
	}
	return nil
}

// learnPage remembers a page as of a version, if the page is in the known head: else nothing would forget the page. The round is that of
// the read; it is 0 for a page that was changed.
func (q *Queue) learnPage(id, version uint64, known knew, round uint64, page pageValue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, there := slices.BinarySearch(q.pages, id); !there {
		return
	}
	before := q.items[id]
	if before == nil {
		before = &seenPage{}
	}
	if overtaken(version, known.page, before.version) {
		return
	}
	is := &seenPage{version: version, head: known.head, round: max(round, before.round), items: make([]seenItem, len(page.items))}
	q.items[id] = is
	now := time.Now()
	q.claimed -= before.claims
	for i, item := range page.items {
		seen := seenItem{number: item.number, attempts: item.attempts, claim: item.claim, behind: item.behind}
		j := slices.IndexFunc(before.items, func(s seenItem) bool { return s.number == item.number })
		switch {
		case j < 0:
		case before.items[j].claim == item.claim:
			seen.tried, seen.asked, seen.due = before.items[j].tried, before.items[j].asked, before.items[j].due
		case item.claim != 0:
			seen.tried = before.items[j].tried
		}
		if item.claim != 0 {
			is.claims++
			q.claimed++
			if seen.due.IsZero() {
				seen.due = now.Add(rand.N(q.probing()))
			}
		}
		is.items[i] = seen
	}
}
