package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/outbox/internal/reasons"
)

// The reasons why a message was not marked.
var (
	errChanged = errors.New("a message has another state than its owner has read")
	errLocked  = errors.New("another transaction has locked the message")
)

// How long a statement waits for locks of other transactions. The transaction of a completion may be in doubt, and then it keeps
// its locks for long. So only the messages of that transaction wait.
const (
	lockWait  = 3 * time.Second // of a batch
	aloneWait = time.Second     // of a single message
)

// mayRelay returns an error if the user lacks a right that a relay needs. The statements change nothing. A relay that may
// not mark a message would send that message again and again.
func (t *Table) mayRelay(ctx context.Context, db *sql.DB) error {
	for _, may := range []struct{ doing, query, table, rest string }{
		{"read", "SELECT COUNT(*) FROM ", t.messages.Name, ""},
		{"change", "UPDATE ", t.messages.Name, " SET state = state, attempt = attempt, changed = changed, reason = reason, repeats = repeats"},
		{"delete from", "DELETE FROM ", t.messages.Name, ""},
		{"change", "UPDATE ", t.parts.Name, " SET token = token"},
	} {
		if _, err := t.new().Add(may.query).Table(may.table).Add(may.rest, " WHERE 1 = 0").Exec(ctx, db); err != nil {
			return fmt.Errorf("%s table %s: %w", may.doing, may.table, err)
		}
	}
	return nil
}

// takeOver makes the partition's row refuse all earlier owners.
func (o *owner) takeOver(ctx context.Context) error {
	err := o.table.checkFormat(ctx, o.db)
	if err == nil {
		_, err = o.table.new().Add("UPDATE ").Table(o.table.parts.Name).Add(" SET token = ").Value(int64(o.token)).Add(" WHERE part = ").Value(o.part).
			Add(" AND token < ").Value(int64(o.token)).Exec(ctx, o.db)
	}
	if err == nil {
		err = o.mine(ctx)
	}
	return failed("take over a partition", err)
}

// mine returns an error unless the row of the partition has the token of this owner. The table has to be that of the owner as well.
func (o *owner) mine(ctx context.Context) error {
	var is, identity int64
	parts := o.table.parts.Name
	err := o.table.new().Add("SELECT token, COALESCE((SELECT beat FROM ").Table(parts).Add(" WHERE part = 0), 0) FROM ").Table(parts).
		Add(" WHERE part = ").Value(o.part).Scan(ctx, o.db, &is, &identity)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: table %s has no row %d", pawl.ErrMismatch, parts, o.part)
	}
	if err == nil && identity != o.identity {
		err = fmt.Errorf("%w: table %s", errReplaced, parts)
	}
	if err == nil && fence.Token(is) != o.token {
		err = fmt.Errorf("%w: partition %d has token %d, and this owner has %d", fence.ErrStale, o.part, is, o.token)
	}
	return err
}

// write marks messages, and notes in the batch which are locked. Each statement is a transaction of its own, and refuses a stale
// owner. So an owner that is frozen between two statements keeps no lock that its successor needs.
func (o *owner) write(ctx context.Context, batch []result) error {
	var confirmed, repeated, postponed, refused []*result
	var unknown []int64
	for i, r := range batch {
		switch {
		case r.counts:
			refused = append(refused, &batch[i])
		case r.err != nil && r.row.again: // goes behind the others, so that it does not stand in their way
			postponed = append(postponed, &batch[i])
		case r.err != nil:
			unknown = append(unknown, r.row.seq)
		case r.row.again:
			repeated = append(repeated, &batch[i])
		default:
			confirmed = append(confirmed, &batch[i])
		}
	}
	for _, visit := range []func(context.Context) error{ // each may wait for locks, so each has its own time
		func(ctx context.Context) error { return o.mark(ctx, confirmed, "state = 2", Pending) },
		func(ctx context.Context) error { return o.mark(ctx, repeated, "repeats = repeats + 1", Confirmed) },
		func(ctx context.Context) error { return o.mark(ctx, postponed, "repeats = repeats", Confirmed) },
		func(ctx context.Context) error { return o.each(ctx, refused, 0, o.fail) },
		func(ctx context.Context) error { return o.completed(ctx, batch, unknown) },
	} {
		if err := o.bounded(ctx, visit); err != nil {
			return err
		}
	}
	return nil
}

