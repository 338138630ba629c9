package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox/internal/batches"
)

const (
	mostPages = 10              // of a walk
	cleanWait = 3 * time.Second // of a DELETE
)

// cleaner deletes the old messages of a partition, beside its owner, so that a slow DELETE delays no sending. No token guards the DELETE: any
// relay may delete old messages.
type cleaner struct {
	*Relay
	part    int
	looks   []*look
	told    time.Time // when OnError was told
	more    bool      // the next round is at once
	failure error     // the first of the round
}

// look goes through the messages of a state. Those with the smallest numbers are mostly the oldest. A message behind young ones may be
// old all the same, because young ones were sent late. So a second walk goes on behind the first, by a page or more each minute.
type look struct {
	state   State
	deleter batches.Deleter
	after   int64 // the number after which the next second walk begins
}

func newCleaner(r *Relay, part int) *cleaner {
	states := []State{Done, Confirmed}
	if r.opts.Resend > 0 { // with completion a confirmed message stays until it is done
		states = states[:1]
	}
	c := &cleaner{Relay: r, part: part}
	for _, state := range states {
		c.looks = append(c.looks, &look{state: state, deleter: batches.Deleter{Bound: min(cleanWait, r.opts.Timeout/3), Turn: &r.cleaning}})
	}
	return c
}

// run cleans each minute, and at once if there is more to delete, until ctx ends.
func (c *cleaner) run(ctx context.Context) {
	for ctx.Err() == nil {
		if c.round(ctx, time.Now()); !c.more {
			batches.Rest(ctx, time.Minute)
		}
	}
}

// round walks twice for each state. OnError is told of one error of each partition in a minute.
func (c *cleaner) round(ctx context.Context, now time.Time) {
	c.more, c.failure = false, nil
	for _, l := range c.looks {
		end, well := c.walk(ctx, l, 0)
		if well && end > 0 {
			end, well = c.walk(ctx, l, max(l.after, end))
		}
		if well {
			l.after = end
		}
	}
	if c.failure != nil && ctx.Err() == nil && c.opts.OnError != nil && now.Sub(c.told) >= time.Minute {
		c.told = now
		c.opts.OnError(failed("clean", c.failure))
	}
}

func (c *cleaner) fails(err error) {
	if c.failure == nil && (errors.Is(err, errLocked) || !dialect.Again(err)) {
		c.failure = err
	}
}

// walk deletes the old ones of some pages after a number, and returns how far the walk came, or 0 at the end. The walk ends with a page that
// has no old ones. A message that cannot be deleted is left: a row of the application may refer to it.
func (c *cleaner) walk(ctx context.Context, l *look, after int64) (end int64, well bool) {
	deleted, refused := 0, 0
	for range mostPages {
		old, last, err := c.read(ctx, l.state, after)
		if err != nil {
			c.fails(err)
			return 0, false
		}
		r := batches.Delete(ctx, &l.deleter, old, func(ctx context.Context, seqs []int64) (int, error) { return c.delete(ctx, l.state, seqs) })
		if r.Err != nil {
			c.fails(r.Err)
		}
		deleted, refused = deleted+r.Deleted, refused+r.Refused
		switch {
		case ctx.Err() != nil:
			return 0, false
		case r.Tried < len(old): // too many are refused
			return old[r.Tried-1], true
		case last == 0 || len(old) == 0:
			return last, true
		}
		after = last
	}
	c.more = c.more || deleted > refused
	return after, true
}

// read reads up to 1,000 messages after a number, and returns the old ones. Last is the number of the last message, or 0 if none is behind.
func (c *cleaner) read(ctx context.Context, state State, after int64) (old []int64, last int64, err error) {
	c.cleaning.Lock()
	defer c.cleaning.Unlock()
	ctx, stop := context.WithTimeout(ctx, c.opts.Timeout)
	defer stop()
	t := c.table
	s := t.new().Add("SELECT seq, CASE WHEN changed <= ", t.now(), " - ").Value(int64(c.opts.Retention / time.Second)).
		Add(" THEN 1 ELSE 0 END FROM ").Table(t.messages.Name)
	order := t.ofState(s, c.part, state, after, math.MaxInt64)
	n := 0
	_, err = collect(ctx, c.db, t.number(s.Add(order, " LIMIT "), maxBatch), func(rows *sql.Rows, is *bool) error {
		if err := rows.Scan(&last, is); err != nil {
			return err
		}
		if n++; *is {
			old = append(old, last)
		}
		return nil
	})
	if n < maxBatch {
		last = 0
	}
	return old, last, err
}

// delete deletes messages that are old and have the state when the DELETE sees them.
func (c *cleaner) delete(ctx context.Context, state State, seqs []int64) (int, error) {
	t := c.table
	query, args, err := dialect.DeleteByKey(t.waiting(t.new(), aloneWait), t.messages.Name, "seq", seqs).Add(" AND state = ", strconv.Itoa(int(state)),
		" AND changed <= ", t.now(), " - ").Value(int64(c.opts.Retention / time.Second)).Build()
	if err != nil {
		return 0, err
	}
	result, waited, err := t.repeat(ctx, c.db, query, args)
	switch {
	case waited || err != nil && ctx.Err() != nil: // SQLite locks the file and no rows
		return 0, fmt.Errorf("message with the number %d: %w, or a DELETE takes too long: %w", seqs[0], errLocked, err)
	case err != nil:
		return 0, fmt.Errorf("message with the number %d: %w", seqs[0], err)
	}
	n, err := result.RowsAffected()
	return int(n), err
}
