package outbox

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/pawl-go/pawl/dialect"
)

// look goes through the messages of a state, to delete the old ones.
type look struct {
	state State
	walks bool  // goes on a minute later where no message was old: some messages behind may be. Other looks begin again with the first message.
	after int64 // the number after which the next step begins
	more  bool  // the next step need not wait for the minute
	batch int   // how many messages the next step takes
}

// clean deletes old messages, if it is time. With completion a confirmed message stays until it is done.
func (o *owner) clean(ctx context.Context, now time.Time) {
	if o.looks == nil {
		for _, walks := range []bool{false, true} {
			o.looks = append(o.looks, look{state: Done, walks: walks, batch: maxBatch}, look{state: Confirmed, walks: walks, batch: maxBatch})
		}
	}
	begins := now.Sub(o.cleaned) >= time.Minute
	for i := range o.looks {
		l := &o.looks[i]
		if !begins && !l.more || l.state == Confirmed && o.opts.Resend > 0 || ctx.Err() != nil {
			continue
		}
		o.cleaned = now
		if err := o.step(ctx, l); !dialect.Again(err) {
			o.report(ctx, failed("clean", err))
		}
	}
}

// step takes up to a batch of messages. A DELETE of large messages may take too long, so after an error the batch is smaller. One message that
// cannot be deleted is left behind: another transaction may have locked the message, or a row of the application refers to it.
func (o *owner) step(ctx context.Context, l *look) error {
	bound := min(lockWait, o.opts.Timeout/3)
	ctx, stop := context.WithTimeout(ctx, bound)
	defer stop()
	began := time.Now()
	seqs, n, err := o.table.clean(ctx, o.db, o.part, l.state, l.after, l.batch, o.opts.Retention)
	full := len(seqs) == l.batch
	l.more = err == nil && full && n > 0
	switch {
	case err != nil && (l.batch > 1 || len(seqs) == 0): // these the next time
		l.batch = max(1, l.batch/4)
		return err
	case l.more || full && (l.walks || err != nil):
		l.after = seqs[len(seqs)-1]
	default:
		l.after = 0
	}
	if err == nil && time.Since(began) < bound/4 {
		l.batch = min(2*l.batch, maxBatch)
	}
	return err
}

// clean reads the numbers of messages of a state after a number, and deletes n of these messages, which are older than the retention.
func (t *Table) clean(ctx context.Context, db *sql.DB, part int, state State, after int64, limit int, retention time.Duration) (seqs []int64, n int64, err error) {
	is := strconv.Itoa(int(state))
	seqs, err = numbers(ctx, db, t.new().Add("SELECT seq FROM ").Table(t.messages.Name).Add(" WHERE part = ").Value(part).
		Add(" AND state = ", is, " AND seq > ").Value(after).Add(" ORDER BY seq LIMIT ").Value(limit))
	if err != nil || len(seqs) == 0 {
		return nil, 0, err
	}
	result, err := in(t.waiting(t.new(), aloneWait).Add("DELETE FROM ").Table(t.messages.Name).Add(" WHERE state = ", is,
		" AND changed <= ", t.now(), " - ").Value(int64(retention/time.Second)).Add(" AND seq IN "), seqs).Exec(ctx, db)
	if err == nil {
		n, err = result.RowsAffected()
	}
	return seqs, n, err
}

// report tells an error that ends no run.
func (o *owner) report(ctx context.Context, err error) {
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) && o.opts.OnError != nil {
		o.opts.OnError(err)
	}
}
