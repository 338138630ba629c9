package pawl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// The items of a pool stand in pages. Each page is a versioned value, named by
// a number that is used once. The head, another value, lists the pages. A page comes
// with its first items. The last page takes more items, up to a limit. With
// its last item a page is deleted for good, and taken off the head later, with others.
//
// All numbers are unsigned varints. The head is: the format; the number of the next page;
// how many pages before that are being written; and the pages in order, as runs, each the
// gap before it and its length. A page is: the format; the number of the next item; the
// token of the Put that wrote last; and of each item its number, its attempts,
// the token of its claim (0: nobody has it), how many pages further it stands, its size
// and its data.

// poolFormat is how both begin: nine bytes and the format of the pool. As a varint that is
// too large, so versions of pawl that knew no format refuse the value.
const poolFormat = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"

// MaxItem is the largest size of an item of a [Pool] in bytes.
const MaxItem = 32 << 10

const (
	pageItems = 32      // at most in a page, in all its life
	pageBytes = 8 << 10 // in a page of several items, because all of it is written when one is claimed or done
	maxPages  = 20_000  // of a pool; their runs fit in a value
	deadPages = 16      // are taken off the head at once
	maxGrowth = 64      // of the head when pages are published, in bytes
)

// ErrFull says that a pool has too many items. Nothing was put.
var ErrFull = errors.New("pool is full")

// poolNumbers reads the varints of a value.
type poolNumbers struct {
	data []byte
	err  error
}

// openPool begins to read a value of a pool, after its format.
func openPool(data []byte) *poolNumbers {
	const mark = len(poolFormat) - 1
	r := &poolNumbers{}
	switch is := string(data); {
	case len(is) <= mark || is[:mark] != poolFormat[:mark]:
		r.err = fmt.Errorf("%w: the value in the store is no pool of format %d; the version of pawl that wrote one of format 1 has to finish it",
			ErrMismatch, poolFormat[mark])
	case is[mark] != poolFormat[mark]:
		r.err = fmt.Errorf("%w: the pool has format %d and this build of pawl writes format %d", ErrUnsupported, is[mark], poolFormat[mark])
	default:
		r.data = data[mark+1:]
	}
	return r
}

func (r *poolNumbers) next() uint64 {
	number, n := binary.Uvarint(r.data)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.data = r.data[n:]
	return number
}

func (r *poolNumbers) fail() {
	if r.err == nil {
		r.err = fmt.Errorf("%w: the value in the store is no pool", ErrMismatch)
	}
}

func (r *poolNumbers) more() bool { return r.err == nil && len(r.data) > 0 }

// poolHead is the content of the head.
type poolHead struct {
	next    uint64   // the number of the page that is written next
	pending uint64   // from here to next: pages that are being written, or of a writer that died
	pages   []uint64 // in order
}

// parseHead reads the head. A missing head has no pages.
func parseHead(v Snapshot) (h poolHead, err error) {
	if v.Number == 0 {
		return h, nil
	}
	r := openPool(v.Data)
	h.next = r.next()
	h.pending = h.next - r.next()
	page := uint64(0)
	for r.more() {
		gap, length := r.next(), r.next()
		if page += gap; length == 0 || uint64(len(h.pages))+length > maxPages {
			r.fail()
			break
		}
		for ; length > 0; length-- {
			h.pages = append(h.pages, page)
			page++
		}
	}
	return h, r.err
}

func (h poolHead) data() []byte {
	data := binary.AppendUvarint([]byte(poolFormat), h.next)
	data = binary.AppendUvarint(data, h.next-h.pending)
	end := uint64(0)
	for i := 0; i < len(h.pages); {
		first := h.pages[i]
		length := uint64(0)
		for ; i < len(h.pages) && h.pages[i] == first+length; i++ {
			length++
		}
		data = binary.AppendUvarint(data, first-end)
		data = binary.AppendUvarint(data, length)
		end = first + length
	}
	return data
}

