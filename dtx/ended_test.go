package dtx_test

import (
	"context"
	"errors"
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
		all["a full lock table that is swallowed"] = b.lockTableFull
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

// lockTableFull has MariaDB answer with the error after which InnoDB has rolled the transaction back, because locks fill the buffer pool. A real one needs
// a small pool and many rows. The caller does not look.
func (b *bank) lockTableFull(ctx context.Context, _ func(), tx *dtx.Tx) error {
	first := tx.On(b.parts[0])
	first.ExecContext(ctx, "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1206, MESSAGE_TEXT = 'The total number of locks exceeds the lock table size'") //nolint:errcheck // the caller does not look
	first.ExecContext(ctx, "UPDATE "+b.table+"_0 SET n = n - 1 WHERE id = 1")                                                                        //nolint:errcheck // as above
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

// alone: a transaction of one branch aborts, and is not in doubt, if its COMMIT was never sent.
func (b *bank) alone(t *testing.T) {
	c := b.patient(t)
	before := b.sums(t)
	run := func(fn func(ctx context.Context, cancel func(), db dialect.DB) error) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return c.Run(ctx, func(ctx context.Context, tx *dtx.Tx) error {
			if _, err := tx.On(b.parts[0]).ExecContext(ctx, "UPDATE "+b.table+"_0 SET n = n - 1 WHERE id = 0"); err != nil {
				return err
			}
			return fn(ctx, cancel, tx.On(b.parts[0]))
		}, b.parts[0])
	}
	unsent := map[string]func(ctx context.Context, cancel func(), db dialect.DB) error{
		"an ended context": func(_ context.Context, cancel func(), _ dialect.DB) error { cancel(); return nil },
	}
	if b.places[0].Dialect != dialect.SQLite { // where a cancelled query costs neither the connection nor the transaction
		unsent["rows that are cancelled"] = func(ctx context.Context, _ func(), db dialect.DB) error { return b.cancelRows(ctx, db, 5, 1) }
	}
	if driverOf(b.places[0]) == "pgx" {
		unsent["a statement that is cancelled"] = func(ctx context.Context, _ func(), db dialect.DB) error { b.cancelSleep(ctx, t, db); return nil }
	}
	for name, fn := range unsent {
		if err := run(fn); !errors.Is(err, dtx.ErrAborted) {
			t.Errorf("%s: %v", name, err)
		}
		if is := b.sums(t); is != before {
			t.Errorf("%s: %v, not %v", name, is, before)
		}
	}
	err := run(func(ctx context.Context, _ func(), db dialect.DB) error {
		for range 20 {
			if err := b.cancelRows(ctx, db, 1, accounts); err != nil {
				return err
			}
		}
		return nil
	})
	if is := b.sums(t); err != nil || is[0] != before[0]-1 {
		t.Errorf("rows whose context ends after them: %v, and %v after %v", err, is, before)
	}
}

// cancelRows asks for accounts^factors rows, reads some of them and then cancels the query. The caller does not look at the error of the rows.
func (b *bank) cancelRows(ctx context.Context, db dialect.DB, factors, some int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := "SELECT f0.n FROM " + b.table + "_0 f0"
	for i := range factors - 1 {
		query += fmt.Sprintf(", %s_0 f%d", b.table, i+1)
	}
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	for range some {
		rows.Next()
	}
	if factors > 1 {
		cancel()
		for rows.Next() { //nolint:revive // until the end of the context is seen
		}
	}
	return rows.Close() //nolint:sqlclosecheck,rowserrcheck // the caller does not look
}

// cancelSleep cancels a statement while PostgreSQL runs the statement. The caller does not look at the error.
func (b *bank) cancelSleep(ctx context.Context, t *testing.T, db dialect.DB) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		db.ExecContext(ctx, "SELECT pg_sleep(600), '"+b.table+"'") //nolint:errcheck // the caller does not look
	}()
	query := "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%" + b.table + "%'"
	until(t, "the statement runs", func() bool {
		var n int
		if err := b.dbs[0].QueryRowContext(ctx, query).Scan(&n); err != nil {
			t.Error(err)
		}
		return n > 0
	})
	cancel()
	<-ended
}

// TestImplicit: a SET that only reads `password`, `PASSWORD()` or `@@autocommit` is an ordinary statement.
func TestImplicit(t *testing.T) {
	t.Parallel()
	for statement, commits := range map[string]bool{
		"SET @h = (SELECT SHA2(CONCAT(salt, password), 256) FROM users WHERE id = 1)": false,
		"SET @h = CONCAT('x', PASSWORD('y'))":                                         false,
		"SET @a = COALESCE(@b, @@autocommit)":                                         false,
		"SET @n = (SELECT COUNT(*) FROM t WHERE f(a, /* x */ password) = 1)":          false,
		"SET @a = f(@b, @@session.autocommit), @c = CONCAT(x, `autocommit`)":          false,
		"SET @a = 'x, autocommit = 1', @autocommit = 1, password_history = 2":         false,
		"SET autocommit=1":                          true,
		"set @@session . `autocommit` := ON":        true,
		"SET @a = 1, LOCAL autocommit /* x */ = 1":  true,
		"SET /* x */ autocommit = 1":                true,
		"SET/**/@a = 1,autocommit\n=\n1":            true,
		"SET PASSWORD = 'x'":                        true,
		"SET PASSWORD TO RANDOM":                    true,
		"SET @a = 1, PASSWORD FOR 'u'@'h' = 'x'":    true,
		"SET DEFAULT ROLE r":                        true,
		"SET/**/STATEMENT a = 1 FOR DROP TABLE t":   true,
		"/*!40000 ALTER TABLE t COMMENT = 'y' */":   true,
		"CREATE TEMPORARY TABLE t (n int)":          false,
		"UPDATE t SET autocommit = 1, password = 2": false,
	} {
		if is := dtx.Implicit(statement); is != commits {
			t.Errorf("%s: %v", statement, is)
		}
	}
}
