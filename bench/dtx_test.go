package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

const (
	transferring = 8  // goroutines, each with an account of its own
	transfers    = 60 // of each in a round
)

var numbers atomic.Int64 // of transactions by hand

// vault is a database with accounts.
type vault struct {
	dialect dialect.Dialect
	db      *sql.DB
}

// BenchmarkTransactions: a transaction over two databases that flush each commit, but for a tuned MariaDB. Beside it are the same
// statements by hand, and two transactions that are committed independently, side by side. The flushes of both servers are counted.
func BenchmarkTransactions(b *testing.B) {
	postgres := func(b *testing.B) vault {
		server := testservers.Postgres(b, "-c", "max_prepared_transactions=64")
		return vault{dialect.PostgreSQL, openDB(b, "pgx", testservers.PostgresURL(server.Addr))}
	}
	mariadb := func(b *testing.B) vault { return vault{dialect.MySQL, openMariaDB(b)} }
	b.Run("postgres+postgres", func(b *testing.B) {
		benchTransactions(b, "PostgreSQL, PostgreSQL", false, postgres(b), postgres(b))
	})
	b.Run("postgres+mariadb", func(b *testing.B) {
		benchTransactions(b, unflushed("PostgreSQL, MariaDB"), false, postgres(b), mariadb(b))
	})
	b.Run("last-agent", func(b *testing.B) {
		benchTransactions(b, "PostgreSQL last, PostgreSQL", true, postgres(b), postgres(b))
	})
}

