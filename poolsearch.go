package pawl

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// A worker's memory of a pool, and its choice of the next request to the store. The page
// of an item says that it is claimed, so no worker asks for its lock to learn that. Only
// a waiting worker asks, rarely, to learn whether the worker that claimed the item lives.

const (
	askAgain  = 500 * time.Millisecond // from one look at all pages to the next
	probeGap  = 30 * time.Millisecond  // from one question about a claimed item to the next
	maxSpread = 64
)

// seenPage is a page as it was when it was read.
type seenPage struct {
	version uint64
	stale   bool   // it has changed since
	round   uint64 // in which it was read
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
	waits  bool // for all workers: looks again at pages with items that are claimed, and asks for those
	all    bool // asks for all of those
	fresh  bool // the head was read in this search
}

// begin returns the round to ask in, a new round if it is time or anew is set. A search that
// began earlier goes on with the earlier round, and comes to its end.
func (p *Pool) begin(now time.Time, anew bool) round {
	p.mu.Lock()
	defer p.mu.Unlock()
	if anew || now.Sub(p.asked) >= p.every {
		p.round++
		p.asked, p.every = now, askAgain
	}
	return round{number: p.round, began: now}
}

// rest is the pause of a waiting worker before it looks again, after a look that began then.
// A look at many items takes a while, and must not take all the time; 0: there is nothing.
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

// probing is how long it is from one question about a claimed item to the next.
func (p *Pool) probing() time.Duration {
	return min(max(askAgain, time.Duration(p.claimed)*probeGap), max(askAgain, p.client.opts.TTL/3))
}

// place is where there may be a free item: a page, or one item that was given back and
// stands behind another page.
type place struct{ position, attempts, page, number uint64 }

func (a place) before(b place) int {
	return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.attempts, b.attempts),
		cmp.Compare(a.page, b.page), cmp.Compare(a.number, b.number))
}

// choose picks an item that may be free, or a page to be read.
func (p *Pool) choose(r round) (id itemID, unread, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start, enough := 0, p.spread
	if p.opts.Random {
		start, enough = rand.N(max(len(p.pages), 1)), 1
	}
	var first []place // in order
	add := func(is place) {
		i, _ := slices.BinarySearchFunc(first, is, place.before)
		first = slices.Insert(first, i, is)
		first = first[:min(len(first), enough)]
	}
	for i := range p.pages {
		page := p.pages[(start+i)%len(p.pages)]
		if len(first) == enough && (p.opts.Random || first[enough-1].position < page) {
			break // all that comes now stands behind
		}
		if p.unread(page, r) {
			add(place{position: page, page: page})
			continue
		}
		here, later := p.free(page, r)
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
	if p.unread(is.page, r) {
		return id, true, true
	}
	item := p.pick(is, r)
	id.number, item.tried = item.number, r.number // another goroutine tries another item
	return id, false, true
}

// pick chooses an item of a place.
func (p *Pool) pick(is place, r round) *seenItem {
	here, later := p.free(is.page, r)
	if is.position != is.page {
		here = slices.DeleteFunc(later, func(item *seenItem) bool { return item.number != is.number })
	} else if !p.opts.Random {
		here = here[:min(len(here), p.spread)]
	}
	return here[rand.N(len(here))]
}

// unread reports whether a page is to be read in a round. A waiting worker reads the last page
// again in any case, because items may have been put there.
func (p *Pool) unread(page uint64, r round) bool {
	is := p.items[page]
	if is == nil || is.stale {
		return true
	}
	return r.waits && is.round < r.number && (page == p.pages[len(p.pages)-1] ||
		slices.ContainsFunc(is.items, func(item seenItem) bool { return item.claim != 0 }))
}

// free returns the items of a page that may be free: those that stand there, the least
// tried ones first, and those that stand behind another page.
func (p *Pool) free(page uint64, r round) (here, later []*seenItem) {
	items, last := p.items[page].items, p.pages[len(p.pages)-1]
	for i := range items {
		switch item := &items[i]; {
		case item.tried >= r.number, item.claim != 0 && !p.due(item, r):
		case item.behind >= last && !r.fresh: // it may stand before new ones
		case item.behind > page && !p.opts.Random:
			later = append(later, item)
		default:
			here = append(here, item)
		}
	}
	slices.SortStableFunc(here, func(a, b *seenItem) int { return cmp.Compare(a.attempts, b.attempts) })
	return here, later
}

// due reports whether it is time to ask for an item that is claimed.
func (p *Pool) due(item *seenItem, r round) bool {
	if r.all {
		return r.began.Sub(item.asked) >= askAgain
	}
	return r.waits && !r.began.Before(item.due)
}

// missed notes that an item was found locked.
func (p *Pool) missed(id itemID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if item := p.seen(id); item != nil && item.claim != 0 {
		item.asked, item.due = now, now.Add(p.probing())
	} else if item != nil {
		p.items[id.page].stale = true // its worker has written so there, or is about to
	}
}

// forget that an item was asked for.
func (p *Pool) forget(id itemID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if item := p.seen(id); item != nil {
		item.tried, item.asked = 0, time.Time{}
	}
}

func (p *Pool) seen(id itemID) *seenItem {
	if is := p.items[id.page]; is != nil {
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
func (p *Pool) crowd(met bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if met {
		p.spread = min(2*p.spread, maxSpread)
	} else {
		p.spread = max(p.spread-1, 1)
	}
}

// lastPage is the last known page; 0: none.
func (p *Pool) lastPage() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pages) == 0 {
		return 0
	}
	return p.pages[len(p.pages)-1]
}

// learnHead remembers the head.
func (p *Pool) learnHead(v Snapshot) error {
	h, err := parseHead(v)
	if err != nil {
		return p.head.failed("read", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.Number == p.version || v.Number != 0 && v.Number < p.version { // another goroutine has a later one
		return nil
	}
	if n := len(p.pages); n > 0 && p.items[p.pages[n-1]] != nil {
		p.items[p.pages[n-1]].stale = true // some may have been put there
	}
	p.version, p.pages = v.Number, h.pages
	for id, is := range p.items {
		if _, there := slices.BinarySearch(h.pages, id); !there {
			p.claimed -= is.claimed()
			delete(p.items, id)
		}
	}
	return nil
}

// claimed is how many items are.
func (is *seenPage) claimed() (n int) {
	for _, item := range is.items {
		if item.claim != 0 {
			n++
		}
	}
	return n
}

// learnPage remembers a page as of a version. The round is that of the read; it is 0 for a page
// that was changed.
func (p *Pool) learnPage(id, version, round uint64, page poolPage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.items[id]
	if before == nil {
		before = &seenPage{}
	}
	if version != 0 && version < before.version { // another goroutine has a later one
		return
	}
	is := &seenPage{version: version, round: max(round, before.round), items: make([]seenItem, len(page.items))}
	p.items[id] = is
	now := time.Now()
	p.claimed -= before.claimed()
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
			p.claimed++
			if seen.due.IsZero() {
				seen.due = now.Add(rand.N(p.probing()))
			}
		}
		is.items[i] = seen
	}
}
