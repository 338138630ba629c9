package pawl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Put puts items into the pool, all or none, each of at most [MaxItem] bytes. The items
// of one call share pages, of up to 32 items and 8 KiB. A few items that fit
// go into the last page of earlier calls. To put many at once costs less. A pool
// has room for 20,000 pages, else [ErrFull]. Concurrent calls of Put queue. After
// [ErrUnavailable] or [ErrLost] nobody knows whether the items were put. The next Put
// removes the pages of a caller that died midway.
func (p *Pool) Put(ctx context.Context, items ...[]byte) error {
	err := p.head.err
	for i, data := range items {
		if len(data) > MaxItem {
			err = errors.Join(err, invalid("item %d has %d bytes: at most %d are allowed", i, len(data), MaxItem))
		}
	}
	if err != nil {
		return p.head.failed("put", err)
	}
	return p.put(ctx, items)
}

func (p *Pool) put(ctx context.Context, items [][]byte) error {
	pages := paginate(items)
	if len(pages) == 0 {
		return nil
	}
	turn, err := p.lock("put").Lock(ctx)
	if err != nil {
		return p.head.failed("put", err)
	}
	defer turn.Unlock(ctx) //nolint:errcheck // the head lists the items that were put
	work, stop := turn.Within(ctx)
	defer stop()
	if err = p.write(work, uint64(turn.Token()), pages); err == nil {
		return nil
	}
	if lost := turn.Err(); lost != nil {
		return p.head.failed("put", errors.Join(lost, err))
	}
	work, stop = turn.Within(context.WithoutCancel(ctx))
	defer stop()
	work, end := linger(work, ctx)
	defer end()
	_, pending := p.removePending(work)
	return errors.Join(err, pending)
}

// write puts items into the last page, if that has room, or else into new ones.
func (p *Pool) write(ctx context.Context, token uint64, pages [][][]byte) error {
	head, err := p.removePending(ctx)
	if err != nil {
		return err
	}
	if n := len(head.pages); n > 0 && len(pages) == 1 {
		if added, err := p.addTo(ctx, head.pages[n-1], token, pages[0]); added || err != nil {
			return err
		}
	}
	return p.publish(ctx, token, pages)
}

// addTo puts items into a listed page, if it is there and has room, and wakes the worker
// that waits. A deleted page stays deleted, because it may not be listed any more.
func (p *Pool) addTo(ctx context.Context, id, token uint64, items [][]byte) (added bool, err error) {
	page := p.page(id)
	page.again = false // this function decides what to do after a lost reply
	giveUp := time.Now().Add(p.client.opts.TTL)
	for pause, unknown := newBackoff(p.client.opts.TTL), false; ; unknown = true {
		gone := false
		_, err = page.Update(ctx, func(v Snapshot) ([]byte, error) {
			is, err := parsePage(v)
			gone, added = v.Number == 0, is.put == token // if so, the reply was lost
			switch {
			case err != nil:
				return nil, err
			case is.put > token:
				return nil, fmt.Errorf("%w: another one puts", ErrLost)
			case gone && unknown: // all of it was done, perhaps also these items
				return nil, engine.Unavailable("put", errors.New("the page is gone, and whether it had the items is unknown"))
			case gone || added || !is.room(items):
				return nil, ErrUnchanged
			}
			added = true
			is.add(token, items)
			return is.data(), nil
		})
		if !errors.Is(err, ErrUnavailable) || gone || time.Now().After(giveUp) || !pause.sleep(ctx, p.client.life) {
			break
		}
	}
	if err == nil && added {
		err = p.updateHead(ctx, "put", func(*poolHead) error { return nil }) // at a new version, which is watched
	}
	return added, err
}

// publish writes pages under numbers that nobody else uses, and then shows them to
// claimers. The first number of all is the token, which is fresh, because a store that
// lost its data may have had others.
func (p *Pool) publish(ctx context.Context, token uint64, pages [][][]byte) error {
	var first, end uint64
	if err := p.updateHead(ctx, "put", func(h *poolHead) error {
		if len(h.pages)+len(pages) > maxPages {
			return fmt.Errorf("%w: %d pages of %d are in use and %d are wanted", ErrFull, len(h.pages), maxPages, len(pages))
		}
		if h.next == 0 {
			h.next = token
		}
		first, end = h.next, h.next+uint64(len(pages))
		h.pending, h.next = first, end
		if len(h.data()) > MaxValue-maxGrowth {
			return fmt.Errorf("%w: the %d pages in use lie too far apart", ErrFull, len(h.pages))
		}
		return nil
	}); err != nil {
		return err
	}
	for i, items := range pages {
		var is poolPage
		is.add(token, items)
		if _, err := p.page(first+uint64(i)).Update(ctx, func(v Snapshot) ([]byte, error) { //nolint:gosec // it is positive
			if v.Number != 0 { // the reply was lost
				return nil, ErrUnchanged
			}
			return is.data(), nil
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

// removePending removes the pages of a writer that did not finish. First removePending
// makes sure that they cannot be published any more. It returns the head.
func (p *Pool) removePending(ctx context.Context) (head poolHead, err error) {
	var first, end uint64
	if err := p.updateHead(ctx, "clean", func(h *poolHead) error {
		first, end, head = h.pending, h.next, *h
		if first == end {
			return ErrUnchanged
		}
		h.next++
		return nil
	}); err != nil || first == end {
		return head, err
	}
	for id := first; id < end; id++ {
		if _, err := p.page(id).Update(ctx, func(v Snapshot) ([]byte, error) {
			if v.Number == 0 {
				return nil, ErrUnchanged
			}
			return nil, nil
		}); err != nil {
			return head, err
		}
	}
	return head, p.updateHead(ctx, "clean", func(h *poolHead) error {
		h.pending = h.next
		return nil
	})
}
