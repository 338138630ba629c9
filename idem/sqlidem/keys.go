package sqlidem

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/internal/keytable"
)

const removal = 5 * time.Second // as for each removal of package idem

// keys is the table in a transaction.
type keys struct {
	table keytable.Table
	tx    dialect.DB
}

func (k *keys) Claim(ctx context.Context, c idem.TxClaim) (row idem.TxRow, err error) {
	if err := dialect.CheckTx(k.tx); err != nil {
		return row, fmt.Errorf("%w: %w", pawl.ErrInvalid, err)
	}
	again := true
	tx, together := k.tx, false
	if c.Savepoint && k.table.Dialect == dialect.PostgreSQL {
		tx, together = k.with("SAVEPOINT ", c)
	}
	for look := 0; again && err == nil; look++ {
		switch {
		case look == keytable.Looks:
			err = keytable.ErrRestless
		case k.table.Dialect == dialect.PostgreSQL:
			var answer keytable.Answer
			if err = k.table.ClaimOrRead(c).Scan(ctx, tx, answer.Columns()...); err == nil {
				row, again, err = answer.Row()
			}
		default:
			row, again, err = k.steps(ctx, c)
		}
	}
	if err == nil && row.State == idem.TxClaimed && c.Savepoint && !together {
		if _, err = k.tx.ExecContext(ctx, "SAVEPOINT "+k.savepoint(c)); err != nil {
			c.Savepoint = false
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
			defer cancel()
			err = errors.Join(err, k.Remove(last, c))
		}
	}
	return row, keytable.Failed(err)
}

// steps claims a key where one statement cannot. steps returns again if the key went while steps
// looked at it.
func (k *keys) steps(ctx context.Context, c idem.TxClaim) (row idem.TxRow, again bool, err error) {
	claimed := idem.TxRow{State: idem.TxClaimed}
	n, err := rows(ctx, k.tx, k.table.Insert(c))
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
	n, err = rows(ctx, k.tx, k.table.TakeOver(c))
	return claimed, n == 0, err
}

func (k *keys) Keep(ctx context.Context, c idem.TxClaim, result []byte) error {
	tx, together := k.tx, false
	if c.Savepoint {
		tx, together = k.with("RELEASE SAVEPOINT ", c)
	}
	if err := keytable.One(rows(ctx, tx, k.table.Keep(c, result))); err != nil {
		return err
	}
	if c.Savepoint && !together && k.table.Dialect == dialect.SQLite { // where it is no round trip
		_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT "+k.savepoint(c))
		return err
	}
	return nil
}

func (k *keys) Remove(ctx context.Context, c idem.TxClaim) error {
	if c.Savepoint {
		// Never in one batch with the next statement: PostgreSQL prepares no statement in a failed transaction.
		if _, err := k.tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+k.savepoint(c)); err != nil {
			return fmt.Errorf("go back to the savepoint: %w", err)
		}
	}
	err := keytable.One(rows(ctx, k.tx, k.table.Remove(c)))
	if keytable.Aborted(err) {
		return nil
	}
	return err
}

// with returns the transaction as it sends a command for the savepoint together with a statement, if its client can.
func (k *keys) with(command string, c idem.TxClaim) (tx dialect.DB, together bool) {
	if b, ok := k.tx.(dialect.Batcher); ok {
		return b.Batch(command + k.savepoint(c)), true
	}
	return k.tx, false
}

// savepoint is the name of the savepoint of a claim. The name differs from those of the claims around, because MySQL forgets a savepoint
// when another takes its name. PostgreSQL and SQLite would go back to the inner one. A client that sends
// the command together with a statement prepares both, so there are few names then.
func (k *keys) savepoint(c idem.TxClaim) string {
	if _, together := k.tx.(dialect.Batcher); together {
		return "pawl_idem_" + strconv.Itoa(c.Depth)
	}
	return "pawl_idem_" + strconv.FormatInt(c.Owner, 36)
}

// rows runs a statement and returns how many rows it affected.
func rows(ctx context.Context, tx dialect.DB, s *dialect.Statement) (int64, error) {
	result, err := s.Exec(ctx, tx)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
