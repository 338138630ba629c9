package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl"
)

// Put puts items into the queue, all or none, each of at most [MaxItem] bytes. The items
// of one call share pages, of up to 32 items and 8 KiB. A few items that fit
// go into the last page of earlier calls. To put many at once costs less. A queue
// has room for 20,000 pages, else [ErrFull]. Concurrent calls of Put queue. After
// [pawl.ErrUnavailable] or [pawl.ErrLost] nobody knows whether the items were put. The next Put
// removes the pages of a caller that died midway.
func (q *Queue) Put(ctx context.Context, items ...[]byte) error {
	err := q.err
	for i, data := range items {
		if len(data) > MaxItem {
			err = errors.Join(err, fmt.Errorf("%w: item %d has %d bytes: at most %d are allowed", pawl.ErrInvalid, i, len(data), MaxItem))
		}
	}
	if err != nil {
		return q.failed("put", err)
	}
	return q.put(ctx, items)
}

func (q *Queue) put(ctx context.Context, items [][]byte) error {
	pages := paginate(items)
	if len(pages) == 0 {
		return nil
	}
	ends, end := pawl.Linger(ctx)
	defer end()
	turn, err := q.lock("put").Lock(ctx)
	if err != nil {
		return q.failed("put", err)
	}
	defer turn.Unlock(ends) //nolint:errcheck // the head lists the items that were put
	work, stop := turn.Within(ctx)
	defer stop()
	if err = q.write(work, uint64(turn.Token()), pages); err == nil {
		return nil
	}
	if lost := turn.Err(); lost != nil {
		return q.failed("put", errors.Join(lost, err))
	}
	work, stop = turn.Within(ends)
	defer stop()
	_, pending := q.removePending(work)
	return errors.Join(err, pending)
}

// write puts items into the last page, if that has room, or else into new ones.
func (q *Queue) write(ctx context.Context, token uint64, pages [][][]byte) error {
	head, err := q.removePending(ctx)
	if err != nil {
		return err
	}
	if n := len(head.pages); n > 0 && len(pages) == 1 {
		if added, err := q.addTo(ctx, head.pages[n-1], token, pages[0]); added || err != nil {
			return err
		}
	}
	return q.publish(ctx, token, pages)
}

// addTo puts items into a listed page, if it is there and has room, and wakes the worker
// that waits. A deleted page stays deleted, because it may not be listed any more.
func (q *Queue) addTo(ctx context.Context, id, token uint64, items [][]byte) (added bool, err error) {
	page := q.value(id) // this function decides what to do after a lost reply
	unknown := false
	var lost error // with the page
	err = q.client.Retry(ctx, q.client.TTL(), func() error {
		gone := false
		_, err := page.Update(ctx, func(v pawl.Snapshot) ([]byte, error) {
			is, err := parsePage(v)
			gone, added = v.Number == 0, is.put == token // if so, the reply was lost
			switch {
			case err != nil:
				return nil, err
			case is.put > token:
				return nil, fmt.Errorf("%w: another client puts", pawl.ErrLost)
			case gone && unknown: // all of it was done, perhaps also these items
				return nil, pawl.Unavailable(ctx, errors.New("put: the page is gone, and whether it had the items is unknown"))
			case gone || added || !is.room(items):
				return nil, pawl.ErrUnchanged
			}
			added = true
			is.add(token, items)
			return is.data(), nil
		})
		if unknown = true; gone {
			lost, err = err, nil
		}
		return err
	})
	if err = cmp.Or(err, lost); err == nil && added {
		err = q.updateHead(ctx, "put", func(*headValue) error { return nil }) // at a new version, which is watched
	}
	return added, err
}

// publish writes pages under numbers that nobody else uses, and then shows them to
// claimers. The first number of all is the token, which is fresh, because a store that
// lost its data may have had others.
func (q *Queue) publish(ctx context.Context, token uint64, pages [][][]byte) error {
	var first, end uint64
	if err := q.updateHead(ctx, "put", func(h *headValue) error {
		if len(h.pages)+len(pages) > maxPages {
			return fmt.Errorf("%w: %d pages of %d are in use and %d are wanted", ErrFull, len(h.pages), maxPages, len(pages))
		}
		if h.next == 0 {
			h.next = token
		}
		first, end = h.next, h.next+uint64(len(pages))
		h.pending, h.next = first, end
		if len(h.data()) > pawl.MaxValue-maxGrowth {
			return fmt.Errorf("%w: the %d pages in use lie too far apart", ErrFull, len(h.pages))
		}
		return nil
	}); err != nil {
		return err
	}
	for i, items := range pages {
		var is pageValue
		is.add(token, items)
		if _, err := q.page(first+uint64(i)).Update(ctx, func(v pawl.Snapshot) ([]byte, error) { //nolint:gosec // it is positive
			was, err := parsePage(v)
			switch {
			case err != nil:
				return nil, err
			case v.Number == 0:
				return is.data(), nil
			case was.put == token: // the reply was lost
				return nil, pawl.ErrUnchanged
			}
			return nil, q.failed("put", fmt.Errorf("%w: the head is an older copy: a page has the number of the next one", pawl.ErrLost))
		}); err != nil {
			return err
		}
	}
	return q.updateHead(ctx, "put", func(h *headValue) error {
		if h.next != end || h.pending != first && h.pending != end {
			return fmt.Errorf("%w: another client puts", pawl.ErrLost)
		}
		for ; h.pending < h.next; h.pending++ { // nothing, if only the reply was lost
			h.pages = append(h.pages, h.pending)
		}
		return nil
	})
}

// removePending removes the pages of a writer that did not finish. First removePending
// makes sure that they cannot be published any more. removePending returns the head.
func (q *Queue) removePending(ctx context.Context) (head headValue, err error) {
	var first, end uint64
	if err := q.updateHead(ctx, "clean", func(h *headValue) error {
		first, end, head = h.pending, h.next, *h
		if first == end {
			return pawl.ErrUnchanged
		}
		h.next++
		return nil
	}); err != nil || first == end {
		return head, err
	}
	for id := first; id < end; id++ {
		if _, err := q.page(id).Update(ctx, func(v pawl.Snapshot) ([]byte, error) {
			if v.Number == 0 {
				return nil, pawl.ErrUnchanged
			}
			return nil, nil
		}); err != nil {
			return head, err
		}
	}
	return head, q.updateHead(ctx, "clean", func(h *headValue) error {
		h.pending = h.next
		return nil
	})
}
