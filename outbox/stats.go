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
}

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
}

// Stats returns what this relay has done. Stats asks neither the database nor the broker, and is safe for concurrent use. A
// metrics library may call Stats at each collection.
func (r *Relay) Stats() RelayStats {
	s := RelayStats{Partitions: r.owned(), Sending: int(r.counters.sending.Load()), Confirmed: r.counters.confirmed.Load(), Refused: r.counters.refused.Load(),
		Blocked: r.counters.blocked.Load(), Failed: r.counters.failed.Load(), Dead: r.counters.dead.Load()}
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
