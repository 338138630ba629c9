package outbox

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pawl-go/pawl/dialect"
)

// readDue reads confirmed messages that are not done after their time, so that they are sent again. New messages are not held up: repeats
// take a quarter of the window and of its bytes, and the next look is a poll later.
func (o *owner) readDue(ctx context.Context, now time.Time) error {
	if o.opts.Resend == 0 || now.Before(o.repeats) || o.plan.repeating() {
		return nil
	}
	var without []int64
	maps.DeleteFunc(o.locked, func(_ int64, is lock) bool { return now.Sub(is.until) > 16*o.opts.Resend }) // the message is done since
	for seq, is := range o.locked {
		if is.until.After(now) {
			without = append(without, seq)
		}
	}
	bytes := max(1, min(o.plan.maxBytes/4, o.plan.maxBytes-o.plan.bytes))
	limit := o.plan.repeats.limit(o.opts.Window/4, bytes)
	began, seldom := time.Now(), max(o.opts.Poll, min(o.opts.Resend/4, o.opts.Rescan))
	page, more, err := o.table.due(ctx, o.db, o.part, limit, bytes, o.opts.Resend, without)
	if err != nil { // a question that fails late delays new messages, by a fifth at most
		o.repeats = time.Now().Add(max(seldom, 5*time.Second, 4*time.Since(began)))
		return failed("read messages that are not done", err)
	}
	o.plan.repeats.learn(page)
	o.plan.repeat(page)
	if o.repeats = now.Add(o.opts.Poll); !more {
		o.repeats = now.Add(seldom)
	}
	return nil
}

// due reads messages that were confirmed, or sent again, so long ago, without some that are locked. The wait doubles with each repeat,
// four times. The page ends when it has so many messages or bytes.
func (t *Table) due(ctx context.Context, db *sql.DB, part, limit, bytes int, resend time.Duration, without []int64) (page []Entry, more bool, err error) {
	seconds := strconv.FormatInt(int64((resend+time.Second-1)/time.Second), 10)
	s := t.entries().Add("part = ").Value(part).Add(" AND state = 2 AND changed + ", seconds,
		" * CASE repeats WHEN 0 THEN 1 WHEN 1 THEN 2 WHEN 2 THEN 4 WHEN 3 THEN 8 ELSE 16 END < ", t.now())
	if len(without) > 0 {
		slices.Sort(without)
		dialect.Among(s.Add(" AND NOT ("), "seq", without).Add(")")
	}
	return t.upTo(ctx, db, s.Add(" ORDER BY seq LIMIT ").Value(limit), limit, bytes)
}

// repeat takes confirmed messages that are to be sent again. A repeat keeps its place in its lane: the repeats of a lane
// are sent in their order, and before its pending messages. A dead message does not stop repeats, and neither does a message that was
// dead, is pending again and waits after a failure.
func (p *plan) repeat(page []Entry) {
	for _, e := range page {
		if p.known[e.seq] == nil {
			p.insert(&row{Entry: e, again: true})
		}
	}
}

// repeating reports whether the plan has messages that are to be sent again.
func (p *plan) repeating() bool {
	for _, r := range p.rows {
		if r.again {
			return true
		}
	}
	return false
}
