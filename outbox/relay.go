package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/outbox/internal/batches"
)

// RelayOptions are the settings of [Table.Relay].
type RelayOptions struct {
	// Window is how many messages of each partition are under way at most: 1 to 1,000. Default 64. At most four times as many
	// are kept in memory for each partition.
	Window int
	// WindowBytes bounds the payloads and headers that are kept in memory for each partition: 1 KiB to 1 GiB. Default 4 MiB. One message
	// may be kept beyond that, or two with Resend.
	WindowBytes int
	// Hold is how many partitions this relay holds at most: 1 to 16, and 16 by default. While other relays wait for
	// partitions, this relay gives up the partitions above its fair share, each after its last sending has a result.
	Hold int
	// Balance is the time between looks at the other relays: 10 ms to 1 h. Default 2 s.
	Balance time.Duration
	// Timeout bounds one sending, and one visit to the database: 100 ms to 1 h. Default 30 s. A call of the publisher that takes a second longer counts as failed,
	// and keeps its place in the window until the call returns. An UPDATE of the relay that takes too long counts as locked. Too long is a third of
	// Timeout, and 3 s at most, or 6 s on MySQL and MariaDB. For a message that is marked alone, too long is 1 s at most, or 2 s there. SQLite has no such bound.
	// A DELETE of old messages has a third of Timeout, and 3 s at most.
	Timeout time.Duration
	// Poll is the time between looks at the table: 10 ms to 1 h. Default 500 ms.
	Poll time.Duration
	// Lag is how long a transaction may stay open between Enqueue and its commit for the polls to find its messages:
	// 0 to 1 h. Default 10 s. Rescan finds the others.
	Lag time.Duration
	// Rescan is the time between reads of all pending messages: 10 ms to 24 h. Default 1 min.
	Rescan time.Duration
	// Backoff is the wait after the first failure of a message: 1 ms to 1 h. Default 100 ms. The wait doubles with each failure.
	Backoff time.Duration
	// MaxBackoff is the longest such wait: Backoff to 24 h. Default 1 min, or Backoff if that is longer.
	MaxBackoff time.Duration
	// MaxAttempts is after how many sendings that failed a message is dead: 1 to 1,000,000. Default 20. A failure of unknown
	// outcome counts only if the broker has confirmed another message since the failure before, or since the first try began.
	// An outage of the broker counts twice at most. So with 3 or more no single outage makes a message dead.
	MaxAttempts int
	// ContinueKeys sends the messages of a key also after one of them is dead. By default they wait for an operator.
	ContinueKeys bool
	// Resend is after how long a confirmed message is sent again unless it is done: 1 s to 366 days. The wait doubles with
	// each repeat, up to 16 times Resend, and no number of repeats makes a message dead. By default the table has no
	// completion, and nothing is sent again. Have the same value in all relays of a table. A value that is
	// set later sends all confirmed messages of the table again, which consumers absorb. See [Table.Complete].
	Resend time.Duration
	// Retention is how long confirmed messages stay in the table: 1 s to 10 years. Default 7 days. Repeats of an ID
	// are refused for so long. With Resend these are the messages that are done, and all others stay.
	Retention time.Duration
	// OnError, when set, gets each error that the relay overcomes by itself: of the broker, of the database, of the store
	// of the locks. Of the errors of the deleting of old messages, OnError gets one for each partition in a minute. OnError must not block, and must
	// be safe for concurrent use.
	OnError func(error)
}

