package idem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/fence"
)

const (
	// MaxResult is the largest result of a claim in bytes.
	MaxResult = 1 << 20

	// MaxPoints is how many bytes the recovery points of a claim have at most, names and data together. The record of
	// the points has 60 KiB of JSON at most. Each point needs some 20 bytes there, and data a third more.
	MaxPoints = 32 << 10

	maxRecord = pawl.MaxValue - 4<<10 // with points: the record of a later claim has larger numbers
)

// Claim is a key that the caller works on, or the kept result of a key that is done. The client
// renews a claim until the claim ends by Complete or Abort. All methods are safe for concurrent use.
//
// Two workers may believe for a moment that they hold a key, as with every lease. The workers' writes in
// the store do not depend on that. Every write stands on the version of the record that the worker
// wrote last, so the worker that was overtaken writes nothing.
type Claim struct {
	leases *Leases
	key    Key
	value  *pawl.Value
	me     claimant
	ctx    context.Context // of Begin
	lease  *pawl.Lease     // nil: it is a repeat

	repeat   bool
	kept     []byte
	attempts int

	turn   chan struct{} // has room for the one call that writes the record
	result []byte        // given to Complete, which may have been kept; of that call

	mu     sync.Mutex    // for fields only, and never held during a request
	seen   pawl.Snapshot // the record as this claim knows it
	worked bool          // Complete was called: the effect has happened
	ended  error
}

// start writes the claim into the record. The caller has the lock.
func (c *Claim) start(ctx context.Context) error {
	within, stop := c.lease.Within(ctx)
	defer stop()
	c.me.token, c.me.now = c.lease.Token(), time.Now()
	var last *record
	seen, err := write(within, c.value, c.seen, func(is *record) (*record, error) {
		last = is
		return c.me.claim(is, Claimed)
	})
	if err != nil {
		return c.repeats(ctx, last, err)
	}
	c.seen = seen
	is, err := decode(seen)
	if err == nil {
		c.attempts = is.Attempts
	}
	return err
}

// withdraw takes back what start has written, if the end of ctx took the reply away. The work never began,
// so the next caller must not be told of an earlier attempt. bound lingers after ctx.
func (c *Claim) withdraw(bound context.Context) {
	if is, err := c.value.Get(bound); err == nil && is.Number != c.seen.Number {
		write(bound, c.value, is, func(is *record) (*record, error) { return is.abort(c.me.attempt) }) //nolint:errcheck // a takeover says it too
	}
}

// repeats makes c a repeat if that is what err says, and returns any other error of a claim.
func (c *Claim) repeats(ctx context.Context, is *record, err error) error {
	if !errors.Is(err, errRepeat) {
		return err
	}
	c.repeat, c.attempts = true, is.Attempts
	return c.leases.client.Retry(ctx, c.leases.client.TTL(), func() (err error) {
		c.kept, err = c.leases.fetch(ctx, is)
		return err
	})
}

// Kept returns the kept result if the key was done before. Then this claim holds nothing, and there
// is nothing to do: Context is that of Begin, Token is 0, and Complete fails.
func (c *Claim) Kept() (result []byte, kept bool) { return c.kept, c.repeat }

// Key returns the key.
func (c *Claim) Key() Key { return c.key }

// Token returns the fencing token of the claim. A later claim of the key has a larger token. A
// resource that refuses smaller tokens is safe from a late worker, see package fence. Such a resource does not
// know whether the effect has happened before a crash: for that it has to record the key.
func (c *Claim) Token() fence.Token {
	if c.repeat {
		return 0
	}
	return c.lease.Token()
}

// Attempts returns how often the key was claimed, with this claim. More than 1 says that an earlier
// worker has not come to an end: its effect may have happened.
func (c *Claim) Attempts() int { return c.attempts }

// Context returns a context that ends when the claim is lost or ended, with the cause that
// [pawl.Lease.Context] gives. The context has the values of Begin's context, and neither its deadline nor its
// cancellation. The token is in it, under the name of the lock.
func (c *Claim) Context() context.Context {
	if c.repeat {
		return c.ctx
	}
	return c.lease.Context()
}

// Lease returns the lease of the claim, or nil for a repeat. The lease tells how long the claim may be
// believed, such as to a caller that has to stop other processes in time. End the claim by
// Complete or Abort, and not by [pawl.Lease.Unlock].
func (c *Claim) Lease() *pawl.Lease { return c.lease }

// Err returns nil while the claim may be believed to be held, see [pawl.Lease.Err].
func (c *Claim) Err() error {
	if c.repeat {
		return pawl.ErrClosed
	}
	return c.lease.Err()
}

// Point returns the data of a recovery point, if this worker or an earlier one has reached that.
func (c *Claim) Point(name string) (data []byte, reached bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is, err := decode(c.seen); err == nil && is != nil {
		return is.point(name)
	}
	return nil, false
}

