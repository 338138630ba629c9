package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence"
)

// owner sends the messages of a partition while it holds the partition. One goroutine reads the
// table, decides and writes. Further goroutines publish.
type owner struct {
	*Relay
	identity int64 // of the table
	part     int
	token    fence.Token
	wake     chan struct{}
	leave    chan struct{} // closed when this relay gives the partition up
	owned    atomic.Bool   // the row of the partition had this token at the last look
	failing  atomic.Int64  // messages that wait after a failure of the broker
	hung     *atomic.Int64 // calls of the publisher for this partition that have not returned in time
	plan     *plan
	watch    watch
	horizon  horizon
	results  chan result
	lost     []result         // that could not be written
	kept     map[int64]string // IDs of the messages that the broker has confirmed, and that no write could mark
	writing  time.Duration    // how long the last write took
	locked   map[int64]lock   // messages that another transaction had locked when they were to be marked
	sending  sync.WaitGroup
	passes   bool      // a pass is going on
	cut      int64     // how far the pass had come that a full pass has interrupted, until the full pass is beyond
	beyond   time.Time // when the last full pass was beyond that, or began
	fully    bool      // the pass is a full one
	full     time.Time // when the last full pass began
	repeats  time.Time // no look for messages that are to be repeated before this time
}

// run works until ctx ends, the partition is given up, or a statement fails. The next run sends no message again that the broker
// has confirmed to this one.
func (o *owner) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer o.last(ctx, stop)
	o.plan, o.watch = newPlan(o.opts.Window, o.opts.WindowBytes, o.opts.ContinueKeys, o.opts.Lag), watch{}
	o.horizon = horizon{}
	o.results, o.locked = make(chan result, o.opts.Window), make(map[int64]lock)
	o.full, o.beyond, o.passes, o.cut = time.Time{}, time.Time{}, false, 0
	if err := o.owns(o.bounded(ctx, o.takeOver)); err != nil {
		return err
	}
	leave, leaves := o.leave, false
	var polled time.Time
	for {
		pause := o.opts.Poll
		if leaves && len(o.plan.flying) == 0 {
			return nil
		} else if !leaves {
			again, wait, err := o.advance(ctx, &polled)
			if err != nil {
				return err
			}
			if again {
				continue
			}
			pause = o.pause(polled, wait)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-leave:
			leave, leaves = nil, true
		case <-o.wake:
			polled = time.Time{}
		case <-timer.C:
		case first := <-o.results:
			if err := o.settle(ctx, first); err != nil {
				timer.Stop()
				return err
			}
		}
		timer.Stop()
	}
}

// owns notes what a look at the partition's row says: the lock of a partition is no use if the table refuses its token.
func (o *owner) owns(err error) error {
	if err == nil || errors.Is(err, fence.ErrStale) {
		o.owned.Store(err == nil)
	}
	return err
}

// lastWords is how long a relay that ends may take to mark the confirmed messages.
const lastWords = 3 * time.Second

// lasting returns a context for writes. The context outlives ctx for a while: an interrupted statement would cost a connection
// and repeats. The token makes a late write harmless.
func (o *owner) lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })
	return lasting, func() { stop(); cancel() }
}

// bounded bounds the time of a few statements: a reply that was lost must not stop the partition.
func (o *owner) bounded(ctx context.Context, work func(context.Context) error) error {
	ctx, stop := context.WithTimeout(ctx, o.opts.Timeout)
	defer stop()
	return work(ctx)
}

// advance reads the table when it is time, and sends the messages that may be sent. Again says that there may be more to read at once.
func (o *owner) advance(ctx context.Context, polled *time.Time) (again bool, wait time.Time, err error) {
	woken := polled.IsZero() || time.Since(*polled) >= o.opts.Poll
	if woken {
		*polled = time.Now()
	}
	if err := o.bounded(ctx, func(ctx context.Context) error { return o.read(ctx, woken) }); err != nil {
		return false, wait, err
	}
	o.failing.Store(int64(o.plan.failing()))
	send, wait := o.plan.next(time.Now(), int(o.hung.Load()))
	o.publish(ctx, send)
	return o.reads() && len(send) > 0, wait, nil
}

// reads reports whether the next page of the pass may be read.
func (o *owner) reads() bool {
	n, _ := o.plan.free()
	return o.passes && n > 0
}

// last interrupts the sendings, and marks the messages that were confirmed. After a failure, and if another transaction has locked some, the
// next run of this owner marks them, and sends none of them. Another owner sends them again.
func (o *owner) last(ctx context.Context, stop func()) {
	stop()
	o.sending.Wait()
	for len(o.results) > 0 {
		o.lost = append(o.lost, <-o.results)
	}
	confirmed := slices.DeleteFunc(o.lost, func(r result) bool { return r.err != nil })
	o.lost = nil
	ctx, stop = o.lasting(ctx)
	defer stop()
	err := o.write(ctx, confirmed)
	for _, r := range confirmed {
		if err != nil || r.locked {
			o.keep(r)
		}
	}
	if err != nil && o.opts.OnError != nil {
		o.opts.OnError(failed("write results", err))
	}
}

