package pawl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// The items of a pool stand in pages, each a versioned value, which are named by
// a number that is used once. The head, another one, lists the pages. A page comes
// with all its items and only loses some: with the last one it is deleted, and taken
// off the head later, with others.

// MaxItem is the largest size of an item of a [Pool] in bytes.
const MaxItem = 32 << 10

const (
	pageItems = 32      // at most in a page
	pageBytes = 8 << 10 // in a page of several items, for all of it is written when one is done
	maxPages  = 20_000  // of a pool; their numbers fit in a value
	deadPages = 16      // are taken off the head at once
)

// ErrFull says that a pool has too many items. Nothing was put.
var ErrFull = errors.New("pool is full")

// poolHead is what the head says.
type poolHead struct {
	next    uint64   // the number of the page that is written next
	pending uint64   // from here to next: pages that are being written, or of a writer that died
	pages   []uint64 // in order
}

func parseHead(v Version) (h poolHead, err error) {
	if v.Number == 0 {
		return h, nil
	}
	var numbers []uint64
	for data := v.Data; len(data) > 0; {
		number, n := binary.Uvarint(data)
		if n <= 0 {
			return h, fmt.Errorf("%w: the value in the store is no pool", ErrMismatch)
		}
		numbers, data = append(numbers, number), data[n:]
	}
	if len(numbers) < 2 {
		return h, fmt.Errorf("%w: the value in the store is no pool", ErrMismatch)
	}
	h.next, h.pending = numbers[0], numbers[0]-numbers[1]
	page := uint64(0)
	for _, gap := range numbers[2:] {
		page += gap
		h.pages = append(h.pages, page)
	}
	return h, nil
}

func (h poolHead) data() []byte {
	data := binary.AppendUvarint(nil, h.next)
	data = binary.AppendUvarint(data, h.next-h.pending)
	last := uint64(0)
	for _, page := range h.pages {
		data = binary.AppendUvarint(data, page-last)
		last = page
	}
	return data
}

// poolItem is an item in its page.
type poolItem struct {
	number uint64
	data   []byte
}

// parsePage reads a page. One that is not there has no items.
func parsePage(v Version) (items []poolItem, err error) {
	for data := v.Data; len(data) > 0; {
		number, n := binary.Uvarint(data)
		size, m := binary.Uvarint(data[max(n, 0):])
		start := uint64(max(n, 0) + max(m, 0)) //nolint:gosec // small
		if n <= 0 || m <= 0 || size > uint64(len(data))-start {
			return nil, fmt.Errorf("%w: the value in the store is no page of a pool", ErrMismatch)
		}
		items = append(items, poolItem{number, data[start : start+size]})
		data = data[start+size:]
	}
	return items, nil
}

// pageData is nil when there are no items.
func pageData(items []poolItem) (data []byte) {
	for _, item := range items {
		data = binary.AppendUvarint(data, item.number)
		data = binary.AppendUvarint(data, uint64(len(item.data)))
		data = append(data, item.data...)
	}
	return data
}

// paginate spreads items over pages.
func paginate(items [][]byte) (pages [][]byte, err error) {
	var page []poolItem
	size := 0
	for i, data := range items {
		if len(data) > MaxItem {
			return nil, invalid("item %d has %d bytes: at most %d are allowed", i, len(data), MaxItem)
		}
		if len(page) == pageItems || size+len(data) > pageBytes && len(page) > 0 {
			pages = append(pages, pageData(page))
			page, size = nil, 0
		}
		page = append(page, poolItem{uint64(len(page)), data})
		size += len(data)
	}
	if len(page) > 0 {
		pages = append(pages, pageData(page))
	}
	return pages, nil
}

// Put puts items into the pool, all or none, each of at most [MaxItem] bytes. Those
// of one call share pages: to put many at once costs much less, and a pool holds
// 20,000 calls or pages of up to 32 items and 8 KiB, else [ErrFull]. Who puts queues with
// others who do. After [ErrUnavailable] or [ErrLost] nobody knows whether they were put.
// What a caller that died midway left is removed by the next Put.
func (p *Pool) Put(ctx context.Context, items ...[]byte) error {
	pages, err := paginate(items)
	if err = errors.Join(p.head.err, err); err != nil {
		return p.head.failed("put", err)
	}
	if len(pages) == 0 {
		return nil
	}
	turn, err := p.lock("put").Lock(ctx)
	if err != nil {
		return p.head.failed("put", err)
	}
	defer turn.Unlock(ctx) //nolint:errcheck // the head says what was put
	work, stop := turn.Within(ctx)
	defer stop()
	if err = p.publish(work, uint64(turn.Token()), pages); err == nil {
		return nil
	}
	if lost := turn.Err(); lost != nil {
		return p.head.failed("put", errors.Join(lost, err))
	}
	work, stop = turn.Within(context.WithoutCancel(ctx))
	defer stop()
	return errors.Join(err, p.removePending(work))
}

