package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// The faults of a publisher.
var (
	errPanicked = errors.New("the publisher panicked")
	errHangs    = errors.New("the publisher did not return in time, though its context had ended")
)

// grace is how long a publisher may take to return after its context has ended.
const grace = time.Second

// result is what a broker said about a message.
type result struct {
	row    *row
	err    error
	counts bool // the failure is an attempt
	done   bool // the sending failed, and the message was completed all the same
	locked bool // another transaction has locked the message, so that nothing was written
}

// sending is a call of the publisher.
type sending struct {
	row      *row
	m        Message
	failures uint64      // of the broker, when the call began
	told     atomic.Bool // the owner has a result
}

// publish sends messages, each in a goroutine of its own. The messages share the time for a sending. A call that hangs has a result,
// too: a fault of a publisher keeps no partition. The place of such a call in the window stays taken until the call returns.
func (o *owner) publish(ctx context.Context, rows []*row) {
	if len(rows) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(ctx, o.opts.Timeout)
	batch := make([]sending, len(rows))
	late := context.AfterFunc(ctx, func() {
		time.AfterFunc(grace, func() {
			for i := range batch {
				o.hung.Add(1)
				if !o.tell(&batch[i], errHangs) { // the call has returned meanwhile
					o.hung.Add(-1)
				}
			}
		})
	})
	ends := func() { late(); stop() }
	o.sending.Add(len(rows))
	o.counters.sending.Add(int64(len(rows)))
	now, failures := o.counters.confirmed.Load()+1, o.counters.failures()
	var left atomic.Int64
	left.Store(int64(len(rows)))
	for i, r := range rows {
		s := &batch[i]
		s.row, s.m, s.failures = r, r.Message, failures
		if id, confirmed := o.kept[r.seq]; confirmed && id == r.ID && !r.again {
			r.kept = true
		}
		s.m.Attempt++
		if r.again {
			s.m.Attempt += 1 + r.Repeats
		}
		if r.calm == 0 {
			r.calm = now
		}
		go func() {
			err := o.call(ctx, s)
			if left.Add(-1) == 0 {
				ends()
			}
			if !o.tell(s, err) {
				o.hung.Add(-1)
			}
		}()
	}
}

// tell gives the owner the result of a sending, unless the owner has one.
func (o *owner) tell(s *sending, err error) (first bool) {
	if first = s.told.CompareAndSwap(false, true); first {
		if err == nil && !s.row.kept {
			o.counters.confirm(s.failures)
		}
		o.counters.sending.Add(-1)
		o.results <- result{row: s.row, err: err} // which has room for the window
		o.sending.Done()
	}
	return first
}

// call calls the publisher, and turns a panic into an error.
func (o *owner) call(ctx context.Context, s *sending) (err error) {
	if s.row.kept {
		return nil
	}
	if s.row.broken != nil {
		return fmt.Errorf("%w: %w", ErrRefused, s.row.broken)
	}
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%w: %v", errPanicked, fault)
		}
	}()
	return o.publisher.Publish(ctx, s.m)
}

// counts reports whether a failed sending is an attempt. A failure of unknown outcome is one only if the broker has
// confirmed another message since the failure before, or since the first try began. A broker that is away confirms nothing, so an outage
// counts once. A sending of that time may fail late, after the broker has confirmed others, and counts as well.
func (o *owner) counts(r result) bool {
	switch {
	case errors.Is(r.err, ErrBlocked):
		return false
	case errors.Is(r.err, ErrRefused) || errors.Is(r.err, errPanicked):
		return true
	}
	return o.counters.confirmed.Load()+1 > r.row.calm
}