// keep remembers that the broker has confirmed a message that could not be marked. The memory is bounded: to forget costs repeats only.
func (o *owner) keep(r result) {
	if r.row.again {
		return
	}
	if o.kept == nil || len(o.kept) > 16*o.plan.room {
		o.kept = make(map[int64]string)
	}
	o.kept[r.row.seq] = r.row.ID
}

// pause is how long the owner may wait for results.
func (o *owner) pause(polled, wait time.Time) time.Duration {
	pause := o.opts.Poll - time.Since(polled)
	if !wait.IsZero() {
		pause = min(pause, time.Until(wait))
	}
	if o.reads() || !o.passes && o.plan.hidden() {
		return 0
	}
	return max(pause, 0)
}

// read reads a page while a pass goes on, and begins a pass when it is time.
func (o *owner) read(ctx context.Context, woken bool) (err error) {
	now := time.Now()
	if o.cut > 0 && o.plan.pos > o.cut {
		o.cut, o.beyond = 0, now
	}
	// A backlog is a single long pass. A full pass interrupts that pass, each time at a later place. To come to the earlier place may take longer
	// than Rescan. So the messages behind that place get at least half of the time. Else the pass reads one page of them, and is interrupted.
	interrupts := o.passes && o.cut == 0 && now.Sub(o.beyond) >= max(o.opts.Rescan, o.beyond.Sub(o.full))
	if interrupts || !o.passes && (woken || o.plan.hidden()) {
		o.cut = 0
		if interrupts {
			o.cut = o.plan.pos
		}
		if err := o.begin(ctx, now); err != nil {
			return err
		}
	}
	if o.reads() {
		if err := o.readPage(ctx); err != nil {
			return failed("read messages", err)
		}
	}
	// To send new messages does not wait until the database answers this question.
	if err := o.readDue(ctx, now); err != nil && !errors.Is(ctx.Err(), context.Canceled) && o.opts.OnError != nil {
		o.opts.OnError(err)
	}
	return nil
}

// begin begins a pass, which is a full one when it is time.
func (o *owner) begin(ctx context.Context, now time.Time) error {
	o.plan.again(now, o.horizon.floor)
	o.fully = false
	if now.Sub(o.full) >= o.opts.Rescan {
		// A relay with another lock store may have taken the partition. An idle owner would not hear of that.
		if err := o.owns(o.mine(ctx)); err != nil {
			return failed("look at a partition", err)
		}
		dead, err := o.table.deadLanes(ctx, o.db, o.part, o.opts.ContinueKeys)
		if err != nil {
			return failed("read dead keys", err)
		}
		o.plan.full(dead, now)
		o.full, o.beyond, o.fully = now, now, true
	}
	late, err := o.visible(ctx)
	if err != nil {
		return failed("read messages of open transactions", err)
	}
	o.plan.missed(late)
	o.passes = true
	return nil
}

// readPage reads a page. A page waits for earlier messages of its keys that became visible behind the reader. Without that a
// message overtakes another of its key whose transaction ended while the relay read on.
func (o *owner) readPage(ctx context.Context) error {
	n, bytes := o.plan.free()
	// The plan knows all halted keys. Only a full pass has many of their messages before it, and leaves them in the database.
	without := o.fully && len(o.plan.halted) > 0
	p, err := o.table.page(ctx, o.db, o.part, o.plan.pos, n, bytes, o.plan.left(), without)
	if err != nil {
		return err
	}
	o.plan.pages.learn(p.entries)
	if earlier, err := o.behind(ctx, p); err != nil || o.plan.missed(earlier) {
		return err
	}
	o.plan.add(p.entries)
	o.horizon.read(p.entries)
	o.passes = p.more
	return nil
}

// behind returns pending messages before a page, which may be unknown. The messages of keys that the page brings are among them.
func (o *owner) behind(ctx context.Context, p page) (earlier []place, err error) {
	if p.seen != "" {
		o.watch.look(p.seen, o.plan.newest)
	}
	keys := o.plan.arrivals(p.entries)
	floor := o.watch.floor
	switch {
	case len(keys) == 0 || o.table.dialect == dialect.SQLite: // which has one writer, so that its numbers are in the order of the commits
		return nil, nil
	case o.table.dialect == dialect.MySQL:
		if err := o.lift(ctx); err != nil {
			return nil, err
		}
		if earlier, err = o.visible(ctx); err != nil {
			return nil, err
		}
		floor = o.horizon.floor
	default:
		keys = nil // a transaction that has ended is not known any more when the next message of its key comes
	}
	if o.plan.pos <= floor {
		return earlier, nil
	}
	further, err := o.earlier(ctx, floor, keys)
	if err == nil {
		o.watch.asked()
	}
	return append(earlier, further...), err
}

