package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence"
)

// owner sends the messages of a partition while it holds the partition. One goroutine reads the
// table, decides and writes. Further goroutines publish.
type owner struct {
	*Relay
	part    int
	token   fence.Token
	wake    chan struct{}
	plan    *plan
	results chan result
	sending sync.WaitGroup
	passes  bool      // a pass is going on
	full    time.Time // when the last full pass began
	cleaned time.Time
	repeats time.Time // no look for messages that are to be repeated before this time
}

// result is what a broker said about a message.
type result struct {
	row  *row
	err  error
	done bool // the sending failed, and the message was completed all the same
}

// run works until ctx ends or a statement fails. Messages that are under way then are sent again.
func (o *owner) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer o.last(ctx, stop)
	o.plan = newPlan(o.opts.Window, o.opts.ContinueKeys, o.opts.Lag)
	o.results = make(chan result, o.opts.Window)
	o.full = time.Time{}
	if err := o.takeOver(ctx); err != nil {
		return err
	}
	var polled time.Time
	for {
		woken := polled.IsZero() || time.Since(polled) >= o.opts.Poll
		if woken {
			polled = time.Now()
		}
		if err := o.read(ctx, woken); err != nil {
			return err
		}
		send, wait := o.plan.next(time.Now())
		for _, r := range send {
			o.publish(ctx, r)
		}
		if o.passes && o.plan.free() > 0 && len(send) > 0 {
			continue
		}
		timer := time.NewTimer(o.pause(polled, wait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
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

// last interrupts the sendings, and marks the messages that were confirmed. Else the next owner sends those messages again.
func (o *owner) last(ctx context.Context, stop func()) {
	stop()
	o.sending.Wait()
	var confirmed []result
	for len(o.results) > 0 {
		if r := <-o.results; r.err == nil {
			confirmed = append(confirmed, r)
		}
	}
	ctx, stop = context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	o.write(ctx, confirmed) //nolint:errcheck // the next owner sends them again
}

// pause is how long the owner may wait for results.
func (o *owner) pause(polled, wait time.Time) time.Duration {
	pause := o.opts.Poll - time.Since(polled)
	if !wait.IsZero() {
		pause = min(pause, time.Until(wait))
	}
	if o.passes && o.plan.free() > 0 || !o.passes && o.plan.hidden() {
		return 0
	}
	return max(pause, 0)
}

// publish sends a message in a goroutine of its own.
func (o *owner) publish(ctx context.Context, r *row) {
	m := r.Message
	m.Attempt++
	if r.again {
		m.Attempt += 1 + r.Repeats
	}
	o.sending.Go(func() {
		ctx, stop := context.WithTimeout(ctx, o.opts.Timeout)
		defer stop()
		o.results <- result{row: r, err: o.publisher.Publish(ctx, m)} // which has room for the window
	})
}

// takeOver makes the partition's row refuse all earlier owners.
func (o *owner) takeOver(ctx context.Context) error {
	_, err := o.table.new().Add("UPDATE ").Table(o.table.parts.Name).Add(" SET token = ").Value(int64(o.token)).Add(" WHERE part = ").Value(o.part).
		Add(" AND token < ").Value(int64(o.token)).Exec(ctx, o.db)
	if err != nil {
		return failed("take over a partition", err)
	}
	var is int64
	err = o.table.new().Add("SELECT token FROM ").Table(o.table.parts.Name).Add(" WHERE part = ").Value(o.part).Scan(ctx, o.db, &is)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: table %s has no row %d", pawl.ErrMismatch, o.table.parts.Name, o.part)
	}
	if err == nil && fence.Token(is) != o.token {
		err = fmt.Errorf("%w: partition %d has token %d, and this owner has %d", fence.ErrStale, o.part, is, o.token)
	}
	return failed("take over a partition", err)
}

// read reads pages while a pass goes on, and begins a pass when it is time.
func (o *owner) read(ctx context.Context, woken bool) (err error) {
	now := time.Now()
	if !o.passes && (woken || o.plan.hidden()) {
		o.plan.again(now)
		if now.Sub(o.full) >= o.opts.Rescan {
			dead, err := o.table.deadLanes(ctx, o.db, o.part, o.opts.ContinueKeys)
			if err != nil {
				return failed("read dead keys", err)
			}
			o.plan.full(dead)
			o.full = now
		}
		o.passes = true
	}
	if o.passes && o.plan.free() > 0 {
		limit := min(o.plan.free(), o.opts.Window)
		page, err := o.table.page(ctx, o.db, o.part, o.plan.pos, limit, o.plan.left(), o.opts.ContinueKeys)
		if err != nil {
			return failed("read messages", err)
		}
		o.plan.add(page)
		o.passes = len(page) == limit
	}
	if err := o.readDue(ctx, now); err != nil {
		return err
	}
	return o.clean(ctx, now)
}

// clean deletes old messages, if it is time. With completion a confirmed message stays until it is done.
func (o *owner) clean(ctx context.Context, now time.Time) error {
	if now.Sub(o.cleaned) < time.Minute && !o.cleaned.IsZero() {
		return nil
	}
	o.cleaned = now
	for _, state := range []State{Done, Confirmed} {
		if state == Confirmed && o.opts.Resend > 0 {
			break
		}
		n, err := o.table.clean(ctx, o.db, o.part, state, o.opts.Retention)
		if err != nil {
			return failed("clean", err)
		}
		if n == maxBatch {
			o.cleaned = time.Time{}
		}
	}
	return nil
}

// settle writes what the brokers said, of all messages that have a result by now, in one transaction.
func (o *owner) settle(ctx context.Context, first result) error {
	batch := []result{first}
	for more := true; more && len(batch) < o.opts.Window; {
		select {
		case r := <-o.results:
			batch = append(batch, r)
		default:
			more = false
		}
	}
	if ctx.Err() != nil { // the publishers were interrupted: a failure would not be the fault of a message
		batch = slices.DeleteFunc(batch, func(r result) bool { return r.err != nil })
	}
	var err error
	for {
		if err = o.write(ctx, batch); !dialect.Again(err) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return failed("write results", err)
	}
	for _, r := range batch {
		switch {
		case r.err == nil || r.done || r.row.again: // a repeat that failed is found again when it is due
			o.plan.confirm(r.row)
		case o.lastTry(r):
			o.plan.die(r.row)
		default:
			if counts(r.err) {
				r.row.Attempt++
			}
			r.row.tries++
			o.plan.retry(r.row, time.Now().Add(backoff(r.row.tries, o.opts.Backoff, o.opts.MaxBackoff)))
		}
		if r.err != nil && o.opts.OnError != nil {
			o.opts.OnError(fmt.Errorf("outbox: publish message %s: %w", r.row.ID, r.err))
		}
	}
	return nil
}

// counts reports whether a failed sending is an attempt.
func counts(err error) bool { return !errors.Is(err, ErrBlocked) }

// lastTry reports whether a failed message is to be dead.
func (o *owner) lastTry(r result) bool {
	return counts(r.err) && !r.row.again && r.row.Attempt+1 >= o.opts.MaxAttempts
}

// write marks messages. The first statement locks the row of the partition, and finds whether a later owner was there.
func (o *owner) write(ctx context.Context, batch []result) error {
	if len(batch) == 0 {
		return nil
	}
	tx, err := o.db.BeginTx(ctx, map[bool]*sql.TxOptions{true: {Isolation: sql.LevelReadCommitted}}[o.table.dialect != dialect.SQLite])
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if err := o.guard(ctx, tx); err != nil {
		return err
	}
	var confirmed, repeated []int64
	for i, r := range batch {
		switch {
		case r.err == nil && r.row.again:
			repeated = append(repeated, r.row.seq)
		case r.err == nil:
			confirmed = append(confirmed, r.row.seq)
		case counts(r.err):
			if batch[i].done, err = o.table.fail(ctx, tx, r, o.lastTry(r)); err != nil {
				return err
			}
		}
	}
	if err := o.table.confirm(ctx, tx, confirmed); err != nil {
		return err
	}
	if err := o.table.repeated(ctx, tx, repeated); err != nil {
		return err
	}
	return tx.Commit()
}

// guard locks the row of the partition until the transaction ends, so that a takeover waits for it.
func (o *owner) guard(ctx context.Context, tx *sql.Tx) error {
	parts := o.table.parts.Name
	if o.table.dialect == dialect.SQLite { // whose first statement has to be a write
		result, err := o.table.new().Add("UPDATE ").Table(parts).Add(" SET beat = beat + 1 WHERE part = ").Value(o.part).Add(" AND token = ").Value(int64(o.token)).Exec(ctx, tx)
		return exactly(1, result, err, fence.ErrStale)
	}
	// An UPDATE would leave a version of the row, which PostgreSQL cannot clean while an old transaction is open.
	var is int64
	err := o.table.new().Add("SELECT token FROM ").Table(parts).Add(" WHERE part = ").Value(o.part).Add(" FOR UPDATE").Scan(ctx, tx, &is)
	if err == nil && fence.Token(is) != o.token {
		err = fmt.Errorf("%w: partition %d has token %d, and this owner has %d", fence.ErrStale, o.part, is, o.token)
	}
	return err
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
