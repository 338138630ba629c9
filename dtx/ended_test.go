package dtx_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dtx"
)

// rollsBack has SQLite roll the transaction back. SQLite commits each further statement at once.
func (b *bank) rollsBack(ctx context.Context, _ func(), tx *dtx.Tx) error {
	first := tx.On(b.parts[0])
	first.ExecContext(ctx, "INSERT OR ROLLBACK INTO "+b.table+"_0 (id, n) VALUES (0, 0)") //nolint:errcheck // the caller does not look
	first.ExecContext(ctx, "UPDATE "+b.table+"_0 SET n = n - 1 WHERE id = 1")             //nolint:errcheck // as above
	return nil
}

// deadlock has MariaDB roll the transaction back while rows are read. The caller does not look at the error of the rows. MariaDB commits each
// further statement at once.
func (b *bank) deadlock(ctx context.Context, t *testing.T, tx *dtx.Tx) error {
	other, err := b.dbs[0].Conn(ctx)
	if err != nil {
		return err
	}
	defer other.Close()
	must := func(query string) {
		if _, err := other.ExecContext(ctx, query); err != nil {
			t.Error(err)
		}
	}
	var thread int64
	if err := other.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&thread); err != nil {
		return err
	}
	must("BEGIN")
	defer must("ROLLBACK")
	for range 20 { // the victim is the transaction that has changed less
		must("UPDATE " + b.table + "_0 SET n = n + 1 WHERE id = 1")
	}
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		must("UPDATE " + b.table + "_0 SET n = n + 1 WHERE id = 0")
	}()
	defer func() { <-waits }()
	until(t, "the other transaction waits", func() bool {
		time.Sleep(150 * time.Millisecond) // the server reads this table anew when nobody has asked for 100 ms
		var n int
		query := fmt.Sprintf("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = %d", thread)
		return b.dbs[0].QueryRowContext(ctx, query).Scan(&n) == nil && n > 0
	})
	first := tx.On(b.parts[0])
	rows, err := first.QueryContext(ctx, "SELECT n FROM "+b.table+"_0 WHERE id BETWEEN 1 AND 2 FOR UPDATE")
	if err != nil {
		return err
	}
	for rows.Next() { //nolint:revive // reads all
	}
	rows.Close()                                                              //nolint:errcheck,sqlclosecheck // the caller does not look
	first.ExecContext(ctx, "UPDATE "+b.table+"_0 SET n = n - 1 WHERE id = 2") //nolint:errcheck // as above
	return nil
}