// poolPage is some of the items.
type poolPage struct {
	next  uint64 // the number of the item that is put next
	put   uint64 // the token of the Put that wrote last
	items []poolItem
}

// poolItem is an item in its page.
type poolItem struct {
	number   uint64
	attempts uint64 // how often it was claimed
	claim    uint64 // the token of the claim that has it, or had it when its worker died; 0: none
	behind   uint64 // the page behind which it is claimed next; 0: where it stands
	data     []byte
}

// parsePage reads a page. A missing page has no items.
func parsePage(v Snapshot) (is poolPage, err error) {
	if v.Number == 0 {
		return is, nil
	}
	r := openPool(v.Data)
	is.next, is.put = r.next(), r.next()
	for r.more() {
		item := poolItem{number: r.next(), attempts: r.next(), claim: r.next(), behind: r.next()}
		size := r.next()
		if size > uint64(len(r.data)) {
			r.fail()
			break
		}
		item.data, r.data = r.data[:size:size], r.data[size:]
		is.items = append(is.items, item)
	}
	return is, r.err
}

// data is nil when there are no items.
func (is poolPage) data() []byte {
	if len(is.items) == 0 {
		return nil
	}
	data := binary.AppendUvarint([]byte(poolFormat), is.next)
	data = binary.AppendUvarint(data, is.put)
	for _, item := range is.items {
		for _, number := range []uint64{item.number, item.attempts, item.claim, item.behind, uint64(len(item.data))} {
			data = binary.AppendUvarint(data, number)
		}
		data = append(data, item.data...)
	}
	return data
}

// room reports whether more items may be put into the page.
func (is *poolPage) room(items [][]byte) bool {
	size := 0
	for _, item := range is.items {
		size += len(item.data)
	}
	for _, data := range items {
		size += len(data)
	}
	return len(is.items) == 0 || is.next+uint64(len(items)) <= pageItems && size <= pageBytes
}

// add puts items into the page, for the Put with this token.
func (is *poolPage) add(token uint64, items [][]byte) {
	for _, data := range items {
		is.items = append(is.items, poolItem{number: is.next, data: data})
		is.next++
	}
	is.put = token
}

// paginate spreads items over pages.
func paginate(items [][]byte) (pages [][][]byte) {
	var last poolPage
	for i, data := range items {
		one := items[i : i+1]
		if i == 0 || !last.room(one) {
			pages, last = append(pages, nil), poolPage{}
		}
		last.add(0, one)
		pages[len(pages)-1] = append(pages[len(pages)-1], data)
	}
	return pages
}

// page is the value with some of the items.
func (p *Pool) page(id uint64) *Value {
	v := newValue(p.client, p.kind+"-page", p.name)
	v.key, v.again = scopedName(p.kind+"-page", p.name+"/"+strconv.FormatUint(id, 10)), true
	return v
}

// read reads a page, and remembers its items, and the round in which it was read;
// 0 is none.
func (p *Pool) read(ctx context.Context, id, round uint64) (poolPage, error) {
	v, err := p.page(id).Get(ctx)
	if err != nil {
		return poolPage{}, err
	}
	is, err := parsePage(v)
	if err == nil {
		p.learnPage(id, v.Number, round, is)
	}
	return is, err
}

// updateHead changes the head, unless change returns an error.
func (p *Pool) updateHead(ctx context.Context, doing string, change func(*poolHead) error) error {
	v, err := p.head.Update(ctx, func(v Snapshot) ([]byte, error) {
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

// dropPages takes deleted pages off the head, if there are at least so many.
func (p *Pool) dropPages(ctx context.Context, least int) error {
	p.mu.Lock()
	var dead []uint64
	for _, id := range p.pages {
		if is := p.items[id]; is != nil && len(is.items) == 0 {
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
			return ErrUnchanged
		}
		return nil
	})
}
