package outbox

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"
)

// counters are what a relay counts.
type counters struct {
	confirmed, refused, blocked, failed, dead atomic.Uint64
	sending                                   atomic.Int64
	calm                                      atomic.Uint64             // failures when the newest of the confirmed sendings began
	left                                      atomic.Pointer[time.Time] // when a message failed that is not tried again soon
}

// failures is how often the broker has failed. A broker that refuses a message works.
func (c *counters) failures() uint64 { return c.blocked.Load() + c.failed.Load() }

// confirm counts a confirm. The failures are those when the sending began.
func (c *counters) confirm(failures uint64) {
	c.confirmed.Add(1)
	for is := c.calm.Load(); failures > is && !c.calm.CompareAndSwap(is, failures); is = c.calm.Load() {
	}
}

// leave notes that a message failed, and is not tried again soon.
func (c *counters) leave() {
	now := time.Now()
	c.left.Store(&now)
}

// health is what a relay knows of its broker.
type health struct {
	failures uint64        // so far
	calm     uint64        // failures when the newest of the confirmed sendings began
	waiting  int           // messages that failed, and are neither confirmed nor refused since
	left     time.Duration // since a failure of a message that is not tried again soon
}

// remembered is how long such a failure counts.
const remembered = time.Minute

// fails reports whether a broker fails. A confirm alone is no recovery. The broker may have read that message before it failed, or may fail for
// one queue of several. The messages of that queue are tried seldom, so that there is no failure for a while.
func (h health) fails() bool { return h.failures > h.calm || h.waiting > 0 || h.left < remembered }

// count counts a result, except a confirm, which is counted when it arrives.
func (c *counters) count(r result, dies bool) {
	switch {
	case r.err == nil:
	case errors.Is(r.err, ErrRefused):
		c.refused.Add(1)
	case errors.Is(r.err, ErrBlocked):
		c.blocked.Add(1)
	default:
		c.failed.Add(1)
	}
	if dies {
		c.dead.Add(1)
	}
	if (dies || r.row.again) && r.row.fails {
		c.leave()
	}
}

// RelayStats is what a relay in this process has done since [Table.Relay] made it. The counters only grow, so that the
// difference of two reads is a rate.
type RelayStats struct {
	Partitions int    // that the relay holds now, by its locks and by the rows of the table
	Sending    int    // messages that are under way now
	Hung       int    // calls of the publisher that have not returned in time
	Confirmed  uint64 // sendings that the broker confirmed
	Refused    uint64 // sendings that failed with ErrRefused
	Blocked    uint64 // sendings that failed with ErrBlocked
	Failed     uint64 // sendings that failed otherwise
	Dead       uint64 // messages that this relay has marked as dead

	// Failing says that the broker has failed, and has not recovered as far as this relay knows. Such a failure is one with [ErrBlocked], or of
	// unknown outcome. The broker has recovered when it has confirmed a sending that began after the last failure, and no message
	// waits after a failure. A message that this relay does not send again soon counts for a minute. That is a dead message, or a repeat.
	Failing bool
}

// Stats returns what this relay has done. Stats asks neither the database nor the broker, and is safe for concurrent use. A
// metrics library may call Stats at each collection.
func (r *Relay) Stats() RelayStats {
	c := &r.counters
	s := RelayStats{Sending: int(c.sending.Load()), Confirmed: c.confirmed.Load(), Refused: c.refused.Load(), Blocked: c.blocked.Load(), Failed: c.failed.Load(), Dead: c.dead.Load()}
	h := health{failures: s.Blocked + s.Failed, calm: c.calm.Load(), left: remembered}
	if at := c.left.Load(); at != nil {
		h.left = time.Since(*at)
	}
	s.Partitions, h.waiting = r.owned() // after the failures: a message waits before its failure is counted
	s.Failing = h.fails()
	for i := range r.hung {
		s.Hung += int(r.hung[i].Load())
	}
	return s
}

// TableStats is how much there is in the table, as last committed.
type TableStats struct {
	Pending    int           // messages that are not confirmed and not dead, with those of halted keys
	Oldest     time.Duration // since the oldest of them was enqueued, by the clock of the database; 0 if there is none
	Dead       int           // messages that failed as often as they may
	HaltedKeys int           // keys with a dead message, which a relay with ContinueKeys does not halt
}

// Stats reads how much there is in the table: all pending and dead messages, so it takes longer if there are more.
func (t *Table) Stats(ctx context.Context, db *sql.DB) (s TableStats, err error) {
	var oldest, now sql.NullInt64
	err = t.new().Add("SELECT COUNT(*), MIN(created), ", t.now(), " FROM ").Table(t.messages.Name).Add(" WHERE part IN (", every(), ") AND state = 0").Scan(ctx, db, &s.Pending, &oldest, &now)
	if err == nil {
		err = t.new().Add("SELECT COUNT(*), COUNT(DISTINCT CASE WHEN ").Name("key").Add(" <> '' THEN ").Name("key").Add(" END) FROM ").Table(t.messages.Name).
			Add(" WHERE part IN (", every(), ") AND state = 4").Scan(ctx, db, &s.Dead, &s.HaltedKeys)
	}
	if oldest.Valid {
		s.Oldest = max(0, time.Duration(now.Int64-oldest.Int64)*time.Second)
	}
	return s, failed("stats", err)
}
