//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// access is the open store, with its client.
type access struct {
	eng    engine.Engine
	client *pawl.Client
	lease  *pawl.Lease
}

// leave ends the session in the store, if the store answers soon.
func (a access) leave(within time.Duration) {
	if a.eng == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	soon(within, func() {
		if a.client != nil {
			a.client.Close(ctx) //nolint:errcheck // expires by itself
		}
		a.eng.Close() //nolint:errcheck // the process ends
	})
}

// connect returns the access that it opened also when it fails later. A busy file makes the command
// queue, but does not hang, so there is time for that.
func (o *runOptions) connect(ctx context.Context) (a access, err error) {
	if a.eng, err = o.store.open(ctx); err != nil {
		return access{}, err
	}
	if err = o.checkHoldFor(a.eng.Caps()); err != nil {
		return a, err
	}
	within, request := answerWithin, min(o.ttl/3, answerWithin)
	if a.isFile() {
		within, request = max(o.ttl, answerWithin), o.ttl/3
	}
	err = askWithin(ctx, within, func(ctx context.Context) (err error) {
		a.client, err = pawl.New(ctx, a.eng, &pawl.Options{TTL: o.ttl, RequestTimeout: request, Label: o.label})
		if errors.Is(err, pawl.ErrInvalid) { // the error names the option TTL, which --ttl sets
			err = fmt.Errorf("--ttl: %w", err)
		}
		return err
	})
	return a, err
}

func (a access) isFile() bool { return a.eng.Caps().Processes == engine.ReachMachine }

// reach connects to the store. A signal ends the attempt, like every wait.
func (j *job) reach(ctx context.Context) (access, error) {
	ctx, stop := j.interruptible(ctx)
	defer stop()
	a, err := j.connect(ctx)
	return a, j.said(ctx, err)
}

// acquisition is the way to the lock. acquisition ends soon after its time, also when the store hangs: the
// end of the process then drops the requests under way.
type acquisition struct {
	*job
	farewell atomic.Int64 // how long a healthy store needs at most to answer the farewell, in ns
	client   atomic.Pointer[pawl.Client]
}

// silence says that the store does not answer, and why if heartbeats were told.
func (q *acquisition) silence() error {
	if c := q.client.Load(); c != nil {
		if err := c.Err(); errors.Is(err, pawl.ErrUnavailable) {
			return fmt.Errorf("wait for %q: %w", q.name, err)
		}
	}
	return engine.Unavailable(fmt.Sprintf("wait for %q", q.name), errors.New("the store does not answer"))
}

// leastFarewell bounds the farewell to a store that hangs: there pawl withdraws its waiting claim.
// A store that was slow to open gets more time.
const leastFarewell = 80 * time.Millisecond

// acquire gets the lock, or leaves the session that it has opened. A signal ends the waiting, and
// leaves no claim.
func (j *job) acquire(ctx context.Context) (access, error) {
	ctx, stop := j.interruptible(ctx)
	defer stop()
	if j.wait > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, j.wait, fmt.Errorf("no answer within %v", j.wait))
		defer cancel()
		ctx = limited
	}
	q := &acquisition{job: j}
	q.farewell.Store(int64(leastFarewell))
	type result struct {
		access
		err error
	}
	done := make(chan result, 1)
	go func() {
		a, err := q.run(ctx)
		if err != nil {
			a.leave(time.Duration(q.farewell.Load()))
			a = access{}
		}
		done <- result{a, err}
	}()
	select {
	case r := <-done:
		return r.access, j.said(ctx, r.err)
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		return r.access, j.said(ctx, r.err)
	case <-time.After(time.Duration(q.farewell.Load())):
		return access{}, j.said(ctx, q.silence())
	}
}

func (q *acquisition) run(ctx context.Context) (access, error) {
	began := time.Now()
	a, err := q.connect(ctx)
	if err != nil {
		return a, err
	}
	q.client.Store(a.client)
	within := max(leastFarewell, min(closeWithin, 4*time.Since(began)))
	if a.isFile() {
		within = closeWithin
	}
	q.farewell.Store(int64(within))
	show := startWaitLine(a.client, q.held(), q.name, q.label)
	a.lease, err = q.lock(ctx, a.client)
	show.stop()
	switch {
	case err == nil && ctx.Err() != nil && q.said(ctx, nil) != nil: // the signal and the lock came at once
		err = errors.Join(ctx.Err(), q.giveBack(ctx, a.lease))
	case err != nil:
		err = q.why(ctx, a.client, err)
	}
	return a, err
}

// lock waits for the lock as long as the user wants.
func (q *acquisition) lock(ctx context.Context, c *pawl.Client) (*pawl.Lease, error) {
	if !q.try {
		return q.ask(ctx, c)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerWithin, fmt.Errorf("no answer within %v", answerWithin))
	defer cancel()
	lease, err := q.ask(ctx, c)
	if err != nil && ctx.Err() != nil {
		err = engine.Unavailable("try", context.Cause(ctx))
	}
	return lease, err
}

func (q *acquisition) ask(ctx context.Context, c *pawl.Client) (*pawl.Lease, error) {
	if q.slots {
		return q.takeSlot(ctx, c)
	}
	if q.keyed != nil {
		return q.claimKey(ctx, c)
	}
	opts := pawl.LockOptions{Barging: q.barge, MinHold: q.holdFor}
	var l pawl.Locker = c.Mutex(q.name).With(opts)
	switch {
	case q.shared:
		l = c.RWMutex(q.name).With(opts).RLocker()
	case q.limited:
		l = c.Semaphore(q.name, q.permits).With(opts)
	}
	if q.try {
		return l.TryLock(ctx)
	}
	return l.Lock(ctx)
}

// why gives the reason from the store for a lock that was not acquired. Other parties hold the
// lock, or the store may have forgotten holders.
func (q *acquisition) why(ctx context.Context, c *pawl.Client, err error) error {
	contended := errors.Is(err, engine.ErrBusy) || errors.Is(err, pawl.ErrGrace) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case !errors.Is(err, pawl.ErrNotAcquired), errors.Is(err, pawl.ErrUnavailable), errors.Is(err, pawl.ErrMismatch), errors.Is(err, context.Canceled) && !contended:
		return err
	case !contended: // an operator evicted the waiter
		return &exitError{q.conflict, err}
	}
	because := "held by others"
	if grace := (*engine.GraceError)(nil); errors.As(err, &grace) {
		because = grace.Error()
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	if r, err := c.Show(look, q.held()); err == nil && r.Grace.On() {
		because = graceText(r)
	} else if err == nil && len(r.Holders) > 0 {
		because = "held by " + heldBy(r) + sessionEnd(r)
	}
	within := ""
	if q.wait > 0 {
		within = fmt.Sprintf(" within %v", q.wait)
	}
	return &exitError{q.conflict, fmt.Errorf("%q: %w%s: %s", q.name, pawl.ErrNotAcquired, within, because)}
}
