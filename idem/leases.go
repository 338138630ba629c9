package idem

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/fence"
)

// scope is where this package has its locks and values in a store.
const scope = "idem"

// Bounds of how long a key is kept.
const (
	DefaultExpiry = 24 * time.Hour
	MinExpiry     = time.Second
	MaxExpiry     = 400 * 24 * time.Hour
)

// LeaseOptions are the settings of [Leases]. The zero value of each field means its default.
type LeaseOptions struct {
	// Expiry is how long a key is kept from its last write on: [MinExpiry] to [MaxExpiry]. Default
	// [DefaultExpiry]. A client that repeats a request later than that runs it again. The time is
	// that of the machines' clocks, because stores tell no time: a clock that is ahead forgets a
	// key sooner by as much.
	Expiry time.Duration
}

// Leases hands out claims of keys for effects outside of a database, see [Leases.Begin]. The type is a
// description, as [pawl.Mutex] is: making Leases does no I/O, and all methods are safe for
// concurrent use.
type Leases struct {
	client *pawl.Client
	scope  *pawl.Scope
	expiry time.Duration
	err    error // the mistake in the description, returned at the first use
}

// NewLeases returns claims of keys in the store of client, which has to keep versioned values: else
// every use fails with [pawl.ErrUnsupported]. Nil opts are the defaults. How soon the key of a dead
// worker can be taken over is the TTL of the client.
func NewLeases(client *pawl.Client, opts *LeaseOptions) *Leases {
	l := &Leases{client: client, scope: client.Scope(scope)}
	if opts != nil {
		l.expiry = opts.Expiry
	}
	l.expiry, l.err = checkExpiry("LeaseOptions.Expiry", cmp.Or(l.expiry, DefaultExpiry))
	return l
}

func checkExpiry(field string, expiry time.Duration) (time.Duration, error) {
	if expiry < MinExpiry || expiry > MaxExpiry {
		return expiry, fmt.Errorf("%w: %s is %v: %v to %v are allowed", pawl.ErrInvalid, field, expiry, MinExpiry, MaxExpiry)
	}
	return expiry, nil
}

// BeginOptions change how a key is claimed. The zero value is the default.
type BeginOptions struct {
	// NoWait fails with [ErrInFlight] if another caller works on the key now.
	NoWait bool

	// Expiry is that of this key instead of [LeaseOptions].Expiry.
	Expiry time.Duration

	// Label tells an operator who works on the key; up to 512 bytes without control characters.
	// Default: the label of the client.
	Label string
}

// InFlightError is an [ErrInFlight] that says how long the other caller has worked on the key.
type InFlightError struct {
	Held time.Duration // since that caller claimed the key; negative where the store does not tell
	Left time.Duration // until the claim ends unless that caller is heard; negative as above
	err  error
}

// Error says how long the key is in flight, and why this caller did not wait.
func (e *InFlightError) Error() string {
	if e.Held < 0 {
		return fmt.Sprintf("%v: %v", ErrInFlight, e.err)
	}
	return fmt.Sprintf("%v, since %v: %v", ErrInFlight, e.Held.Round(time.Millisecond), e.err)
}

// Unwrap returns ErrInFlight and the error of the lock.
func (e *InFlightError) Unwrap() []error { return []error{ErrInFlight, e.err} }

// Begin claims the key for the caller. The caller then causes the effect and calls [Claim.Complete]. If
// the key is completed already, Begin returns a claim that holds nothing but the kept result: see
// [Claim.Kept]. print is the fingerprint of the request.
//
// While another caller works on the key, Begin waits until ctx ends, or with NoWait not at all. Begin
// then fails with [ErrInFlight], as an [InFlightError]. When that caller dies, the claim passes to
// a waiting caller one TTL later, with a larger token. See [Claim.Attempts].
//
// While a store that was restarted grants nothing, Begin waits in the same way, and then fails with [pawl.ErrGrace].
//
// A key of [Once] is a repeat with an empty result. Begin fails with
//
//   - [ErrReused] if the key was used with another fingerprint.
//   - [ErrTakenOver] if this caller lost the lock of the key at once, and a later holder claimed the key.
//   - [pawl.ErrMismatch] if the record is not of this package, or a part of the result is not there.
//   - [pawl.ErrUnsupported] if the record is of a later version, or the store has no values.
//   - [pawl.ErrUnavailable] if the store does not answer for a TTL.
//
// No effect may follow after any of them. ctx bounds the call, not the claim. Nil opts are the defaults.
func (l *Leases) Begin(ctx context.Context, key Key, print Fingerprint, opts *BeginOptions) (*Claim, error) {
	c, err := l.begin(ctx, key, print, opts)
	if err != nil {
		return nil, fmt.Errorf("begin %q: %w", key, err)
	}
	return c, nil
}

