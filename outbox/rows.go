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

// confirm marks messages as confirmed. Each has to be pending.
func (t *Table) confirm(ctx context.Context, tx *sql.Tx, seqs []int64) error {
	s := t.new().Add("UPDATE ").Table(t.messages.Name).Add(" SET state = 2, changed = ", t.now(), " WHERE state = 0 AND seq IN (")
	for i, seq := range seqs {
		s.Add([]string{"", ", "}[min(i, 1)]).Value(seq)
	}
	result, err := s.Add(")").Exec(ctx, tx)
	return exactly(int64(len(seqs)), result, err, errChanged)
}

// fail counts an attempt of a message, or marks the message as dead.
func (t *Table) fail(ctx context.Context, tx *sql.Tx, r result, dead bool) error {
	reason := strings.ToValidUTF8(strings.ReplaceAll(r.err.Error(), "\x00", " "), " ")
	if len(reason) > 500 {
		reason = strings.ToValidUTF8(reason[:500], "")
	}
	s := t.new().Add("UPDATE ").Table(t.messages.Name).Add(" SET attempt = attempt + 1, reason = ").Value(reason)
	if dead {
		s.Add(", state = 4, changed = ", t.now())
	}
	result, err := s.Add(" WHERE state = 0 AND seq = ").Value(r.row.seq).Add(" AND attempt = ").Value(r.row.Attempt).Exec(ctx, tx)
	return exactly(1, result, err, errChanged)
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

// clean deletes up to 1,000 confirmed messages that are older than the retention, and returns how many.
func (t *Table) clean(ctx context.Context, db *sql.DB, part int, retention time.Duration) (n int64, err error) {
	query, args, err := t.new().Add("SELECT seq FROM ").Table(t.messages.Name).Add(" WHERE part = ").Value(part).
		Add(" AND state = 2 ORDER BY seq LIMIT ").Value(maxBatch).Build()
	if err != nil {
		return 0, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	s := t.new().Add("DELETE FROM ").Table(t.messages.Name).Add(" WHERE state = 2 AND changed <= ", t.now(), " - ").Value(int64(retention / time.Second)).Add(" AND seq IN (0")
	for rows.Next() {
		var seq int64
		if err := rows.Scan(&seq); err != nil {
			return 0, err
		}
		s.Add(", ").Value(seq)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, err
	}
	result, err := s.Add(")").Exec(ctx, db)
	if dialect.Again(err) {
		return 0, nil // the next time
	}
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