// publish writes pages under numbers that nobody else uses, and then shows them to
// claimers. The first number of all is fresh, for a store that lost its data may
// have had others.
func (p *Pool) publish(ctx context.Context, fresh uint64, pages [][]byte) error {
	var first, end uint64
	if err := p.removePending(ctx); err != nil {
		return err
	}
	if err := p.updateHead(ctx, "put", func(h *poolHead) error {
		if len(h.pages)+len(pages) > maxPages {
			return fmt.Errorf("%w: %d pages of %d are in use and %d are wanted", ErrFull, len(h.pages), maxPages, len(pages))
		}
		if h.next == 0 {
			h.next = fresh
		}
		first, end = h.next, h.next+uint64(len(pages))
		h.pending, h.next = first, end
		return nil
	}); err != nil {
		return err
	}
	for i, data := range pages {
		if _, err := p.page(first+uint64(i)).change(ctx, func(v Version) ([]byte, error) { //nolint:gosec // it is positive
			if v.Number != 0 { // the reply was lost
				return nil, errUnchanged
			}
			return data, nil
		}); err != nil {
			return err
		}
	}
	return p.updateHead(ctx, "put", func(h *poolHead) error {
		if h.next != end || h.pending != first && h.pending != end {
			return fmt.Errorf("%w: another one puts", ErrLost)
		}
		for ; h.pending < h.next; h.pending++ { // nothing, if only the reply was lost
			h.pages = append(h.pages, h.pending)
		}
		return nil
	})
}

// removePending removes the pages of a writer that did not come to its end. First it
// sees to it that they cannot be published any more.
func (p *Pool) removePending(ctx context.Context) error {
	var first, end uint64
	if err := p.updateHead(ctx, "clean", func(h *poolHead) error {
		first, end = h.pending, h.next
		if first == end {
			return errUnchanged
		}
		h.next++
		return nil
	}); err != nil || first == end {
		return err
	}
	for id := first; id < end; id++ {
		if _, err := p.page(id).change(ctx, func(v Version) ([]byte, error) {
			if v.Number == 0 {
				return nil, errUnchanged
			}
			return nil, nil
		}); err != nil {
			return err
		}
	}
	return p.updateHead(ctx, "clean", func(h *poolHead) error {
		h.pending = h.next
		return nil
	})
}

// updateHead changes the head, unless change returns an error.
func (p *Pool) updateHead(ctx context.Context, doing string, change func(*poolHead) error) error {
	v, err := p.head.change(ctx, func(v Version) ([]byte, error) {
		h, err := parseHead(v)
		if err == nil {
			err = change(&h)
		}
		if err != nil {
			err = p.head.failed(doing, err)
		}
		return h.data(), err
	})
	if err == nil {
		err = p.learnHead(v)
	}
	return err
}

// learnHead remembers the head.
func (p *Pool) learnHead(v Version) error {
	h, err := parseHead(v)
	if err != nil {
		return p.head.failed("read", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.Number == p.version || v.Number != 0 && v.Number < p.version { // another goroutine has a later one
		return nil
	}
	p.version, p.pages = v.Number, h.pages
	for id := range p.items {
		if _, there := slices.BinarySearch(h.pages, id); !there {
			delete(p.items, id)
		}
	}
	return nil
}

// learnPage remembers which items are in a page.
func (p *Pool) learnPage(id uint64, items []poolItem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.items[id]
	seen := make([]seenItem, len(items))
	for i, item := range items {
		seen[i].number = item.number
		if j := slices.IndexFunc(before, func(s seenItem) bool { return s.number == item.number }); j >= 0 {
			seen[i].round = before[j].round
		}
	}
	p.items[id] = seen
}

// dropPages takes the pages that are gone off the head, if they are so many.
func (p *Pool) dropPages(ctx context.Context, least int) error {
	p.mu.Lock()
	var dead []uint64
	for _, id := range p.pages {
		if items, read := p.items[id]; read && len(items) == 0 {
			dead = append(dead, id)
		}
	}
	p.mu.Unlock()
	if len(dead) < least {
		return nil
	}
	return p.updateHead(ctx, "clean", func(h *poolHead) error {
		before := len(h.pages)
		h.pages = slices.DeleteFunc(h.pages, func(id uint64) bool { return slices.Contains(dead, id) })
		if len(h.pages) == before {
			return errUnchanged
		}
		return nil
	})
}