// earlier asks for pending messages of some keys, or of all, after a number and before the page. Messages of lanes that are left out
// may be many, so earlier reads them in parts.
func (o *owner) earlier(ctx context.Context, floor int64, keys []string) (part []place, err error) {
	ask := earlier{part: o.part, after: floor, upTo: o.plan.pos, keys: keys, whole: o.plan.whole(), halted: len(o.plan.halted) > 0, limit: len(o.plan.rows) + 1}
	if keys == nil { // plan.misses says of none of the messages of these keys that the pass has missed it, so the answer may lack them
		ask.left = o.plan.left()
	}
	if !ask.whole {
		ask.limit += o.plan.room
	}
	for {
		part, err = o.table.earlier(ctx, o.db, ask)
		if err != nil || len(part) < ask.limit || slices.ContainsFunc(part, o.plan.misses) {
			return part, err
		}
		ask.after = part[len(part)-1].seq
	}
}

// maxLinger bounds how long confirmed messages wait for others.
const maxLinger = 5 * time.Millisecond

// gather collects results to be written together. The first result is soon followed by those of all messages that were sent with its
// message. So gather waits for these, but for no longer than two writes take: a broker may be slower than the database.
func (o *owner) gather(ctx context.Context, first result) []result {
	batch := []result{first}
	linger := time.NewTimer(min(2*o.writing, maxLinger))
	defer linger.Stop()
	for len(batch) < len(o.plan.flying) {
		select {
		case r := <-o.results:
			batch = append(batch, r)
			continue
		default:
		}
		select {
		case r := <-o.results:
			batch = append(batch, r)
		case <-linger.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// settle writes what the brokers said, of all messages that have a result by now, in one transaction.
func (o *owner) settle(ctx context.Context, first result) error {
	batch := o.gather(ctx, first)
	if ctx.Err() != nil { // the publishers were interrupted: a failure would not be the fault of a message
		batch = slices.DeleteFunc(batch, func(r result) bool { return r.err != nil })
	}
	for i, r := range batch {
		batch[i].counts = r.err != nil && o.counts(r)
	}
	lasting, stop := o.lasting(ctx)
	defer stop()
	began := time.Now()
	if err := o.write(lasting, batch); err != nil {
		o.lost = batch
		return failed("write results", err)
	}
	o.writing = time.Since(began)
	var ended []*row
	for _, r := range batch {
		r.row.fails = r.err != nil && !errors.Is(r.err, ErrRefused)
		if r.locked {
			o.wait(r)
			continue
		}
		dies := o.lastTry(r) && !r.done
		switch {
		case r.err == nil || r.done || r.row.again: // a repeat that failed is found again when it is due
			ended = append(ended, r.row)
		case dies:
			o.plan.die(r.row)
		default:
			if r.counts {
				r.row.Attempt++
			}
			r.row.tries++
			r.row.calm = o.counters.confirmed.Load() + 1
			o.plan.retry(r.row, time.Now().Add(backoff(r.row.tries, o.opts.Backoff, o.opts.MaxBackoff)))
		}
		if r.err == nil {
			continue
		}
		o.failing.Store(int64(o.plan.failing())) // before the failure is counted, see Stats
		o.counters.count(r, dies)
		if o.opts.OnError != nil {
			o.opts.OnError(fmt.Errorf("outbox: publish message %s: %w", r.row.ID, r.err))
		}
	}
	o.plan.confirm(ended...)
	for _, r := range ended {
		delete(o.kept, r.seq)
	}
	return nil
}

// wait leaves a message that is locked for later. A pending message that the broker has confirmed is not sent again, but only marked.
// A repeat is found again when it is due, so that its key goes on.
func (o *owner) wait(r result) {
	if r.row.again {
		o.plan.confirm(r.row)
	} else {
		if r.row.kept = r.err == nil; r.row.kept {
			o.keep(r)
		}
		r.row.tries++
		o.plan.retry(r.row, time.Now().Add(backoff(r.row.tries, o.opts.Backoff, o.opts.MaxBackoff)))
	}
	if o.opts.OnError != nil {
		o.opts.OnError(fmt.Errorf("outbox: mark message %s: %w", r.row.ID, errLocked))
	}
}

// lastTry reports whether a failed message is to be dead.
func (o *owner) lastTry(r result) bool {
	return r.counts && !r.row.again && r.row.Attempt+1 >= o.opts.MaxAttempts
}

// backoff is the wait after so many failures in a row: doubled each time, from the least to the most.
func backoff(tries int, least, most time.Duration) time.Duration {
	wait := least
	for range tries - 1 {
		if wait *= 2; wait >= most {
			return most
		}
	}
	return wait
}