// defaults returns the options with defaults, or an error that names a field out of its range.
func (o RelayOptions) defaults() (RelayOptions, error) {
	const day = 24 * time.Hour
	for _, f := range []struct {
		name              string
		value             *time.Duration
		usual, least, max time.Duration
	}{
		{"Timeout", &o.Timeout, 30 * time.Second, 100 * time.Millisecond, time.Hour}, {"Poll", &o.Poll, 500 * time.Millisecond, 10 * time.Millisecond, time.Hour},
		{"Balance", &o.Balance, 2 * time.Second, 10 * time.Millisecond, time.Hour},
		{"Lag", &o.Lag, 10 * time.Second, 0, time.Hour}, {"Rescan", &o.Rescan, time.Minute, 10 * time.Millisecond, day},
		{"Backoff", &o.Backoff, 100 * time.Millisecond, time.Millisecond, time.Hour}, {"MaxBackoff", &o.MaxBackoff, max(time.Minute, o.Backoff), time.Millisecond, day},
		{"Retention", &o.Retention, 7 * day, time.Second, 3653 * day},
	} {
		if *f.value == 0 {
			*f.value = f.usual
		}
		if *f.value < f.least || *f.value > f.max {
			return o, fmt.Errorf("%w: RelayOptions.%s is %v: %v to %v are allowed", pawl.ErrInvalid, f.name, *f.value, f.least, f.max)
		}
	}
	if o.Resend != 0 && (o.Resend < time.Second || o.Resend > 366*day) {
		return o, fmt.Errorf("%w: RelayOptions.Resend is %v: 0, or %v to %v are allowed", pawl.ErrInvalid, o.Resend, time.Second, 366*day)
	}
	if o.MaxBackoff < o.Backoff {
		return o, fmt.Errorf("%w: RelayOptions.MaxBackoff is %v: %v to %v are allowed", pawl.ErrInvalid, o.MaxBackoff, o.Backoff, day)
	}
	for _, f := range []struct {
		name              string
		value             *int
		usual, least, max int
	}{{"Window", &o.Window, 64, 1, 1000}, {"WindowBytes", &o.WindowBytes, 4 << 20, 1 << 10, 1 << 30}, {"Hold", &o.Hold, Partitions, 1, Partitions},
		{"MaxAttempts", &o.MaxAttempts, 20, 1, 1_000_000}} {
		if *f.value == 0 {
			*f.value = f.usual
		}
		if *f.value < f.least || *f.value > f.max {
			return o, fmt.Errorf("%w: RelayOptions.%s is %d: %d to %d are allowed", pawl.ErrInvalid, f.name, *f.value, f.least, f.max)
		}
	}
	return o, nil
}

// Relay sends the messages of a table to a broker. A Relay is safe for concurrent use.
type Relay struct {
	table     *Table
	db        *sql.DB
	publisher Publisher
	client    *pawl.Client
	opts      RelayOptions
	counters  counters
	hung      [Partitions]atomic.Int64 // see owner
	cleaning  sync.Mutex               // held during a statement of a cleaner, so that all need a single connection

	mu     sync.Mutex
	owners map[*owner]bool // of partitions that are not given up
}

// Relay returns a relay, which nothing runs yet. Nil opts are the defaults. The client's store has to have
// semaphores and versioned values, see [pawl.Slots]: all relays of the table use the same store. Relays of other tables may use
// that store, too. The relay uses up to one
// connection of db for each partition that it holds, and another to delete old messages.
func (t *Table) Relay(client *pawl.Client, db *sql.DB, publisher Publisher, opts *RelayOptions) (*Relay, error) {
	if opts == nil {
		opts = &RelayOptions{}
	}
	o, err := opts.defaults()
	if err == nil && (client == nil || db == nil || publisher == nil) {
		err = fmt.Errorf("%w: client, db or publisher is nil", pawl.ErrInvalid)
	}
	if err != nil {
		return nil, failed("relay", err)
	}
	return &Relay{table: t, db: db, publisher: publisher, client: client, opts: o, owners: make(map[*owner]bool)}, nil
}