func benchTransactions(b *testing.B, name string, last bool, vaults ...vault) {
	log, parts := transactional(b, last, vaults)
	c, err := dtx.New(ctx, log, parts, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(ctx) //nolint:errcheck // nothing is lost
	ways := map[string]func(account, number int) error{
		"dtx": func(account, _ int) error {
			return c.Run(ctx, func(ctx context.Context, tx *dtx.Tx) error {
				for _, part := range parts {
					if _, err := tx.On(part).ExecContext(ctx, update(account)); err != nil {
						return err
					}
				}
				return nil
			})
		},
		"by hand":     func(account, number int) error { return preparedByHand(vaults, last, account, number) },
		"independent": func(account, _ int) error { return independent(vaults, account) },
	}
	times, flushes := make(map[string]*samples), make(map[string]int64)
	for b.Loop() {
		for range turns {
			for way, transfer := range ways { // in any order
				if times[way] == nil {
					times[way] = new(samples)
				}
				before := flushed(b, vaults)
				transferAll(b, 1, transfer) // which connects
				*times[way] = append(*times[way], transferAll(b, transfers, transfer)/(transferring*transfers))
				flushes[way] += flushed(b, vaults) - before
			}
		}
	}
	for way := range ways {
		rounds := int64(len(*times[way]))
		say("%s, %s: %.2f flushes a transaction", name, way, float64(flushes[way])/float64(rounds*transferring*(transfers+1)))
	}
	ours := micros(times["dtx"].quantile(.5))
	compare(b, name+", beside the same by hand", ours, micros(times["by hand"].quantile(.5)), 1/.9)
	if alone := micros(times["independent"].quantile(.5)); last {
		compare(b, name+", beside two independent commits", ours, alone, 1/.5)
	} else {
		say("%s: %.2f × two independent commits", name, ours/alone)
	}
}

// transactional makes the tables, and returns the log and the resources.
func transactional(b *testing.B, last bool, vaults []vault) (*dtx.Log, []*dtx.Resource) {
	log, err := dtx.NewLog(vaults[0].dialect, vaults[0].db, nil)
	if err == nil {
		err = log.Migrate(ctx)
	}
	var parts []*dtx.Resource
	for i, v := range vaults {
		v.db.SetMaxIdleConns(64)
		statement(b, v.db, "CREATE TABLE accounts (id bigint PRIMARY KEY, n bigint NOT NULL)")
		for id := range transferring {
			statement(b, v.db, fmt.Sprintf("INSERT INTO accounts VALUES (%d, 0)", id))
		}
		part := dtx.MySQL(fmt.Sprint("part", i), v.db)
		switch {
		case last && i == 0:
			part = log.Resource("part0")
		case v.dialect == dialect.PostgreSQL:
			part = dtx.PostgreSQL(fmt.Sprint("part", i), v.db)
		}
		parts = append(parts, part)
	}
	statement(b, vaults[0].db, "CREATE TABLE bare (coordinator bigint, number bigint, decided bigint, resources varchar(100), PRIMARY KEY (coordinator, number))")
	if err != nil {
		b.Fatal(err)
	}
	return log, parts
}

func statement(b *testing.B, db *sql.DB, query string) {
	b.Helper()
	if _, err := db.ExecContext(ctx, query); err != nil {
		b.Fatal(query, ": ", err)
	}
}

func update(account int) string {
	return fmt.Sprintf("UPDATE accounts SET n = n + 1 WHERE id = %d", account)
}

// transferAll returns how long all goroutines take for so many transfers each.
func transferAll(b *testing.B, each int, transfer func(account, number int) error) time.Duration {
	b.Helper()
	var group sync.WaitGroup
	start := time.Now()
	for account := range transferring {
		group.Go(func() {
			for range each {
				if err := transfer(account, int(numbers.Add(1))); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	return time.Since(start)
}

// side runs a function for each database at the same time.
func side(n int, f func(i int) error) error {
	failures := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { failures[i] = f(i) })
	}
	group.Wait()
	return errors.Join(failures...)
}

func (v vault) begin(xid string) []string {
	if v.dialect == dialect.MySQL {
		return []string{"SET @was = @@SESSION.wait_timeout, SESSION wait_timeout = 10", "XA START " + xid}
	}
	return []string{"BEGIN; SET LOCAL idle_in_transaction_session_timeout = 10000"}
}

// preparedByHand runs the statements that dtx sends, on connections of its own. Nothing recovers them.
func preparedByHand(vaults []vault, last bool, account, number int) error {
	conns := make([]*sql.Conn, len(vaults))
	send := func(i int, statements ...string) error {
		for _, s := range statements {
			if _, err := conns[i].ExecContext(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	}
	xid := func(i int) string { return fmt.Sprintf("'bare-%d-%d'", number, i) }
	for i, v := range vaults {
		conn, err := v.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		conns[i] = conn
		if err := send(i, v.begin(xid(i))...); err != nil {
			return err
		}
	}
	for i := range vaults {
		if err := send(i, update(account)); err != nil {
			return err
		}
	}
	err := side(len(vaults), func(i int) error {
		switch {
		case last && i == 0:
			return nil
		case vaults[i].dialect == dialect.PostgreSQL:
			return send(i, "SAVEPOINT bare; PREPARE TRANSACTION "+xid(i))
		}
		return send(i, "XA END "+xid(i), "XA PREPARE "+xid(i))
	})
	record := fmt.Sprintf("INSERT INTO bare SELECT id, %d, 0, 'part0,part1' FROM pawl_dtx WHERE fenced = 0 AND id > 0 FOR SHARE", number)
	switch {
	case err != nil:
	case last:
		err = send(0, record, "SAVEPOINT bare; COMMIT")
	default:
		_, err = vaults[0].db.ExecContext(ctx, record)
	}
	if err != nil {
		return err
	}
	return side(len(vaults), func(i int) error {
		switch {
		case last && i == 0:
			return nil
		case vaults[i].dialect == dialect.PostgreSQL:
			return send(i, "COMMIT PREPARED "+xid(i))
		}
		return send(i, "XA COMMIT "+xid(i), "SET SESSION wait_timeout = @was")
	})
}

// independent commits two transactions, side by side after their statements.
func independent(vaults []vault, account int) error {
	txs := make([]*sql.Tx, len(vaults))
	for i, v := range vaults {
		tx, err := v.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after the commit
		if _, err := tx.ExecContext(ctx, update(account)); err != nil {
			return err
		}
		txs[i] = tx
	}
	return side(len(txs), func(i int) error { return txs[i].Commit() })
}

// flushed is how often the servers have flushed their logs. PostgreSQL counts a flush some seconds later, or as soon as its
// connection is asked to.
func flushed(b *testing.B, vaults []vault) (all int64) {
	b.Helper()
	for _, v := range vaults {
		query := "SELECT MAX(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN ('INNODB_OS_LOG_FSYNCS', 'INNODB_DATA_FSYNCS')"
		if v.dialect == dialect.PostgreSQL {
			v.db.SetMaxIdleConns(0) // a connection counts when it ends
			v.db.SetMaxIdleConns(64)
			query = "SELECT wal_sync FROM pg_stat_wal"
		}
		var n int64
		for last := int64(-1); last != n || n < 0; time.Sleep(50 * time.Millisecond) {
			last = n
			if err := v.db.QueryRowContext(ctx, query).Scan(&n); err != nil {
				b.Fatal(err)
			}
		}
		all += n
	}
	return all
}
