package sqlidem

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/internal/keytable"
)

// keys is the table in a transaction.
type keys struct {
	table keytable.Table
	tx    *sql.Tx
}

func (k *keys) Claim(ctx context.Context, c idem.TxClaim) (row idem.TxRow, err error) {
	again := true
	for look := 0; again && err == nil; look++ {
		switch {
		case look == keytable.Looks:
			err = keytable.ErrRestless
		case k.table.Dialect == dialect.PostgreSQL:
			var answer keytable.Answer
			if err = k.table.ClaimOrRead(c).Scan(ctx, k.tx, answer.Columns()...); err == nil {
				row, again, err = answer.Row()
			}
		default:
			row, again, err = k.steps(ctx, c)
		}
	}
	if err == nil && row.State == idem.TxClaimed && c.Savepoint {
		if _, err = k.tx.ExecContext(ctx, keytable.Savepoint); err != nil {
			c.Savepoint = false
			err = errors.Join(err, k.Remove(context.WithoutCancel(ctx), c))
		}
	}
	return row, keytable.Failed(err)
}

// steps claims a key where one statement cannot. steps returns again if the key went while steps
// looked at it.
func (k *keys) steps(ctx context.Context, c idem.TxClaim) (row idem.TxRow, again bool, err error) {
	claimed := idem.TxRow{State: idem.TxClaimed}
	n, err := k.rows(ctx, k.table.Insert(c))
	if err != nil || n == 1 {
		return claimed, false, err
	}
	var found keytable.Found
	err = k.table.Read(c).Scan(ctx, k.tx, found.Columns()...)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return idem.TxRow{}, true, nil
	case err != nil:
		return idem.TxRow{}, false, err
	case !found.Expired:
		return found.Row(), false, nil
	}
	n, err = k.rows(ctx, k.table.TakeOver(c))
	return claimed, n == 0, err
}

func (k *keys) Keep(ctx context.Context, c idem.TxClaim, result []byte) error {
	if err := keytable.One(k.rows(ctx, k.table.Keep(c, result))); err != nil {
		return err
	}
	if c.Savepoint && k.table.Dialect == dialect.SQLite { // where it is no round trip
		_, err := k.tx.ExecContext(ctx, keytable.Release)
		return err
	}
	return nil
}

func (k *keys) Remove(ctx context.Context, c idem.TxClaim) error {
	if c.Savepoint {
		if _, err := k.tx.ExecContext(ctx, keytable.RollbackTo); err != nil {
			return fmt.Errorf("go back to the savepoint: %w", err)
		}
	}
	err := keytable.One(k.rows(ctx, k.table.Remove(c)))
	if keytable.Aborted(err) {
		return nil
	}
	return err
}

// rows runs a statement and returns how many rows it affected.
func (k *keys) rows(ctx context.Context, s *dialect.Statement) (int64, error) {
	result, err := s.Exec(ctx, k.tx)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
