package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawl-go/pawl/dialect"
)

// errChanged says that a message is no longer as its owner knows it.
var errChanged = errors.New("a message has another state than its owner has read")

// page reads pending messages of a partition after a number, without those of some keys and of halted keys.
func (t *Table) page(ctx context.Context, db *sql.DB, part int, after int64, limit int, without []string, continues bool) ([]Entry, error) {
	s := t.entries().Add("part = ").Value(part).Add(" AND state = 0 AND seq > ").Value(after)
	if !continues {
		s.Add(" AND ").Name("key").Add(" NOT IN (SELECT ").Name("key").Add(" FROM ").Table(t.messages.Name).
			Add(" WHERE part = ").Value(part).Add(" AND state = 4 AND ").Name("key").Add(" <> '')")
	}
	for _, key := range without {
		s.Add(" AND ").Name("key").Add(" <> ").Value(key)
	}
	return t.list(ctx, db, s.Add(" ORDER BY seq LIMIT ").Value(limit))
}

// deadLanes reads the keys of a partition that have dead messages.
func (t *Table) deadLanes(ctx context.Context, db *sql.DB, part int, continues bool) (lanes []string, err error) {
	if continues {
		return nil, nil
	}
	query, args, err := t.new().Add("SELECT DISTINCT ").Name("key").Add(" FROM ").Table(t.messages.Name).
		Add(" WHERE part = ").Value(part).Add(" AND state = 4 AND ").Name("key").Add(" <> ''").Build()
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var lane string
		if err := rows.Scan(&lane); err != nil {
			return nil, err
		}
		lanes = append(lanes, lane)
	}
	return lanes, rows.Err()
}

// confirm marks messages as confirmed. Each has to be pending, or done: a consumer may be faster than the confirm.
func (t *Table) confirm(ctx context.Context, tx *sql.Tx, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	result, err := in(t.new().Add("UPDATE ").Table(t.messages.Name).Add(" SET state = 2, changed = ", t.now(), " WHERE state = 0 AND seq IN "), seqs).Exec(ctx, tx)
	return t.unlessSettled(ctx, tx, seqs, result, err)
}

// unlessSettled returns nil if a statement has changed all messages, or if the others are done or cleaned since.
func (t *Table) unlessSettled(ctx context.Context, tx *sql.Tx, seqs []int64, result sql.Result, err error) error {
	if err = exactly(int64(len(seqs)), result, err, errChanged); !errors.Is(err, errChanged) {
		return err
	}
	var open int
	err = in(t.new().Add("SELECT COUNT(*) FROM ").Table(t.messages.Name).Add(" WHERE state IN (0, 4) AND seq IN "), seqs).Scan(ctx, tx, &open)
	if err == nil && open > 0 {
		err = fmt.Errorf("%w: %d of %d", errChanged, open, len(seqs))
	}
	return err
}

// in appends values in parentheses.
func in[T any](s *dialect.Statement, values []T) *dialect.Statement {
	for i, v := range values {
		s.Add([]string{"(", ", "}[min(i, 1)]).Value(v)
	}
	return s.Add(")")
}

// fail counts an attempt of a message, or marks the message as dead. Done says that the message is done: then
// nothing was changed.
func (t *Table) fail(ctx context.Context, tx *sql.Tx, r result, dead bool) (done bool, err error) {
	reason := strings.ToValidUTF8(strings.ReplaceAll(r.err.Error(), "\x00", " "), " ")
	if len(reason) > 500 {
		reason = strings.ToValidUTF8(reason[:500], "")
	}
	s := t.new().Add("UPDATE ").Table(t.messages.Name).Add(" SET reason = ").Value(reason)
	switch {
	case r.row.again: // a failed repeat is a repeat, so that it does not stand in the way of others
		s.Add(", repeats = repeats + 1, changed = ", t.now(), " WHERE state = 2")
	case dead:
		s.Add(", attempt = attempt + 1, state = 4, changed = ", t.now(), " WHERE state = 0")
	default:
		s.Add(", attempt = attempt + 1 WHERE state = 0")
	}
	result, err := s.Add(" AND seq = ").Value(r.row.seq).Add(" AND attempt = ").Value(r.row.Attempt).Exec(ctx, tx)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err != nil || n == 1 {
		return false, err
	}
	return true, t.unlessSettled(ctx, tx, []int64{r.row.seq}, result, nil)
}

// exactly returns an error unless a statement has changed so many rows.
func exactly(want int64, result sql.Result, err, other error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil {
		return err
	} else if n != want {
		return fmt.Errorf("%w: %d rows of %d", other, n, want)
	}
	return nil
}

// clean deletes up to 1,000 messages of a state that are older than the retention, and returns how many.
func (t *Table) clean(ctx context.Context, db *sql.DB, part int, state State, retention time.Duration) (n int64, err error) {
	query, args, err := t.new().Add("SELECT seq FROM ").Table(t.messages.Name).Add(" WHERE part = ").Value(part).
		Add(" AND state = ").Value(int(state)).Add(" ORDER BY seq LIMIT ").Value(maxBatch).Build()
	if err != nil {
		return 0, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	seqs := []int64{0}
	for rows.Next() {
		var seq int64
		if err := rows.Scan(&seq); err != nil {
			return 0, err
		}
		seqs = append(seqs, seq)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, err
	}
	result, err := in(t.new().Add("DELETE FROM ").Table(t.messages.Name).Add(" WHERE state = ").Value(int(state)).
		Add(" AND changed <= ", t.now(), " - ").Value(int64(retention/time.Second)).Add(" AND seq IN "), seqs).Exec(ctx, db)
	if dialect.Again(err) {
		return 0, nil // the next time
	}
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