// Run sends messages until ctx ends. Run returns an error at once only if the tables are missing, or of another shape
// or format. [pawl.ErrUnsupported] says at once that the client's store lacks semaphores or values. Run repeats everything else
// after an error. When Run returns, no message is under way, except in a call of the publisher that does not return, see RelayStats.Hung.
// The partitions are free for others then. One Run at a time is enough.
func (r *Relay) Run(ctx context.Context) error {
	served := false
	for tries := 1; ; tries++ {
		identity, err := r.begin(ctx)
		if err == nil {
			err, served, tries = r.serve(ctx, identity), true, 1
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, pawl.ErrUnsupported):
			return failed("relay", err)
		case !served && (errors.Is(err, pawl.ErrMismatch) || errors.Is(err, dialect.ErrMissing)):
			return err
		}
		r.failed(ctx, err, tries)
	}
}

// serve holds partitions until ctx ends, another table is in the place of this one, or the store cannot keep partitions.
func (r *Relay) serve(ctx context.Context, identity int64) error {
	var group sync.WaitGroup
	defer group.Wait()
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	r.balance(serving, end, r.client.Slots(r.table.slots(identity), Partitions), func(slot *pawl.Slot) {
		o := r.add(slot, identity)
		group.Go(func() { r.own(serving, end, slot, o) })
	})
	return context.Cause(serving)
}

// begin looks at the tables, and at the rights of this user, within the time of one visit.
func (r *Relay) begin(ctx context.Context) (identity int64, err error) {
	ctx, stop := context.WithTimeout(ctx, r.opts.Timeout)
	defer stop()
	if err := r.table.Check(ctx, r.db); err != nil {
		return 0, err
	}
	if err = r.table.mayRelay(ctx, r.db); err == nil {
		identity, err = r.table.identify(ctx, r.db)
	}
	return identity, failed("relay", err)
}

// add makes an owner of a partition.
func (r *Relay) add(slot *pawl.Slot, identity int64) *owner {
	part := slot.Number()
	o := &owner{Relay: r, identity: identity, part: part, token: slot.Token(), wake: make(chan struct{}, 1), leave: make(chan struct{}), hung: &r.hung[part]}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owners[o] = true
	return o
}

// own sends the messages of a partition until its slot or ctx ends, or the relay gives the partition up. A slot whose token the table
// refuses is given up as well, because only a new holder has a larger token.
func (r *Relay) own(ctx context.Context, end context.CancelCauseFunc, slot *pawl.Slot, o *owner) {
	within, stop := slot.Within(ctx)
	var cleaner sync.WaitGroup
	defer cleaner.Wait()
	defer stop()
	cleaner.Go(func() { newCleaner(r, o.part).run(within) })
	var stale time.Time // since when the table refuses the token
	for tries := 1; within.Err() == nil && r.keeps(o); tries++ {
		began := time.Now()
		err := o.run(within)
		if errors.Is(err, errReplaced) {
			end(err)
		}
		if err == nil || within.Err() != nil {
			continue
		}
		if !errors.Is(err, fence.ErrStale) {
			stale = time.Time{}
		} else if stale.IsZero() {
			stale = time.Now()
		}
		if time.Since(began) > patience {
			tries = 1
		}
		if o.failing.Swap(0) > 0 { // the next run does not know these messages yet
			r.counters.leave()
		}
		r.failed(within, err, tries)
		if !stale.IsZero() && time.Since(stale) >= r.opts.Rescan { // seldom: relays with two lock stores take the rows from each other
			break
		}
	}
	r.mu.Lock()
	delete(r.owners, o)
	r.mu.Unlock()
	slot.Unlock(ctx) //nolint:errcheck // each heartbeat repeats a release that the store did not confirm
}

// patience is the longest wait before the next try at the database or the lock store. A relay goes on soon after an outage.
const patience = 2 * time.Second

// failed tells an error, and waits before the next try.
func (r *Relay) failed(ctx context.Context, err error, tries int) {
	if r.opts.OnError != nil {
		r.opts.OnError(err)
	}
	batches.Rest(ctx, backoff(tries, min(r.opts.Backoff, patience), min(r.opts.MaxBackoff, patience)))
}

// Wake makes this relay look at the table now. Call Wake after the commit of a transaction with messages. Wake does
// not wait, and calls may be many.
func (r *Relay) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.owners {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
}