// Reach records that the work has reached a point. The data lets a later worker go on from there,
// such as the number that another service gave. That worker sees it by Point, and does not
// repeat the steps before. A point is recorded once: Reach of a point with data that was recorded
// does nothing. Names have 1 to 255 bytes of UTF-8; all points together at most [MaxPoints] bytes, and 60 KiB in JSON.
// Errors are those of Complete.
func (c *Claim) Reach(ctx context.Context, name string, data []byte) error {
	ctx, stop := pawl.Linger(ctx)
	defer stop()
	return c.change(ctx, "reach", func() (rule, error) {
		if name == "" || len(name) > MaxPart || !utf8.ValidString(name) {
			return nil, fmt.Errorf("%w: name of the point is %.300q: 1 to %d bytes of UTF-8 are allowed", pawl.ErrInvalid, name, MaxPart)
		}
		return func(is *record) (*record, error) {
			return is.reach(c.me.attempt, point{name, data}, time.Now().Add(c.me.expiry))
		}, nil
	})
}

// Complete keeps the result, at most [MaxResult] bytes, and ends the claim. Complete stands on the version
// of the record: it succeeds exactly if nobody has claimed the key meanwhile, even if the lease was
// lost. Complete fails with
//
//   - [ErrTakenOver] if another worker has claimed the key. This worker's result is not kept.
//   - [ErrTooLarge] if result is too large. The claim goes on, and takes a smaller result.
//   - [pawl.ErrUnavailable] if the store did not answer for a TTL, or until ctx ended. Nobody
//     knows whether the result is kept. The caller may call Complete again with the same result.
//
// Give Complete a context that does not end with the claim.
func (c *Claim) Complete(ctx context.Context, result []byte) error {
	ctx, stop := pawl.Linger(ctx)
	defer stop()
	c.mu.Lock()
	c.worked = true
	c.mu.Unlock()
	if len(result) > MaxResult {
		return c.failed("complete", fmt.Errorf("%w: the result has %d bytes, and %d are allowed", ErrTooLarge, len(result), MaxResult))
	}
	err := c.change(ctx, "complete", func() (rule, error) {
		if c.result != nil && !bytes.Equal(c.result, result) {
			return nil, fmt.Errorf("%w: another result was given before, which may be kept", pawl.ErrInvalid)
		}
		c.result = append([]byte{}, result...)
		with := outcome{size: len(result)}
		var err error
		with.parts, with.inline, err = c.leases.store(ctx, c.key, c.me.attempt, c.result)
		return func(is *record) (*record, error) {
			return is.complete(c.me.attempt, with, time.Now().Add(c.me.expiry))
		}, err
	})
	if err == nil {
		c.end(ctx, pawl.ErrClosed)
	}
	return err
}

// Abort gives the key back without a result, so that the next caller begins at once. The key is
// forgotten. But if a point was reached, or the claim was taken over from a worker that died, the
// record stays for the next caller. The same holds after a Complete that failed, because the effect has happened.
// Abort of a claim that has ended does nothing, so it may be deferred.
func (c *Claim) Abort(ctx context.Context) error {
	c.mu.Lock()
	over := c.repeat || c.ended != nil
	c.mu.Unlock()
	if over {
		return nil
	}
	ctx, stop := pawl.Linger(ctx)
	defer stop()
	err := c.change(ctx, "abort", func() (rule, error) {
		return func(is *record) (*record, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.worked {
				return is, nil
			}
			return is.abort(c.me.attempt)
		}, nil
	})
	c.end(ctx, pawl.ErrClosed)
	return err
}

// change writes the record of a claim that goes on, by the rule that prepare returns, while no other call does. ctx is
// that of [pawl.Linger] of the whole call, so requests are sent also after the end of the caller's ctx.
func (c *Claim) change(ctx context.Context, doing string, prepare func() (rule, error)) error {
	err := c.alone(ctx, func() error {
		c.mu.Lock()
		seen, err := c.seen, c.ended
		c.mu.Unlock()
		if c.repeat {
			err = pawl.ErrClosed
		}
		if err != nil {
			return err
		}
		change, err := prepare()
		if err != nil {
			return err
		}
		if seen, err = write(ctx, c.value, seen, change); err == nil {
			c.mu.Lock()
			c.seen = seen
			c.mu.Unlock()
		}
		return err
	})
	if errors.Is(err, ErrTakenOver) {
		c.end(ctx, err)
	}
	if err != nil {
		return c.failed(doing, err)
	}
	return nil
}

// alone calls fn while no other call of the claim has the turn, and waits for that until ctx ends. A free turn is taken also
// after the end of ctx.
func (c *Claim) alone(ctx context.Context, fn func() error) error {
	select {
	case c.turn <- struct{}{}:
	default:
		select {
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("%w: another call of the claim has no answer yet: %w", pawl.ErrUnavailable, ctx.Err())
		}
	}
	defer func() { <-c.turn }()
	return fn()
}

// end gives the lock back.
func (c *Claim) end(ctx context.Context, why error) {
	c.mu.Lock()
	first := c.ended == nil && !c.repeat
	if first {
		c.ended = why
	}
	c.mu.Unlock()
	if first {
		c.lease.Unlock(ctx) //nolint:errcheck // the record says all, and a heartbeat repeats the release
	}
}

func (c *Claim) failed(doing string, err error) error {
	return fmt.Errorf("%s %q: %w", doing, c.key, err)
}
