package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
)

// MaxAhead is how far the time of a message may be ahead of this machine's clock. The clocks of machines may differ by that. The note of
// a message outlives the retention by twice that. The message may come from ahead, and the clock of the table may be ahead as well.
const MaxAhead = time.Hour

// Options are the settings of [New].
type Options struct {
	// Retention is how old a message may be to run: 1 s to 10 years. Default 7 days. The table keeps an ID for two
	// hours more. A longer retention keeps no ID longer that is in the table already. So make the retention longer only
	// while the broker has no message that is as old as the shorter one.
	Retention time.Duration
}

// Inbox runs each message once for one consumer. An Inbox is safe for concurrent use, and has no connection.
type Inbox struct {
	name      string
	retention time.Duration
}

// New returns the inbox of a consumer. All processes of the consumer use the same name and the same retention. Other
// consumers of the same messages, even in the same database, use other names. A name has 1 to 200 bytes of UTF-8 without
// control characters. Nil opts are the defaults.
func New(name string, opts *Options) (*Inbox, error) {
	if opts == nil {
		opts = &Options{}
	}
	const most = 3653 * 24 * time.Hour
	b := &Inbox{name, opts.Retention}
	if b.retention == 0 {
		b.retention = 7 * 24 * time.Hour
	}
	err := idem.Key{Scope: b.scope(), ID: "1"}.Validate()
	switch {
	case name == "" || len(name) > 200 || err != nil:
		return nil, fmt.Errorf("inbox: %w: name is %.300q: 1 to 200 bytes of UTF-8 without control characters are allowed", pawl.ErrInvalid, name)
	case b.retention < time.Second || b.retention > most:
		return nil, fmt.Errorf("inbox: %w: Options.Retention is %v: %v to %v are allowed", pawl.ErrInvalid, b.retention, time.Second, most)
	}
	return b, nil
}

// scope separates the IDs of this consumer from other keys of the table.
func (b *Inbox) scope() string { return "inbox/" + b.name }

// Do runs fn once for the message, in the caller's transaction. The ID of the message and the writes of fn are
// committed together or not at all. Do neither begins nor ends the transaction. A repeat returns true at once and does
// not run fn. A transaction that works on the same message makes Do wait for its end, unless the options of tx say NoWait.
//
// The message has taken effect when the caller's commit has succeeded: acknowledge the message after that. An error of fn is
// returned as it is, and the message runs again next time. See [idem.Do] for the writes of fn then.
//
// Other errors: [ErrTooOld], [ErrAhead], [idem.ErrInFlight], and errors of the database. The error matches [pawl.ErrInvalid] if
// the message has no ID or no time. The error matches [idem.ErrReused] if a message with another key or payload had the ID. After any
// error a rollback is right.
func (b *Inbox) Do(ctx context.Context, tx idem.Tx, m Message, fn func(context.Context) error) (repeat bool, err error) {
	if err := m.validate(); err != nil {
		return false, fmt.Errorf("inbox: %w", err)
	}
	key := idem.Key{Scope: b.scope(), ID: m.ID}
	tx = tx.With(idem.TxOptions{Expiry: b.retention + 2*MaxAhead})
	var ran error
	repeat, err = idem.Run(ctx, tx, key, m.sum(), func(ctx context.Context) error {
		// The age is judged behind the claim. A process that was frozen before the claim would else run a
		// message that had been young enough, and whose note was swept.
		if err := b.age(m, time.Now()); err != nil {
			return err
		}
		ran = fn(ctx)
		return ran
	})
	if err != nil && (ran == nil || !errors.Is(err, ran)) {
		err = fmt.Errorf("inbox: message %q: %w", m.ID, err)
	}
	return repeat, err
}

// Done reports whether a message has taken effect at this consumer: the transaction of [Inbox.Do] is committed. The store is the table of
// IDs in db. A message that waits, runs now or is a dead letter has not. The table forgets a message two hours
// after its retention. Done waits for no transaction. See outbox.Table.Status for the side of the producer.
func (b *Inbox) Done(ctx context.Context, db dialect.DB, store *sqlidem.Store, id string) (bool, error) {
	done, err := store.Done(ctx, db, idem.Key{Scope: b.scope(), ID: id})
	if err != nil {
		return false, fmt.Errorf("inbox: message %q: %w", id, err)
	}
	return done, nil
}

// age refuses a message whose note may be gone, or may go too soon.
func (b *Inbox) age(m Message, now time.Time) error {
	switch age := now.Sub(m.Time); {
	case age > b.retention:
		return fmt.Errorf("%w: its time is %s, and the retention is %v", ErrTooOld, m.Time.UTC().Format(time.RFC3339), b.retention)
	case -age > MaxAhead:
		return fmt.Errorf("%w: its time is %s", ErrAhead, m.Time.UTC().Format(time.RFC3339))
	}
	return nil
}
