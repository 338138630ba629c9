package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/inbox"
)

// slack is how long a server may take to find that AckWait is over.
const slack = 500 * time.Millisecond

// turn bounds one wait at the server. The client cannot end such a wait earlier without the loss of a message that is on its way.
const turn = 200 * time.Millisecond

// feed is the durable consumer as one process pulls from it.
type feed struct {
	*Source
	consumer jetstream.Consumer
	hold     time.Duration
	single   bool
	seen     uint64 // number of the last delivery by the durable consumer

	// The messages that the last process had, and has not acknowledged:
	missing int         // how many messages; 0: all are handed out
	last    uint64      // none of them is behind this one in the stream
	ready   time.Time   // before, the server gives none of them again
	found   []*delivery // that were given again, and newer ones

	mu      sync.Mutex
	mine    map[*delivery]bool // handed out and not settled
	waiting []*delivery        // of mine, given back to this feed, in the order of their times
	closed  bool
}

const (
	soonest = 10 * time.Millisecond // the shortest wait of a read
	soon    = time.Second           // the longest wait of a read while a message may be given back
)

// errGap says that a delivery did not arrive. Later messages would overtake that one.
var errGap = errors.New("a delivery was lost on its way")

// Hold implements [inbox.Feed].
func (f *feed) Hold() time.Duration { return f.hold }

// Receive implements [inbox.Feed].
func (f *feed) Receive(ctx context.Context, most int) ([]inbox.Delivery, error) {
	if f.missing > 0 {
		if err := f.recover(ctx); err != nil {
			return nil, f.failed("wait for the messages of the last process", err)
		}
	}
	due, wait := f.due(most)
	var got []inbox.Delivery
	for _, d := range due {
		got = append(got, d)
	}
	if len(got) == most {
		return got, nil
	}
	if len(f.found) == 0 {
		var err error
		if f.found, err = f.pull(ctx, most-len(got), wait); err != nil {
			return got, f.failed("pull", err)
		}
	}
	n := min(most-len(got), len(f.found))
	for _, d := range f.found[:n] {
		got = append(got, d)
	}
	f.found = f.found[n:]
	return got, nil
}

// due removes messages whose wait is over, and says how long a read may wait for others.
func (f *feed) due(most int) (due []*delivery, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait = f.opts.Block
	if len(f.mine) > 0 {
		wait = min(wait, soon)
	}
	n := 0
	for n < min(most, len(f.waiting)) && !time.Now().Before(f.waiting[n].until) {
		n++
	}
	if n < len(f.waiting) {
		wait = min(wait, max(soonest, time.Until(f.waiting[n].until)))
	}
	if n > 0 {
		wait = 0
	}
	due = slices.Clone(f.waiting[:n])
	f.waiting = slices.Delete(f.waiting, 0, n)
	return due, wait
}

