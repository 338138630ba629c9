package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// Complete marks messages as done: their consumer has said that they took effect. Call Complete where the consumer's reply
// arrives, such as a reply message or an HTTP call. A repeated completion is success, so a consumer
// completes also the repeats that it absorbs. See RelayOptions.Resend.
//
// The word of the consumer is the last word. A message may be done before the relay has marked its confirm, and also a
// dead message becomes done. The later messages of its key are sent then, after RelayOptions.Rescan at the latest.
//
// Complete takes 1 to 1,000 IDs. If the table lacks some of them, Complete marks the others and returns an error
// that matches [ErrUnknown] and names the first that is missing. The database is a *sql.DB or a transaction. With a *sql.DB Complete
// repeats after a deadlock.
//
// A transaction that stays open or in doubt keeps its messages locked. The relay leaves these for later, and goes on with all other
// keys. On MySQL that needs a setting, see the package. Until then the later messages of a pending message's key wait. On MySQL nobody can
// enqueue meanwhile an ID that sorts just before a locked one; IDs of [NewID] do not.
func (t *Table) Complete(ctx context.Context, db dialect.DB, ids ...string) error {
	if len(ids) < 1 || len(ids) > maxBatch {
		return fmt.Errorf("outbox: %w: %d IDs: 1 to %d are allowed", pawl.ErrInvalid, len(ids), maxBatch)
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids))) // in one order, so that two calls do not deadlock
	_, alone := db.(*sql.DB)
	var n int64
	err := dialect.Repeat(ctx, func(err error) bool { return alone && dialect.Again(err) }, func() (err error) {
		n, err = t.complete(ctx, db, ids)
		return err
	})
	if err == nil && n != int64(len(ids)) {
		err = t.missing(ctx, db, ids)
	}
	return failed("complete", err)
}

func (t *Table) complete(ctx context.Context, db dialect.DB, ids []string) (int64, error) {
	if ids = possible(ids); len(ids) == 0 {
		return 0, nil
	}
	result, err := dialect.Among(t.update(t.new(), "id").Add("state = 3, changed = ", t.now(), " WHERE state <> 3 AND "), "id", ids).Exec(ctx, db)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// impossible reports whether no message can have an ID. Some databases refuse a statement with such a text.
func impossible(id string) bool { return !plain(id) || len(id) > maxName }

func possible(ids []string) []string { return slices.DeleteFunc(slices.Clone(ids), impossible) }

// missing returns an error that names the first ID that the table lacks.
func (t *Table) missing(ctx context.Context, db dialect.DB, ids []string) error {
	known, err := t.known(ctx, db, ids)
	for _, id := range ids {
		if err == nil && !slices.Contains(known, id) {
			err = fmt.Errorf("%w: %.80q", ErrUnknown, id)
		}
	}
	return err
}

// Known returns which of these IDs the table has, up to 1,000, in any order. A message that was cleaned after the retention is not known.
func (t *Table) Known(ctx context.Context, db dialect.DB, ids ...string) ([]string, error) {
	if len(ids) > maxBatch {
		return nil, fmt.Errorf("outbox: %w: %d IDs: up to %d are allowed", pawl.ErrInvalid, len(ids), maxBatch)
	}
	known, err := t.known(ctx, db, ids)
	return known, failed("known", err)
}

func (t *Table) known(ctx context.Context, db dialect.DB, ids []string) ([]string, error) {
	if ids = possible(ids); len(ids) == 0 {
		return nil, nil
	}
	s := dialect.Among(t.new().Add("SELECT id FROM ").Table(t.messages.Name).Add(" WHERE "), "id", ids)
	return collect(ctx, db, s, func(rows *sql.Rows, id *string) error { return rows.Scan(id) })
}
