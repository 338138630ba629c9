package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence"
)

// errChanged says that a message is no longer as its owner knows it.
var errChanged = errors.New("a message has another state than its owner has read")

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

// mine returns an error unless the row of the partition has the token of this owner.
func (o *owner) mine(ctx context.Context) error {
	var is int64
	err := o.table.new().Add("SELECT token FROM ").Table(o.table.parts.Name).Add(" WHERE part = ").Value(o.part).Scan(ctx, o.db, &is)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: table %s has no row %d", pawl.ErrMismatch, o.table.parts.Name, o.part)
	}
	if err == nil && fence.Token(is) != o.token {
		err = fmt.Errorf("%w: partition %d has token %d, and this owner has %d", fence.ErrStale, o.part, is, o.token)
	}
	return err
}

// write marks messages. Each statement is a transaction of its own, and refuses a stale owner. So an owner that is
// frozen between two statements keeps no lock that its successor needs.
func (o *owner) write(ctx context.Context, batch []result) error {
	var confirmed, repeated []int64
	for _, r := range batch {
		switch {
		case r.err != nil:
		case r.row.again:
			repeated = append(repeated, r.row.seq)
		default:
			confirmed = append(confirmed, r.row.seq)
		}
	}
	if err := o.mark(ctx, confirmed, "state = 2", Pending); err != nil {
		return err
	}
	if err := o.mark(ctx, repeated, "repeats = repeats + 1", Confirmed); err != nil {
		return err
	}
	var unknown []int64
	for i, r := range batch {
		switch {
		case r.err == nil:
		case r.counts:
			all, err := o.fail(ctx, r)
			if err != nil {
				return err
			}
			batch[i].done = !all
		default:
			unknown = append(unknown, r.row.seq)
		}
	}
	return o.completed(ctx, batch, unknown)
}

// completed finds the messages that are done although their sendings failed in a way that does not count.
func (o *owner) completed(ctx context.Context, batch []result, unknown []int64) error {
	if len(unknown) == 0 {
		return nil
	}
	s := o.table.new().Add("SELECT seq FROM ").Table(o.table.messages.Name).Add(" WHERE state = 3 AND ")
	query, args, err := o.among(s, unknown).Build()
	if err != nil {
		return err
	}
	done, err := numbers(ctx, o.db, query, args)
	for i, r := range batch {
		batch[i].done = r.done || slices.Contains(done, r.row.seq)
	}
	return err
}

// mark changes messages of a state. A message may be done since: a consumer may be faster than the confirm.
func (o *owner) mark(ctx context.Context, seqs []int64, set string, is State) error {
	if len(seqs) == 0 {
		return nil
	}
	s := o.guarded().Add("UPDATE ").Table(o.table.messages.Name).Add(" SET ", set, ", changed = ", o.table.now(), " WHERE state = ", strconv.Itoa(int(is)), " AND ")
	_, err := o.exec(ctx, seqs, o.among(s, seqs))
	return err
}

// among appends the condition that a message has one of these numbers.
func (o *owner) among(s *dialect.Statement, seqs []int64) *dialect.Statement {
	var list strings.Builder
	for i, seq := range seqs {
		list.WriteString([]string{"", ","}[min(i, 1)])
		list.WriteString(strconv.FormatInt(seq, 10))
	}
	if o.table.dialect == dialect.PostgreSQL { // one text of the statement, so that the database can keep it prepared
		return s.Add("seq = ANY(").Value("{" + list.String() + "}").Add("::bigint[])")
	}
	return s.Add("seq IN (", list.String(), ")")
}

// fail counts an attempt of a message, or marks the message as dead. All is false if the message is done: then nothing was
// changed.
func (o *owner) fail(ctx context.Context, r result) (all bool, err error) {
	reason := strings.ToValidUTF8(strings.ReplaceAll(r.err.Error(), "\x00", " "), " ")
	if len(reason) > 500 {
		reason = strings.ToValidUTF8(reason[:500], "")
	}
	s := o.guarded().Add("UPDATE ").Table(o.table.messages.Name).Add(" SET reason = ").Value(reason)
	switch {
	case r.row.again: // a failed repeat is a repeat, so that it does not stand in the way of others
		s.Add(", repeats = repeats + 1, changed = ", o.table.now(), " WHERE state = 2")
	case o.lastTry(r):
		s.Add(", attempt = attempt + 1, state = 4, changed = ", o.table.now(), " WHERE state = 0")
	default:
		s.Add(", attempt = attempt + 1 WHERE state = 0")
	}
	return o.exec(ctx, []int64{r.row.seq}, s.Add(" AND seq = ").Value(r.row.seq).Add(" AND attempt = ").Value(r.row.Attempt))
}

// guarded begins an UPDATE of messages on PostgreSQL. The row of the partition is locked by a SELECT there. An UPDATE would
// leave a version of the row, which PostgreSQL cannot clean while an old transaction is open.
func (o *owner) guarded() *dialect.Statement {
	s := o.table.new()
	if o.table.dialect == dialect.PostgreSQL {
		o.row(s.Add("WITH mine AS (")).Add(") ")
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

// exec runs an UPDATE of these messages, unless a later owner was there. All is false if some are done, or cleaned, since.
func (o *owner) exec(ctx context.Context, seqs []int64, s *dialect.Statement) (all bool, err error) {
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
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		result, err := o.db.ExecContext(ctx, query, args...)
		if !dialect.Again(err) {
			return o.changed(ctx, seqs, result, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false, err
		}
	}
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
	err = o.among(s, seqs).Scan(ctx, o.db, &open)
	if err == nil && open > 0 {
		err = fmt.Errorf("%w: %d of %d", errChanged, open, len(seqs))
	}
	return false, err
}
