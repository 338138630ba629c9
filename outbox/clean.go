package outbox

import (
	"context"
	"database/sql"
	"math"
	"strconv"
	"time"

	"github.com/pawl-go/pawl/dialect"
)

const (
	mostPages   = 10              // of a walk
	mostRefused = 20              // messages that a walk leaves because they cannot be deleted
	cleanWait   = 3 * time.Second // of a DELETE
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
	state State
	batch int   // how many messages the next DELETE takes
	after int64 // the number after which the next second walk begins
}

func newCleaner(r *Relay, part int) *cleaner {
	c := &cleaner{Relay: r, part: part, looks: []*look{{state: Done, batch: maxBatch}}}
	if r.opts.Resend == 0 { // with completion a confirmed message stays until it is done
		c.looks = append(c.looks, &look{state: Confirmed, batch: maxBatch})
	}
	return c
}

// run cleans each minute, and at once if there is more to delete, until ctx ends.
func (c *cleaner) run(ctx context.Context) {
	for ctx.Err() == nil {
		if c.round(ctx, time.Now()); !c.more {
			rest(ctx, time.Minute)
		}
	}
}

// round walks twice for each state. OnError is told of one error a minute.
func (c *cleaner) round(ctx context.Context, now time.Time) {
	c.more, c.failure = false, nil
	for _, l := range c.looks {
		end := c.walk(ctx, l, 0)
		if end > 0 {
			end = c.walk(ctx, l, max(l.after, end))
		}
		l.after = end
	}
	if c.failure != nil && ctx.Err() == nil && c.opts.OnError != nil && now.Sub(c.told) >= time.Minute {
		c.told = now
		c.opts.OnError(failed("clean", c.failure))
	}
}

func (c *cleaner) fails(err error) {
	if c.failure == nil && !dialect.Again(err) {
		c.failure = err
	}
}

// walk deletes the old ones of some pages after a number, and returns how far the walk came, or 0 at the end. The walk ends with a page that
// has no old ones. A message that cannot be deleted is left: a row of the application may refer to it.
func (c *cleaner) walk(ctx context.Context, l *look, after int64) (end int64) {
	deleted, refused := 0, 0
	for range mostPages {
		old, last, err := c.read(ctx, l.state, after)
		if err != nil {
			c.fails(err)
			return after
		}
		for all := old; len(all) > 0; {
			n := min(l.batch, len(all))
			gone, err := c.delete(ctx, l, all[:n])
			switch deleted += gone; {
			case err != nil && n > 1 && ctx.Err() == nil:
				continue // with fewer
			case err != nil:
				refused++
				c.fails(err)
			}
			if after, all = all[n-1], all[n:]; refused == mostRefused || ctx.Err() != nil {
				return after
			}
		}
		if after = last; after == 0 || len(old) == 0 {
			return after
		}
	}
	c.more = c.more || deleted > refused
	return after
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

// delete deletes messages, and waits as long as that took, so that the database has time for others. The messages are old, and have the state, when
// the DELETE sees them.
func (c *cleaner) delete(ctx context.Context, l *look, seqs []int64) (n int, err error) {
	c.cleaning.Lock()
	began := time.Now()
	n, err = c.deleteNow(ctx, l.state, seqs)
	took := time.Since(began)
	c.cleaning.Unlock()
	l.batch = batchAfter(l.batch, len(seqs), took, err)
	rest(ctx, took)
	return n, err
}

// batchAfter is how many messages the next DELETE takes, after one of n messages.
func batchAfter(batch, n int, took time.Duration, err error) int {
	switch {
	case err != nil: // large messages take longer than a DELETE may take, and a message that cannot be deleted stops the others
		return max(1, n/4)
	case took > 250*time.Millisecond:
		return max(1, n/2)
	case took < 100*time.Millisecond:
		return min(2*batch, maxBatch)
	}
	return batch
}

func (c *cleaner) deleteNow(ctx context.Context, state State, seqs []int64) (int, error) {
	ctx, stop := context.WithTimeout(ctx, cleanWait)
	defer stop()
	t := c.table
	query, args, err := dialect.DeleteByKey(t.waiting(t.new(), aloneWait), t.messages.Name, "seq", seqs).Add(" AND state = ", strconv.Itoa(int(state)),
		" AND changed <= ", t.now(), " - ").Value(int64(c.opts.Retention / time.Second)).Build()
	if err != nil {
		return 0, err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		result, err := c.db.ExecContext(ctx, query, args...)
		if dialect.Again(err) && ctx.Err() == nil {
			rest(ctx, pause)
			continue
		}
		if err != nil {
			return 0, err
		}
		n, err := result.RowsAffected()
		return int(n), err
	}
}

// rest waits, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
