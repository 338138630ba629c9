package pawl

import (
	"context"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// MaxPermits is the largest size of a semaphore.
const MaxPermits = 1 << 30

// Semaphore admits a number of holders at once. First come, first served: waiters for few permits
// do not pass a waiter for many. A crashed holder's permits come back. A Semaphore is a
// description, as [Mutex] is. Lock, TryLock and Do take one permit, or as many as
// [Semaphore.Weighted] says.
//
// The context of a lease does not re-enter permits: each acquisition takes its own. With
// [WithOwner], all acquisitions of the owner share permits.
//
// An operator may change the number while the semaphore is in use, see [Semaphore.Resize]. Each
// client reads that number at its first use of the name and re-reads it every TTL/3. That is one
// request more for all acquisitions in that time. Locks have no such number and cost nothing more.
type Semaphore struct{ lock }

// Semaphore returns the semaphore of this name with so many permits, 1 to [MaxPermits]. If users of
// a name declare different numbers, calls fail with [ErrMismatch]. An operator's number overrides
// the declared number. See [Client.Mutex] for names.
func (c *Client) Semaphore(name string, permits int) *Semaphore {
	s := &Semaphore{newLock(c, name, engine.KindSemaphore, int64(permits), 1)}
	if s.err == nil && (permits < 1 || permits > MaxPermits) {
		s.err = invalid("permits is %d: 1 to %d are allowed", permits, MaxPermits)
	}
	s.resizes = c.refusesResize() == nil
	return s
}

func (c *Client) refusesResize() error {
	if err := c.caps.RefuseFeature(engine.FeatureResize); err != nil {
		return err
	}
	return c.caps.RefuseFeature(engine.FeatureValues)
}

// Weighted returns the same semaphore, of which each call takes k permits, 1 to all. If an operator
// makes the semaphore smaller than k, calls fail with [ErrInvalid].
func (s *Semaphore) Weighted(k int) *Semaphore {
	w := &Semaphore{s.lock}
	w.weight = int64(k)
	if w.err == nil && (w.weight < 1 || w.weight > w.spec.Capacity) {
		w.err = invalid("weight is %d: 1 to %d are allowed", k, w.spec.Capacity)
	}
	return w
}

// With returns the same semaphore, taken with opts as well, see [LockOptions].
func (s *Semaphore) With(opts LockOptions) *Semaphore { return &Semaphore{s.with(opts)} }

// Resize gives the semaphore this number of permits, 1 to [MaxPermits], also when nobody uses it at
// the moment. The number overrides the number that its users declare. Waiters get the added permits
// at once, in order. No holder loses a permit: the semaphore shrinks as holders leave. A waiter for
// more permits than are left is let in when it is alone. A client that knows an older number learns
// the new number within TTL/3. The client learns earlier if it meets a client that knows the new number.
//
// Resize fails with [ErrMismatch] when the name is in use as a lock, and with [ErrUnsupported] on
// stores that lack resizing. After [ErrUnavailable] the number may have been changed: call Resize
// again.
func (s *Semaphore) Resize(ctx context.Context, permits int) error {
	if err := s.resize(ctx, permits); err != nil {
		return s.failed(fmt.Errorf("resize: %w", err))
	}
	return nil
}

// Resized returns the number of permits that [Semaphore.Resize] has set, and 0 where the declared
// number counts.
func (s *Semaphore) Resized(ctx context.Context) (int, error) {
	switch {
	case s.err != nil:
		return 0, s.failed(s.err)
	case !s.resizes:
		return 0, s.failed(s.client.refusesResize())
	}
	is, err := s.readNumber(ctx)
	if err != nil {
		err = s.failed(err)
	}
	return int(is.permits), err
}

// Reset takes back the number that [Semaphore.Resize] has set: the declared number counts again.
// All users must then declare the number of s. Reset brings the users of the name to that number as
// Resize does, with the same errors.
func (s *Semaphore) Reset(ctx context.Context) error {
	if err := s.renumber(ctx, number{reset: s.spec.Capacity}); err != nil {
		return s.failed(fmt.Errorf("reset: %w", err))
	}
	return nil
}

func (s *Semaphore) resize(ctx context.Context, permits int) error {
	if s.err == nil && (permits < 1 || permits > MaxPermits) {
		return invalid("permits is %d: 1 to %d are allowed", permits, MaxPermits)
	}
	return s.renumber(ctx, number{permits: int64(permits)})
}

func (s *Semaphore) renumber(ctx context.Context, is number) error {
	c := s.client
	switch {
	case s.err != nil:
		return s.err
	case !s.resizes:
		return c.refusesResize()
	case c.life.Err() != nil:
		return ErrClosed
	}
	r, err := c.claims(ctx, s.name)
	if err == nil && len(r.Claims) > 0 && r.Kind != engine.KindSemaphore { // so that a number that nobody wanted is not left behind
		err = fmt.Errorf("%w: it is in use as a %s", ErrMismatch, r.Kind)
	}
	if err != nil {
		return err
	}
	v := newValue(c, "permits", s.name).Idempotent() // a repetition writes the same
	is.read = time.Now()
	written, err := v.Update(ctx, func(Snapshot) ([]byte, error) { return is.data(), nil })
	if err != nil {
		return err
	}
	is.version = written.Number
	c.numbers.of(s.name, is.read.Add(-c.opts.TTL/3)).is.Store(&is)
	return c.retryIf(ctx, true, func() error { return s.correct(ctx, is) })
}
