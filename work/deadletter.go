package work

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/pawl-go/pawl"
)

// DeadLetters are the items of a [Queue] that were claimed as often as [Options].MaxAttempts allows
// and never done, or were buried. No worker gets them. Dead letters stay until an operator retries or drops
// them. Dead letters count neither in [Queue.Len] nor against the room of the queue, because they have as
// much room of their own.
//
// An item is a dead letter at least once: if its worker died just then, the item may be there
// twice.
//
// While the dead letters are full, an item that is to be a dead letter stays in the queue. No worker gets that item, and
// the items behind are not held up. Workers try again at each look until an operator has made room.
type DeadLetters struct{ live, dead *Queue }

// DeadLetter is an item among the [DeadLetters] of a queue.
type DeadLetter struct {
	ID       string // for Retry and Drop
	Name     string // of the lease of the item when it was in the queue
	Data     []byte
	Attempts int // how often it was claimed
}

// DeadLetters returns the dead letters of the queue, whatever its options are.
func (q *Queue) DeadLetters() *DeadLetters { return &DeadLetters{q, q.dead} }

// bury puts an item among the dead letters.
func (q *Queue) bury(ctx context.Context, it *Item) error {
	var data []byte
	for _, n := range []uint64{it.id.page, it.id.number, uint64(it.Attempts)} { //nolint:gosec // not negative
		data = binary.AppendUvarint(data, n)
	}
	return q.dead.put(ctx, [][]byte{append(data, it.Data...)})
}

// letter reads the value that bury wrote.
func (d *DeadLetters) letter(id itemID, data []byte) (l DeadLetter, err error) {
	r := &numbers{data: data}
	origin := itemID{r.next(), r.next()}
	l = DeadLetter{ID: id.String(), Name: d.live.lock(origin.String()).Name(), Attempts: int(r.next()), Data: r.data} //nolint:gosec // it was an int
	return l, r.err
}

// All yields the dead letters, the oldest first. All ends with the first error. A complete list makes room: pages without a dead
// letter are taken off the head, because no worker looks for them.
func (d *DeadLetters) All(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for item, err := range d.dead.all(ctx) {
			var l DeadLetter
			if err == nil {
				l, err = d.letter(item.id, item.data)
			}
			if err != nil {
				err = d.live.failed("list", err)
			}
			if !yield(l, err) || err != nil {
				return
			}
		}
		d.dead.dropPages(ctx, deadPages) //nolint:errcheck // the next list does it
	}
}

// Len returns the number of dead letters. Len reads all of them.
func (d *DeadLetters) Len(ctx context.Context) (int, error) { return d.dead.Len(ctx) }

// Retry puts a dead letter into the queue as a new item, which nobody has tried, and
// drops it. [pawl.ErrNotAcquired] says that it is no dead letter any more, or that another
// caller retries it now. In a restart grace that error also matches [pawl.ErrGrace]. After
// [pawl.ErrUnavailable] or [pawl.ErrLost] it may be in the queue, and a dead letter as well.
func (d *DeadLetters) Retry(ctx context.Context, id string) error {
	is, err := d.parse(id)
	if err != nil {
		return err
	}
	ends, end := pawl.Linger(ctx)
	defer end()
	item, err := d.dead.try(ctx, is)
	if item == nil {
		if err == nil {
			err = fmt.Errorf("%w: no dead letter %s, or another caller retries it", pawl.ErrNotAcquired, id)
		}
		return d.live.failed("retry", err)
	}
	l, err := d.letter(is, item.Data)
	work, stop := item.Within(ctx)
	defer stop()
	if err == nil {
		err = d.live.put(work, [][]byte{l.Data})
	}
	if err != nil {
		return errors.Join(err, item.Return(ends))
	}
	return item.Done(ends)
}

// Drop deletes a dead letter. An unknown id is no error.
func (d *DeadLetters) Drop(ctx context.Context, id string) error {
	is, err := d.parse(id)
	if err != nil {
		return err
	}
	if err := d.dead.remove(ctx, is, ^uint64(0)); err != nil {
		return d.live.failed("drop", err)
	}
	return nil
}

func (d *DeadLetters) parse(id string) (is itemID, err error) {
	err = d.dead.err
	if n, bad := fmt.Sscanf(id, "%d.%d", &is.page, &is.number); err == nil && (n != 2 || bad != nil || is.String() != id) {
		err = fmt.Errorf("%w: id is %q: that of a DeadLetter is allowed", pawl.ErrInvalid, id)
	}
	if err != nil {
		err = d.live.failed("find", err)
	}
	return is, err
}
