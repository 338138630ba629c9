package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
)

// Handler makes a message take effect: by writes in tx only. The consumer begins and ends tx. A Handler is called for several
// messages at once, but never for two of one key. A Handler returns when ctx ends. A panic of a Handler ends the process.
type Handler func(ctx context.Context, tx *sql.Tx, m Message) error

// ConsumerOptions are the settings of [Inbox.Consumer].
type ConsumerOptions struct {
	// Workers is how many messages run at once: 1 to 1,000. Default 8. Each needs a connection of the database.
	Workers int
	// Window is how many messages are in memory at most: Workers to 10,000. Default 8 times Workers. A key that fails
	// takes a quarter of that, and all keys that wait after a failure take half. The rest of their messages is parked, see the package.
	Window int
	// Timeout bounds one run of a message: 100 ms to 1 h. Default 1 min.
	Timeout time.Duration
	// Backoff is the wait after the first failure of a message: 1 ms to 1 h. Default 100 ms. The wait doubles with each failure.
	Backoff time.Duration
	// MaxBackoff is the longest such wait: Backoff to 24 h. Default 1 min, or Backoff if that is longer.
	MaxBackoff time.Duration
	// MaxAttempts is after how many failed runs in one process a message becomes a dead letter: 1 to 1,000,000. Default 20.
	MaxAttempts int
	// MaxDeliveries is how often the broker may deliver a message that runs: 1 to 1,000,000. Default 100. A message
	// that is delivered more often is a dead letter at once, because it may end each process that runs it. Processes that are killed
	// for other reasons count as well, also if the message was in memory and did not run. A parked message counts no delivery on
	// Redis. On NATS and on a quorum queue of RabbitMQ it counts one for each process that had the message, and for each feed that failed.
	MaxDeliveries int
	// Grace is how long runs may go on when Run is to end: 1 ms to 1 h. Default 10 s. After that their ctx ends.
	Grace time.Duration
	// Single, when set, is held while this process reads, so that one process at a time does. See the package for the
	// order of keys.
	Single *pawl.Mutex
	// Tx are the settings of each transaction, such as its isolation. Nil is the default of the database.
	Tx *sql.TxOptions
	// Reply, when set, tells the producer that a message took effect, see outbox.Table.Complete. Reply is called after the commit and
	// before the message is acknowledged, and again for each repeat that the inbox absorbs. A crash loses no reply. An error
	// of Reply goes to OnError, and the message is acknowledged all the same: the producer sends it again. Timeout bounds the handler
	// and Reply together.
	Reply func(ctx context.Context, m Message) error
	// OnError, when set, gets each error that the consumer overcomes by itself: of handlers, the database and the broker. Each
	// dead letter is among them. OnError must not block, and must be safe for concurrent use.
	OnError func(error)
}

// defaults returns the options with defaults, or an error that names a field out of its range.
func (o ConsumerOptions) defaults() (ConsumerOptions, error) {
	if o.Workers == 0 {
		o.Workers = 8
	}
	for _, f := range []struct {
		name              string
		value             *int
		usual, least, max int
	}{{"Workers", &o.Workers, 8, 1, 1000}, {"Window", &o.Window, 8 * o.Workers, o.Workers, 10_000},
		{"MaxAttempts", &o.MaxAttempts, 20, 1, 1_000_000}, {"MaxDeliveries", &o.MaxDeliveries, 100, 1, 1_000_000}} {
		if *f.value == 0 {
			*f.value = f.usual
		}
		if *f.value < f.least || *f.value > f.max {
			return o, fmt.Errorf("%w: ConsumerOptions.%s is %d: %d to %d are allowed", pawl.ErrInvalid, f.name, *f.value, f.least, f.max)
		}
	}
	for _, f := range []struct {
		name              string
		value             *time.Duration
		usual, least, max time.Duration
	}{
		{"Timeout", &o.Timeout, time.Minute, 100 * time.Millisecond, time.Hour}, {"Backoff", &o.Backoff, 100 * time.Millisecond, time.Millisecond, time.Hour},
		{"MaxBackoff", &o.MaxBackoff, max(time.Minute, o.Backoff), max(o.Backoff, time.Millisecond), 24 * time.Hour}, {"Grace", &o.Grace, 10 * time.Second, time.Millisecond, time.Hour},
	} {
		if *f.value == 0 {
			*f.value = f.usual
		}
		if *f.value < f.least || *f.value > f.max {
			return o, fmt.Errorf("%w: ConsumerOptions.%s is %v: %v to %v are allowed", pawl.ErrInvalid, f.name, *f.value, f.least, f.max)
		}
	}
	return o, nil
}