// recover waits until the server has given all messages again that the last process had, and puts them in the order of
// the stream.
func (f *feed) recover(ctx context.Context) error {
	if err := sleep(ctx, time.Until(f.ready)); err != nil {
		return err
	}
	for {
		old := 0
		for _, d := range f.found {
			if d.sequence <= f.last {
				old++
			}
		}
		if old >= f.missing {
			break
		}
		got, err := f.fetch(f.consumer.FetchNoWait(f.missing - old))
		if err != nil {
			return err
		}
		f.found = append(f.found, got...)
		if len(got) > 0 {
			continue
		}
		bound, cancel := context.WithTimeout(ctx, asking)
		info, err := f.consumer.Info(bound)
		cancel()
		if err != nil {
			return err
		}
		if info.NumAckPending <= len(f.found) { // the last process has acknowledged the others meanwhile
			break
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	slices.SortStableFunc(f.found, func(a, b *delivery) int { return cmp.Compare(a.sequence, b.sequence) })
	f.missing = 0
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pull returns the messages that are there, or waits for one message.
func (f *feed) pull(ctx context.Context, most int, wait time.Duration) ([]*delivery, error) {
	got, err := f.fetch(f.consumer.FetchNoWait(most))
	if err != nil || len(got) > 0 || ctx.Err() != nil || wait == 0 {
		return got, err
	}
	for end := time.Now().Add(wait); ; {
		got, err := f.fetch(f.consumer.Fetch(1, jetstream.FetchMaxWait(max(time.Millisecond, min(turn, time.Until(end))))))
		if err != nil || len(got) > 0 || ctx.Err() != nil || !time.Now().Before(end) {
			return got, err
		}
	}
}

// fetch reads an answer to its end, because the server counts its messages as delivered.
func (f *feed) fetch(batch jetstream.MessageBatch, err error) (got []*delivery, _ error) {
	if err != nil {
		return nil, err
	}
	for msg := range batch.Messages() {
		is, failed := msg.Metadata()
		if failed != nil {
			err = failed
			continue
		}
		if f.single && is.Sequence.Consumer != f.seen+1 && err == nil {
			err = fmt.Errorf("%w: number %d follows number %d", errGap, is.Sequence.Consumer, f.seen)
		}
		f.seen = is.Sequence.Consumer
		if err == nil {
			got = append(got, f.hand(msg, is))
		}
	}
	if err == nil && len(got) == 0 {
		err = batch.Error()
	}
	return got, err
}

func (f *feed) hand(msg jetstream.Msg, is *jetstream.MsgMetadata) *delivery {
	d := &delivery{feed: f, msg: msg, m: message(msg, is.Timestamp), count: int(is.NumDelivered), sequence: is.Sequence.Stream}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mine[d] = true
	return d
}

// Extend implements [inbox.Feed].
func (f *feed) Extend(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for d := range f.mine {
		if err := d.msg.InProgress(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return f.failed("extend", err)
		}
	}
	return nil
}

// Close implements [inbox.Feed]. Each pull ends by itself. The server gets the messages back that wait here, in the order of the stream.
func (f *feed) Close(context.Context) error {
	f.mu.Lock()
	rest := f.waiting
	f.waiting, f.closed = nil, true
	f.mu.Unlock()
	slices.SortFunc(rest, func(a, b *delivery) int { return cmp.Compare(a.sequence, b.sequence) })
	var err error
	for _, d := range rest {
		err = errors.Join(err, d.leave(0))
	}
	return err
}

// delivery is a message in the hands of the consumer.
type delivery struct {
	feed     *feed
	msg      jetstream.Msg
	m        inbox.Message
	count    int
	sequence uint64    // in the stream
	until    time.Time // of its wait after Nack
}

// Message implements [inbox.Delivery].
func (d *delivery) Message() inbox.Message { return d.m }

// Count implements [inbox.Delivery].
func (d *delivery) Count() int { return d.count }

// Ack implements [inbox.Delivery].
func (d *delivery) Ack(ctx context.Context) error {
	defer d.settled()
	return d.told("acknowledge", d.msg.DoubleAck(ctx))
}

// Nack implements [inbox.Delivery]. The message waits here while the feed is open, because the server would count one delivery more.
func (d *delivery) Nack(_ context.Context, delay time.Duration) error {
	f := d.feed
	f.mu.Lock()
	open := !f.closed
	if open {
		d.until = time.Now().Add(delay)
		at := len(f.waiting)
		for at > 0 && f.waiting[at-1].until.After(d.until) {
			at--
		}
		f.waiting = slices.Insert(f.waiting, at, d)
	}
	f.mu.Unlock()
	if open {
		return nil
	}
	return d.leave(delay)
}

// leave gives the message back to the server.
func (d *delivery) leave(delay time.Duration) error {
	defer d.settled()
	if delay <= 0 {
		return d.told("give back", d.msg.Nak())
	}
	return d.told("give back", d.msg.NakWithDelay(delay))
}

// Dead implements [inbox.Delivery].
func (d *delivery) Dead(ctx context.Context, reason string) error {
	if err := d.bury(ctx, reason); err != nil {
		return d.told("publish the dead letter", err)
	}
	defer d.settled()
	return d.told("end", d.msg.Term())
}

func (d *delivery) settled() {
	d.feed.mu.Lock()
	defer d.feed.mu.Unlock()
	delete(d.feed.mine, d)
}

func (d *delivery) told(what string, err error) error {
	if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return nil
	}
	return d.feed.failed(what, err)
}
