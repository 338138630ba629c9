package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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
	var confirmed []int64
	for _, r := range batch {
		if r.err == nil {
			confirmed = append(confirmed, r.row.seq)
		}
	}
	if err := o.confirm(ctx, confirmed); err != nil {
		return err
	}
	for _, r := range batch {
		if r.err == nil || !r.counts {
			continue
		}
		if err := o.fail(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// confirm marks messages as confirmed. Each has to be pending.
func (o *owner) confirm(ctx context.Context, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	var list strings.Builder
	for i, seq := range seqs {
		list.WriteString([]string{"", ","}[min(i, 1)])
		list.WriteString(strconv.FormatInt(seq, 10))
	}
	s := o.guarded().Add("UPDATE ").Table(o.table.messages.Name).Add(" SET state = 2, changed = ", o.table.now(), " WHERE state = 0 AND seq ")
	if o.table.dialect == dialect.PostgreSQL { // one text of the statement, so that the database can keep it prepared
		s.Add("= ANY(").Value("{" + list.String() + "}").Add("::bigint[])")
	} else {
		s.Add("IN (", list.String(), ")")
	}
	return o.exec(ctx, len(seqs), s)
}

// fail counts an attempt of a message, or marks the message as dead.
func (o *owner) fail(ctx context.Context, r result) error {
	reason := strings.ToValidUTF8(strings.ReplaceAll(r.err.Error(), "\x00", " "), " ")
	if len(reason) > 500 {
		reason = strings.ToValidUTF8(reason[:500], "")
	}
	s := o.guarded().Add("UPDATE ").Table(o.table.messages.Name).Add(" SET attempt = attempt + 1, reason = ").Value(reason)
	if o.lastTry(r) {
		s.Add(", state = 4, changed = ", o.table.now())
	}
	return o.exec(ctx, 1, s.Add(" WHERE state = 0 AND seq = ").Value(r.row.seq).Add(" AND attempt = ").Value(r.row.Attempt))
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

// exec runs an UPDATE of messages that has to change n rows, unless a later owner was there.
func (o *owner) exec(ctx context.Context, n int, s *dialect.Statement) error {
	s.Add(" AND EXISTS (")
	if o.table.dialect == dialect.PostgreSQL {
		s.Add("SELECT 1 FROM mine")
	} else {
		o.row(s)
	}
	query, args, err := s.Add(")").Build()
	if err != nil {
		return err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		result, err := o.db.ExecContext(ctx, query, args...)
		if !dialect.Again(err) {
			return o.changed(ctx, int64(n), result, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// changed returns an error unless a statement has changed n rows.
func (o *owner) changed(ctx context.Context, n int64, result sql.Result, err error) error {
	if err != nil {
		return err
	}
	is, err := result.RowsAffected()
	if err != nil || is == n {
		return err
	}
	if err := o.mine(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: %d rows of %d", errChanged, is, n)
}
