package work

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/pawl-go/pawl"
)

// The items of a queue stand in pages. Each page is a versioned value, named by
// a number that is used once. The head, another value, lists the pages. A page comes
// with its first items. The last page takes more items, up to a limit. With
// its last item a page is deleted for good, and taken off the head later, with others.
//
// All numbers are unsigned varints. The head has the format, the number of the next page, and how
// many pages before that are being written. Then come the pages in order, as runs, each the gap
// before it and its length. A page has the format, the number of the next item, and the token of
// the Put that wrote last. Then come the items. Each has its number, its attempts, and the token of
// its claim (0: nobody has it). Behind that are how many pages further the item stands, its size
// and its data.

// The names in the store begin with "pawl:pool/", "pawl:pool-page/", "pawl:dead/" and
// "pawl:dead-page/", because a queue was called a pool when the format was made.

// format is how both begin: nine bytes and the format of the queue. As a varint that is
// too large, so versions of pawl that knew no format refuse the value.
const format = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"

// MaxItem is the largest size of an item of a [Queue] in bytes.
const MaxItem = 32 << 10

const (
	pageItems = 32      // at most in a page, in all its life
	pageBytes = 8 << 10 // in a page of several items, because all of it is written when one is claimed or done
	maxPages  = 20_000  // of a queue; their runs fit in a value
	deadPages = 16      // are taken off the head at once, and asked for in one change of the head
	maxGrowth = 64      // of the head when pages are published, in bytes
)

// ErrFull says that a queue has too many items. Nothing was put.
var ErrFull = errors.New("queue is full")

// numbers reads the varints of a value.
type numbers struct {
	data []byte
	err  error
}

// openNumbers begins to read a value of a queue, after its format.
func openNumbers(data []byte) *numbers {
	const mark = len(format) - 1
	r := &numbers{}
	switch is := string(data); {
	case len(is) <= mark || is[:mark] != format[:mark]:
		r.err = fmt.Errorf("%w: the value in the store is no queue of format %d; finish a queue of format 1 with the pawl that wrote it",
			pawl.ErrMismatch, format[mark])
	case is[mark] != format[mark]:
		r.err = fmt.Errorf("%w: the queue has format %d and this build of pawl writes format %d", pawl.ErrUnsupported, is[mark], format[mark])
	default:
		r.data = data[mark+1:]
	}
	return r
}

func (r *numbers) next() uint64 {
	number, n := binary.Uvarint(r.data)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.data = r.data[n:]
	return number
}

func (r *numbers) fail() {
	if r.err == nil {
		r.err = fmt.Errorf("%w: the value in the store is no queue", pawl.ErrMismatch)
	}
}

func (r *numbers) more() bool { return r.err == nil && len(r.data) > 0 }

// headValue is the content of the head.
type headValue struct {
	next    uint64   // the number of the page that is written next
	pending uint64   // from here to next: pages that are being written, or of a writer that died
	pages   []uint64 // in order
	version uint64   // at which it was read
}

// parseHead reads the head. A missing head has no pages.
func parseHead(v pawl.Snapshot) (h headValue, err error) {
	h.version = v.Number
	if v.Number == 0 {
		return h, nil
	}
	r := openNumbers(v.Data)
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

func (h headValue) data() []byte {
	data := binary.AppendUvarint([]byte(format), h.next)
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

// pageValue is some of the items.
type pageValue struct {
	next  uint64 // the number of the item that is put next
	put   uint64 // the token of the Put that wrote last
	items []storedItem
}

// storedItem is an item in its page.
type storedItem struct {
	number   uint64
	attempts uint64 // how often it was claimed
	claim    uint64 // the token of the claim that has it, or had it when its worker died; 0: none
	behind   uint64 // the page behind which it is claimed next; 0: where it stands
	data     []byte
}

// parsePage reads a page. A missing page has no items.
func parsePage(v pawl.Snapshot) (is pageValue, err error) {
	if v.Number == 0 {
		return is, nil
	}
	r := openNumbers(v.Data)
	is.next, is.put = r.next(), r.next()
	for r.more() {
		item := storedItem{number: r.next(), attempts: r.next(), claim: r.next(), behind: r.next()}
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
func (is pageValue) data() []byte {
	if len(is.items) == 0 {
		return nil
	}
	data := binary.AppendUvarint([]byte(format), is.next)
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
func (is *pageValue) room(items [][]byte) bool {
	size := 0
	for _, item := range is.items {
		size += len(item.data)
	}
	for _, data := range items {
		size += len(data)
	}
	return len(is.items) == 0 || is.next+uint64(len(items)) <= pageItems && size <= pageBytes
}

// add puts the items of the Put with this token into the page.
func (is *pageValue) add(token uint64, items [][]byte) {
	for _, data := range items {
		is.items = append(is.items, storedItem{number: is.next, data: data})
		is.next++
	}
	is.put = token
}

// paginate spreads items over pages.
func paginate(items [][]byte) (pages [][][]byte) {
	var last pageValue
	for i, data := range items {
		one := items[i : i+1]
		if i == 0 || !last.room(one) {
			pages, last = append(pages, nil), pageValue{}
		}
		last.add(0, one)
		pages[len(pages)-1] = append(pages[len(pages)-1], data)
	}
	return pages
}

// value has some of the items.
func (q *Queue) value(id uint64) *pawl.Value {
	return q.values.Value(q.name + "/" + strconv.FormatUint(id, 10))
}

// page is that value for changes that may be said again.
func (q *Queue) page(id uint64) *pawl.Value { return q.value(id).Idempotent() }

// read reads a page, and remembers its items, and the round in which it was read;
// 0 is none.
func (q *Queue) read(ctx context.Context, id, round uint64) (pageValue, error) {
	known := q.knownPage(id)
	v, err := q.page(id).Get(ctx)
	if err != nil {
		return pageValue{}, err
	}
	is, err := parsePage(v)
	if err == nil {
		q.learnPage(id, v.Number, known, round, is)
	}
	return is, err
}

// updateHead changes the head, unless change returns an error.
func (q *Queue) updateHead(ctx context.Context, doing string, change func(*headValue) error) error {
	known := q.knownHead()
	v, err := q.head.Update(ctx, func(v pawl.Snapshot) ([]byte, error) {
		h, err := parseHead(v)
		if err == nil {
			err = change(&h)
		}
		if err != nil {
			err = q.failed(doing, err)
		}
		return h.data(), err
	})
	if err == nil {
		err = q.learnHead(v, known)
	}
	return err
}

// dropPages takes deleted pages off the head, if there are at least so many. With an older copy of the head a page may have come back,
// or a new page with its number. So dropPages asks again, unless the head has not changed since before the page was found deleted. Each
// change of the head asks for a few pages only, because other changes of the head make it begin again.
func (q *Queue) dropPages(ctx context.Context, least int) error {
	for dropped := true; dropped; least = 1 {
		dead := q.deadPages()
		if len(dead) < least {
			return nil
		}
		if err := q.updateHead(ctx, "clean", func(h *headValue) (err error) {
			before, asked := len(h.pages), 0
			h.pages = slices.DeleteFunc(h.pages, func(id uint64) bool {
				head, is := dead[id]
				switch {
				case !is || err != nil:
					return false
				case head == h.version:
					return true
				case asked == deadPages:
					return false
				}
				asked++
				var page pageValue
				page, err = q.read(ctx, id, 0)
				return err == nil && len(page.items) == 0
			})
			if dropped = len(h.pages) < before; err == nil && !dropped {
				err = pawl.ErrUnchanged
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
