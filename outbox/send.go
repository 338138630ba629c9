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

// publish sends a message in a goroutine of its own. A call that hangs has a result, too: a fault of a publisher keeps no
// partition. The place of such a call in the window stays taken until the call returns.
func (o *owner) publish(ctx context.Context, r *row) {
	m := r.Message
	m.Attempt++
	if r.again {
		m.Attempt += 1 + r.Repeats
	}
	if now := o.counters.confirmed.Load() + 1; r.calm[0] == 0 {
		r.calm = [2]uint64{now, now}
	} else {
		r.calm = [2]uint64{r.calm[1], now}
	}
	o.sending.Add(1)
	o.counters.sending.Add(1)
	var told atomic.Bool
	tell := func(err error) (first bool) {
		if first = told.CompareAndSwap(false, true); first {
			if err == nil && !r.kept {
				o.counters.confirmed.Add(1)
			}
			o.counters.sending.Add(-1)
			o.results <- result{row: r, err: err} // which has room for the window
			o.sending.Done()
		}
		return first
	}
	go func() {
		ctx, stop := context.WithTimeout(ctx, o.opts.Timeout)
		defer stop()
		late := context.AfterFunc(ctx, func() {
			time.AfterFunc(grace, func() {
				o.hung.Add(1)
				if !tell(errHangs) { // the call has returned meanwhile
					o.hung.Add(-1)
				}
			})
		})
		err := o.call(ctx, r, m)
		if late(); !tell(err) {
			o.hung.Add(-1)
		}
	}()
}

// call calls the publisher, and turns a panic into an error.
func (o *owner) call(ctx context.Context, r *row, m Message) (err error) {
	if r.kept {
		return nil
	}
	if r.broken != nil {
		return fmt.Errorf("%w: %w", ErrRefused, r.broken)
	}
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%w: %v", errPanicked, fault)
		}
	}()
	return o.publisher.Publish(ctx, m)
}

// counts reports whether a failed sending is an attempt. A failure of unknown outcome is one only if the broker has
// confirmed another message since the last try began. A broker that is away thus makes no message dead.
func (o *owner) counts(r result) bool {
	switch {
	case errors.Is(r.err, ErrBlocked):
		return false
	case errors.Is(r.err, ErrRefused) || errors.Is(r.err, errPanicked):
		return true
	}
	return o.counters.confirmed.Load()+1 > r.row.calm[0]
}