// Consumer runs the messages of a source. A Consumer is safe for concurrent use.
type Consumer struct {
	inbox   *Inbox
	db      *sql.DB
	store   *sqlidem.Store
	source  Source
	handler Handler
	opts    ConsumerOptions
}

// Consumer returns a consumer, which nothing runs yet. The store is the table of IDs in db. Nil opts are the defaults.
func (b *Inbox) Consumer(db *sql.DB, store *sqlidem.Store, source Source, handler Handler, opts *ConsumerOptions) (*Consumer, error) {
	if opts == nil {
		opts = &ConsumerOptions{}
	}
	o, err := opts.defaults()
	if err == nil && (db == nil || store == nil || source == nil || handler == nil) {
		err = fmt.Errorf("%w: db, store, source or handler is nil", pawl.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: consumer: %w", err)
	}
	return &Consumer{b, db, store, source, handler, o}, nil
}

// Run consumes until ctx ends, and returns an error at once only if the table of IDs is missing or of another shape. Run
// repeats everything else after an error. When ctx ends, no further message runs. Run returns after Grace and a few
// seconds at the latest, if the handlers return when their ctx ends. With inbox/natsjs and a slow server that may be 10 s more. One Run at a time is enough.
func (c *Consumer) Run(ctx context.Context) error {
	for tries := 1; ; tries++ {
		err := c.store.Check(ctx, c.db)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, pawl.ErrMismatch) || errors.Is(err, dialect.ErrMissing) {
			return fmt.Errorf("inbox: %w", err)
		}
		if err == nil {
			break
		}
		c.pause(ctx, err, tries)
	}
	if c.opts.Single == nil {
		newRun(c).consume(ctx)
		return nil
	}
	for tries := 1; ctx.Err() == nil; tries++ {
		lease, err := c.opts.Single.Lock(ctx)
		if err != nil {
			c.pause(ctx, err, tries)
			continue
		}
		tries = 0
		within, stop := lease.Within(ctx)
		newRun(c).consume(within)
		stop()
		if err := lease.Unlock(ctx); err != nil {
			c.report(err)
		}
	}
	return nil
}

// task is one run of a message.
type task struct {
	Message
	count  int      // deliveries by the broker
	parked Delivery // nil if the content is in memory
}

// once runs a message in a transaction of its own, and replies.
func (c *Consumer) once(ctx context.Context, m task) (o outcome) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer func() {
		o.stopped = errors.Is(ctx.Err(), context.Canceled)
		cancel()
	}()
	if m.parked != nil {
		if m.Message, o.err = m.parked.Load(ctx); o.err != nil {
			o.err = fmt.Errorf("load: %w", o.err)
			return o
		}
	}
	tx, err := c.db.BeginTx(ctx, c.opts.Tx)
	if err != nil {
		o.err = fmt.Errorf("begin: %w", err)
		return o
	}
	defer tx.Rollback()                                          //nolint:errcheck // after the commit there is nothing to undo
	in := c.store.In(tx).With(idem.TxOptions{NoSavepoint: true}) // after each error the transaction is rolled back
	_, o.err = c.inbox.Do(ctx, in, m.Message, func(ctx context.Context) error {
		if m.count > c.opts.MaxDeliveries {
			return fmt.Errorf("%w: the broker has delivered it %d times", errWorn, m.count)
		}
		o.handler = c.handler(ctx, tx, m.Message)
		return o.handler
	})
	if o.handler != nil {
		o.gone = unanswered(ctx, tx.Rollback())
	}
	if o.err == nil {
		o.committed = true
		if o.err = tx.Commit(); o.err != nil {
			o.err = fmt.Errorf("commit: %w", o.err)
		}
	}
	if o.err == nil && c.opts.Reply != nil {
		if err := c.opts.Reply(ctx, m.Message); err != nil {
			c.report(fmt.Errorf("reply to message %q: %w", m.ID, err))
		}
	}
	return o
}

// unanswered reports whether a rollback says that the database is gone. A transaction that has ended before says nothing: the
// handler has ended it, or the time was over. When Run ends, the answer is unknown.
func unanswered(ctx context.Context, rollback error) bool {
	return rollback != nil && (!errors.Is(rollback, sql.ErrTxDone) || errors.Is(ctx.Err(), context.Canceled))
}

func (c *Consumer) report(err error) {
	if c.opts.OnError != nil {
		c.opts.OnError(fmt.Errorf("inbox: %s: %w", c.inbox.name, err))
	}
}

// pause tells an error, and waits before the next try.
func (c *Consumer) pause(ctx context.Context, err error, tries int) {
	if ctx.Err() != nil {
		return
	}
	c.report(err)
	timer := time.NewTimer(backoff(tries, c.opts.Backoff, c.opts.MaxBackoff))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