// completed finds the messages that are done although their sendings failed in a way that does not count.
func (o *owner) completed(ctx context.Context, batch []result, unknown []int64) error {
	if len(unknown) == 0 {
		return nil
	}
	s := o.table.new().Add("SELECT seq FROM ").Table(o.table.messages.Name).Add(" WHERE state = 3 AND ")
	done, err := numbers(ctx, o.db, dialect.Among(s, "seq", unknown))
	for i, r := range batch {
		batch[i].done = r.done || slices.Contains(done, r.row.seq)
	}
	return err
}

// mark changes messages of a state. A message may be done since: a consumer may be faster than the confirm. If one of the messages is
// locked, each is marked alone.
func (o *owner) mark(ctx context.Context, batch []*result, set string, is State) error {
	var all, alone []*result
	for _, r := range batch {
		if _, locked := o.locked[r.row.seq]; locked {
			alone = append(alone, r)
		} else {
			all = append(all, r)
		}
	}
	began := time.Now()
	err := o.markAll(ctx, all, set, is, lockWait)
	var waited time.Duration
	switch {
	case errors.Is(err, errLocked):
		alone, waited = batch, time.Since(began)
	case err != nil:
		return err
	}
	return o.each(ctx, alone, waited, func(ctx context.Context, r *result) error {
		return o.markAll(ctx, []*result{r}, set, is, aloneWait)
	})
}

// each changes messages one by one, and notes which are locked. A transaction may have locked so many that the time is over before each
// was tried. Only the time that was spent on locks counts. Messages that were locked less often come first, and of these the ones that were not tried.
func (o *owner) each(ctx context.Context, batch []*result, waited time.Duration, change func(context.Context, *result) error) error {
	slices.SortFunc(batch, func(a, b *result) int {
		x, y := o.locked[a.row.seq], o.locked[b.row.seq]
		return cmp.Or(cmp.Compare(x.wait, y.wait), y.until.Compare(x.until))
	})
	for i, r := range batch {
		r.locked = i > 0 && waited > o.opts.Timeout/4
		if !r.locked {
			began := time.Now()
			err := change(ctx, r)
			if r.locked = errors.Is(err, errLocked); r.locked {
				waited += time.Since(began)
			} else if err != nil {
				return err
			}
		}
		if r.locked {
			o.locked[r.row.seq] = o.locked[r.row.seq].again(o.opts.Resend)
		} else {
			delete(o.locked, r.row.seq)
		}
	}
	return nil
}

// lock says until when a message that another transaction has locked is not sent again.
type lock struct {
	until time.Time
	wait  time.Duration
}

// again doubles the wait, four times. So some messages that stay locked do not stand in the way of others.
func (l lock) again(resend time.Duration) lock {
	wait := min(max(2*l.wait, resend), 16*resend)
	return lock{time.Now().Add(wait), wait}
}

func (o *owner) markAll(ctx context.Context, batch []*result, set string, is State, wait time.Duration) error {
	if len(batch) == 0 {
		return nil
	}
	var seqs []int64
	var ids []string
	for _, r := range batch {
		seqs, ids = append(seqs, r.row.seq), append(ids, r.row.ID)
	}
	// After a failover that has lost commits, a number may be that of another message.
	s := o.table.update(o.guarded(wait), "seq").Add(set, ", changed = ", o.table.now(), " WHERE state = ", strconv.Itoa(int(is)), " AND ")
	_, err := o.exec(ctx, seqs, dialect.Among(dialect.Among(s, "seq", seqs).Add(" AND "), "id", ids), wait)
	return err
}

// fail counts an attempt of a message, or marks the message as dead. If the message is done, fail notes that, and changes nothing.
func (o *owner) fail(ctx context.Context, r *result) error {
	return reasons.Write(r.err.Error(), func(reason string) error {
		s := o.table.update(o.guarded(aloneWait), "seq").Add("reason = ").Value(reason)
		switch {
		case r.row.again: // a failed repeat is a repeat, so that it does not stand in the way of others
			s.Add(", repeats = repeats + 1, changed = ", o.table.now(), " WHERE state = 2")
		case o.lastTry(*r):
			s.Add(", attempt = attempt + 1, state = 4, changed = ", o.table.now(), " WHERE state = 0")
		default:
			s.Add(", attempt = attempt + 1 WHERE state = 0")
		}
		all, err := o.exec(ctx, []int64{r.row.seq}, s.Add(" AND seq = ").Value(r.row.seq).Add(" AND id = ").Value(r.row.ID).Add(" AND attempt = ").Value(r.row.Attempt), aloneWait)
		r.done = err == nil && !all
		return err
	})
}