func (l *Leases) begin(ctx context.Context, key Key, print Fingerprint, opts *BeginOptions) (*Claim, error) {
	if opts == nil {
		opts = new(BeginOptions)
	}
	me, err := l.claimant(key, print, opts.Expiry)
	if err != nil {
		return nil, err
	}
	bound, stop := pawl.Linger(ctx) // all that is asked after the end of ctx
	defer stop()
	c := &Claim{leases: l, key: key, value: l.value(key), me: me, ctx: ctx, turn: make(chan struct{}, 1)}
	if err = l.read(ctx, c); err != nil || c.repeat {
		return c, err
	}
	if c.lease, err = l.lock(ctx, key, opts); err != nil {
		return nil, err
	}
	if err = c.start(ctx); err == nil && !c.repeat {
		return c, nil
	}
	lost := c.lease.Err()
	if err != nil && ctx.Err() != nil {
		c.withdraw(bound)
	}
	c.lease.Unlock(bound) //nolint:errcheck // a heartbeat repeats it, and the record says all
	c.lease = nil         // of a repeat
	if err != nil && lost != nil {
		err = errors.Join(lost, err)
	}
	return c, err
}

// claimant checks the arguments of Begin and Once.
func (l *Leases) claimant(key Key, print Fingerprint, expiry time.Duration) (claimant, error) {
	me := claimant{key: key, print: print, attempt: rand.Text(), expiry: l.expiry}
	err := cmp.Or(l.err, key.Validate(), l.value(key).Err())
	if err == nil && expiry != 0 {
		me.expiry, err = checkExpiry("BeginOptions.Expiry", expiry)
	}
	return me, err
}

// read looks whether the key is done, without its lock. A repeat costs no more than that.
func (l *Leases) read(ctx context.Context, c *Claim) error {
	err := l.client.Retry(ctx, l.client.TTL(), func() (err error) {
		c.seen, err = c.value.Get(ctx)
		return err
	})
	if err != nil {
		return err
	}
	me := c.me
	me.token, me.now = fence.MaxToken, time.Now()
	is, err := decode(c.seen)
	if err != nil {
		return err
	}
	_, err = me.claim(is, Claimed)
	return c.repeats(ctx, is, err)
}

// lock waits for the lock of the key.
func (l *Leases) lock(ctx context.Context, key Key, opts *BeginOptions) (lease *pawl.Lease, err error) {
	bound, stop := pawl.Linger(ctx) // for both requests
	defer stop()
	lock := l.mutex(key).With(pawl.LockOptions{Label: opts.Label})
	if opts.NoWait {
		lease, err = lock.TryLock(ctx)
	} else {
		lease, err = lock.Lock(ctx)
	}
	if !errors.Is(err, pawl.ErrNotAcquired) || errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrGrace) {
		return lease, err
	}
	flight := &InFlightError{Held: pawl.Unknown, Left: pawl.Unknown, err: err}
	if is, err := l.client.Show(bound, lock.Name()); err == nil && len(is.Holders) > 0 {
		flight.Held, flight.Left = is.Holders[0].Held, is.Holders[0].Left
	}
	return nil, flight
}

func (l *Leases) mutex(key Key) *pawl.Mutex { return l.scope.Mutex(keyPrefix + key.Name()) }
func (l *Leases) value(key Key) *pawl.Value { return l.scope.Value(keyPrefix + key.Name()) }

// keyPrefix begins the names of the locks and records of keys.
const keyPrefix = "key/"

// rule says what a record becomes, as the functions of record.go do.
type rule func(*record) (*record, error)

// write changes the record by a rule, at the version that was read. If the
// record was written meanwhile, or the reply was lost, write reads the record again and the rule
// decides anew. That lasts up to a TTL. So a rule sees whether its change was made.
func write(ctx context.Context, v *pawl.Value, seen pawl.Snapshot, change rule) (pawl.Snapshot, error) {
	decide := func(is pawl.Snapshot) ([]byte, error) {
		old, err := decode(is)
		if err != nil {
			return nil, err
		}
		next, err := change(old)
		switch {
		case err != nil:
			return nil, err
		case next == old:
			return nil, pawl.ErrUnchanged
		case next == nil:
			return nil, nil
		}
		return next.encode()
	}
	data, err := decide(seen)
	switch {
	case errors.Is(err, pawl.ErrUnchanged):
		return seen, nil
	case err != nil:
		return seen, err
	}
	is, err := v.Put(ctx, data, seen.Number)
	if errors.Is(err, pawl.ErrConflict) || errors.Is(err, pawl.ErrUnavailable) {
		return v.Idempotent().Update(ctx, decide)
	}
	return is, err
}

// Do claims the key, runs fn, and keeps its result. A repeat gets the kept result, and kept is true.
// The context of fn ends when ctx does or the claim is lost. An error or panic of fn aborts the
// claim, so that a repeat runs fn again. A final outcome, such as a declined payment, is a
// result. If Complete fails, Do returns the result with the error: the effect has happened, and the
// store may not know of it. The key is then free, and the next caller is told of an earlier worker by [Claim.Attempts].
func (l *Leases) Do(ctx context.Context, key Key, print Fingerprint, opts *BeginOptions, fn func(context.Context, *Claim) ([]byte, error)) (result []byte, kept bool, err error) {
	c, err := l.Begin(ctx, key, print, opts)
	if err != nil {
		return nil, false, err
	}
	if result, kept = c.Kept(); kept {
		return result, true, nil
	}
	completed, last, stop := false, ctx, func() {}
	defer func() {
		if !completed {
			err = errors.Join(err, c.Abort(last))
		}
		stop()
	}()
	work, end := c.lease.Within(ctx)
	defer end()
	if result, err = fn(work, c); err != nil {
		return nil, false, err
	}
	last, stop = pawl.Linger(ctx) // for Complete and Abort together
	err = c.Complete(last, result)
	completed = err == nil
	return result, false, err
}
