package pawl

import (
	"context"
	"time"

	"github.com/pawl-go/pawl/fence"
)

// EventKind is the kind of an event.
type EventKind int

// The events that [Options.Observe] gets.
const (
	// EventAttempt: a lock is wanted.
	EventAttempt EventKind = iota + 1
	// EventContended: others hold the lock, and the wait begins. An acquisition has at most one such event, and one
	// EventGrace.
	EventContended
	// EventGranted: the lock is held; Took is how long that took.
	EventGranted
	// EventRefused: the lock was not acquired; Took is how long the attempt lasted, and Err
	// is the reason.
	EventRefused
	// EventReleased: the holder released the lock; Took is how long it was held. If the store did not
	// confirm that, Err matches [ErrUnavailable]: each heartbeat repeats the release. The event comes without Err when
	// Client.Close releases the lock, because Close itself returns the trouble of the store.
	EventReleased
	// EventLost: the lock was held and no longer is, without a release; Took is how
	// long it was held, and Err is the reason.
	EventLost
	// EventRenewed: the client renewed its session, or failed to, with the reason in Err. A renewal
	// is due a third of the TTL after the last success. Took is its delay, and is negative when a
	// renewal comes early. The event has no name.
	EventRenewed
	// EventGrace: a holder that the store has forgotten may have the lock. So the wait lasts until
	// the restart grace of the store ends. Took is the time until then, and Err matches [ErrGrace].
	EventGrace
)

// String returns the kind in one word.
func (k EventKind) String() string {
	names := [...]string{"unknown", "attempt", "contended", "granted", "refused", "released", "lost", "renewed", "grace"}
	if k < 1 || int(k) >= len(names) {
		k = 0
	}
	return names[k]
}

// Event is something that happened to a lock, or to the session of a client.
type Event struct {
	Kind  EventKind
	Name  string      // of the lock
	Use   string      // "lock" or "semaphore"
	Token fence.Token // of the grant, where there is one
	Took  time.Duration
	Err   error

	// Since is when the attempt began (EventAttempt, EventGranted, EventRefused), the same for all
	// events of one attempt. For EventReleased and EventLost, Since is when the hold began. Else it
	// is zero.
	Since time.Time
}

func (c *Client) observe(ctx context.Context, e Event) {
	if c.opts.Observe != nil {
		c.opts.Observe(ctx, e)
	}
}

// observe reports an event of a lock that began at start, if start is known.
func (l *lock) observe(ctx context.Context, kind EventKind, token fence.Token, start time.Time, err error) {
	if l.client.opts.Observe == nil {
		return
	}
	e := Event{Kind: kind, Token: token, Err: err, Since: start}
	if !start.IsZero() && kind != EventAttempt {
		e.Took = time.Since(start)
	}
	l.tell(ctx, e)
}

// tell reports an event of a lock.
func (l *lock) tell(ctx context.Context, e Event) {
	e.Name, e.Use = l.name, string(l.spec.Kind)
	l.client.observe(ctx, e)
}