// guarded begins an UPDATE of messages. On PostgreSQL a SELECT locks the row of the partition. An UPDATE would
// leave a version of the row, which PostgreSQL cannot clean while an old transaction is open.
func (o *owner) guarded(wait time.Duration) *dialect.Statement {
	s := o.table.new()
	if o.table.dialect == dialect.PostgreSQL {
		o.row(s.Add("WITH mine AS (")).Add(") ")
	}
	return o.table.waiting(s, wait)
}

// waiting bounds how long a statement of MariaDB waits for locks. MariaDB goes on with a statement whose client has gone, and
// keeps the locks of that statement. MySQL does so too, and reads the bound as a comment.
func (t *Table) waiting(s *dialect.Statement, wait time.Duration) *dialect.Statement {
	if t.dialect == dialect.MySQL {
		s.Add("/*M! SET STATEMENT innodb_lock_wait_timeout = ", strconv.Itoa(int(wait/time.Second)), " FOR */ ")
	}
	return s
}

// row appends the query of the partition's row, which a later owner has changed.
func (o *owner) row(s *dialect.Statement) *dialect.Statement {
	s.Add("SELECT token FROM ").Table(o.table.parts.Name).Add(" WHERE part = ")
	o.table.number(o.table.number(s, int64(o.part)).Add(" AND token = "), int64(o.token))
	if o.table.dialect != dialect.SQLite { // where a writer has the whole file
		s.Add(" FOR UPDATE")
	}
	return s
}

// exec runs an UPDATE of these messages, unless a later owner was there. All is false if some are done, or cleaned, since. The
// error matches errLocked if another transaction has locked some of them for longer than wait.
func (o *owner) exec(ctx context.Context, seqs []int64, s *dialect.Statement, wait time.Duration) (all bool, err error) {
	s.Add(" AND EXISTS (")
	if o.table.dialect == dialect.PostgreSQL {
		s.Add("SELECT 1 FROM mine")
	} else {
		o.row(s)
	}
	query, args, err := s.Add(")").Build()
	if err != nil {
		return false, err
	}
	bounded, stop := o.table.patient(ctx, wait, o.opts.Timeout)
	defer stop()
	result, waited, err := o.table.repeat(bounded, o.db, query, args)
	if waited && ctx.Err() == nil {
		if err := o.mine(ctx); err != nil { // the database is away
			return false, err
		}
		return false, fmt.Errorf("%w: %w", errLocked, err)
	}
	return o.changed(ctx, seqs, result, err)
}

// repeat runs a statement again while other transactions are in the way, unless the statement has waited for a lock.
func (t *Table) repeat(bounded context.Context, db *sql.DB, query string, args []any) (result sql.Result, waited bool, err error) {
	err = dialect.Repeat(bounded, func(err error) bool { return dialect.Again(err) && !t.waited(bounded, err) }, func() (err error) {
		result, err = db.ExecContext(bounded, query, args...)
		return err
	})
	return result, err != nil && t.waited(bounded, err), err
}

// patient bounds a statement that may wait for a lock. The bound is longer where the database knows the wait, too. A third of a visit's time
// lets two such statements end within the visit. Less would take a slow database for a lock. SQLite locks the file and no rows.
func (t *Table) patient(ctx context.Context, wait, timeout time.Duration) (context.Context, context.CancelFunc) {
	switch t.dialect {
	case dialect.PostgreSQL:
		return context.WithTimeout(ctx, min(wait, timeout/3))
	case dialect.MySQL:
		return context.WithTimeout(ctx, min(2*wait, timeout/3))
	}
	return context.WithCancel(ctx)
}

// waited reports whether a statement that was bounded by patient has failed because it waited for a lock. The server may have a shorter
// bound for each statement. Such an error of a slow statement is taken for a lock, too: then each message is marked alone, which is faster.
func (t *Table) waited(bounded context.Context, err error) bool {
	return t.dialect != dialect.SQLite && (bounded.Err() != nil || dialect.LockTimeout(err) || dialect.OutOfTime(err))
}

// changed reports whether a statement has changed these messages. The others are done or cleaned since, or there is an error.
func (o *owner) changed(ctx context.Context, seqs []int64, result sql.Result, err error) (all bool, _ error) {
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == int64(len(seqs)) {
		return err == nil, err
	}
	if err := o.mine(ctx); err != nil {
		return false, err
	}
	var open int
	s := o.table.new().Add("SELECT COUNT(*) FROM ").Table(o.table.messages.Name).Add(" WHERE state IN (0, 4) AND ")
	err = dialect.Among(s, "seq", seqs).Scan(ctx, o.db, &open)
	if err == nil && open > 0 {
		err = fmt.Errorf("%w: %d of %d", errChanged, open, len(seqs))
	}
	return false, err
}
