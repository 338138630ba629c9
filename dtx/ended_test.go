package dtx_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
)

// ended are transactions that the database has ended, and of which the caller does not look at the error.
func (b *bank) ended(t *testing.T) map[string]func(context.Context, func(), *dtx.Tx) error {
	all := make(map[string]func(context.Context, func(), *dtx.Tx) error)
	if driverOf(b.places[1]) == "pgx" {
		all["a failed statement that is swallowed"] = func(ctx context.Context, _ func(), tx *dtx.Tx) error {
			tx.On(b.parts[1]).ExecContext(ctx, "SELECT 1/0") //nolint:errcheck // that is the test
			return nil
		}
	}
	switch b.places[0].Dialect {
	case dialect.SQLite:
		all["a statement that rolls back"] = b.rollsBack
	case dialect.MySQL:
		all["a deadlock that only the rows tell"] = func(ctx context.Context, _ func(), tx *dtx.Tx) error { return b.deadlock(ctx, t, tx) }
	}
	return all
}

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
	query := fmt.Sprintf("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = %d", thread)
	for n, deadline := 0, time.Now().Add(time.Minute); n == 0; time.Sleep(150 * time.Millisecond) { // the server reads this table anew when nobody has asked for 100 ms
		if err := b.dbs[0].QueryRowContext(ctx, query).Scan(&n); err != nil || time.Now().After(deadline) {
			t.Error("the other transaction does not wait:", err)
			return err
		}
	}
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
