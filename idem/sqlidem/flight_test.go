package sqlidem_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/sqltest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// until waits until a condition holds.
func (f *fixture) until(what string, holds func() bool) {
	f.Helper()
	// MariaDB shows its transactions anew only to a client that did not look for 100 ms.
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(120 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("never: %s", what)
		}
	}
}

// waiting waits until so many transactions wait for another one, as the database says.
func (f *fixture) waiting(n int) {
	f.Helper()
	query := map[dialect.Dialect]string{
		dialect.PostgreSQL: "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid <> pg_backend_pid() AND query LIKE '%",
		dialect.MySQL:      "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%",
	}[f.on.Dialect]
	if query == "" {
		return // SQLite has no such view
	}
	f.until("it waits", func() bool {
		var is int
		if err := f.db.QueryRowContext(f.Context(), query+f.table+"%'").Scan(&is); err != nil {
			f.Fatal(err)
		}
		return is >= n
	})
}

// A transaction of SQLite is the only writer, so a second one does not even begin.
func TestOneInFlightIsToldOrWaitedFor(t *testing.T) {
	each(t, func(f *fixture) {
		for _, commits := range []bool{true, false} {
			id := fmt.Sprint("flight-", commits)
			first := f.begin()
			if _, _, err := f.pay(first, id, "x", 1, idem.TxOptions{}); err != nil {
				f.Fatal(err)
			}
			if f.on.Dialect != dialect.SQLite {
				start := time.Now()
				tx := f.begin()
				for range 3 { // and the transaction goes on
					if _, _, err := f.pay(tx, id, "y", 1, idem.TxOptions{NoWait: true}); !errors.Is(err, idem.ErrInFlight) {
						f.Error(err)
					}
				}
				if _, _, err := f.pay(tx, id+"-other", "x", 1, idem.TxOptions{NoWait: true}); err != nil {
					f.Error(err)
				}
				if err := tx.Rollback(); err != nil { // at SERIALIZABLE one of both would fail
					f.Error(err)
				}
				if took := time.Since(start); took > 10*time.Second {
					f.Errorf("it waited for %v", took)
				}
			}
			var group sync.WaitGroup
			for n := range 3 {
				group.Go(func() { f.oneOf(id, n+2) })
			}
			f.waiting(3)
			if commits {
				f.commit(first)
			} else if err := first.Rollback(); err != nil {
				f.Error(err)
			}
			group.Wait()
			if n := f.count(id); n != 1 {
				f.Errorf("%s: %d effects", id, n)
			}
		}
	})
}

// oneOf is a call in a transaction of its own, which may be the first or a repeat. Every error is
// an occasion to repeat it.
func (f *fixture) oneOf(id string, n int) {
	for {
		tx, err := f.on.Begin(f.Context(), f.db)
		if err != nil {
			f.Error(err)
			return
		}
		p, replayed, err := f.pay(tx, id, "x", n, idem.TxOptions{})
		if err == nil {
			err = tx.Commit()
		}
		if err == nil {
			if replayed == (p.ID == n) {
				f.Errorf("%d has %+v, %t", n, p, replayed)
			}
			return
		}
		tx.Rollback() //nolint:errcheck // the database may have done so
		if !dialect.Again(err) {
			f.Error(err)
			return
		}
	}
}

// The waits that the database gives up are calls in flight.
func TestALockTimeoutIsACallInFlight(t *testing.T) {
	each(t, func(f *fixture) {
		first := f.begin()
		if _, _, err := f.pay(first, "a", "x", 1, idem.TxOptions{}); err != nil {
			f.Fatal(err)
		}
		if f.on.Dialect == dialect.PostgreSQL {
			tx := f.begin()
			f.on.Run(f, tx, "SET LOCAL lock_timeout = '50ms'")
			if _, _, err := f.pay(tx, "a", "x", 1, idem.TxOptions{}); !errors.Is(err, idem.ErrInFlight) || !dialect.LockTimeout(err) {
				f.Error(err)
			}
			return
		}
		conn, err := f.db.Conn(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		defer conn.Close()
		set := map[dialect.Dialect][2]string{
			dialect.MySQL:  {"SET innodb_lock_wait_timeout = 1", "SET innodb_lock_wait_timeout = DEFAULT"},
			dialect.SQLite: {"PRAGMA busy_timeout = 50", "PRAGMA busy_timeout = 20000"},
		}[f.on.Dialect]
		if _, err := conn.ExecContext(f.Context(), set[0]); err != nil {
			f.Fatal(err)
		}
		defer conn.ExecContext(context.Background(), set[1]) //nolint:errcheck // the next test says so
		tx, err := conn.BeginTx(f.Context(), &sql.TxOptions{Isolation: f.on.Level, ReadOnly: f.on.Dialect == dialect.SQLite})
		if err != nil {
			f.Fatal(err)
		}
		defer tx.Rollback()                 //nolint:errcheck // it may have ended
		if f.on.Dialect == dialect.SQLite { // whose driver begins such a transaction without the lock of a writer
			if _, err := tx.ExecContext(f.Context(), "PRAGMA query_only = off"); err != nil {
				f.Fatal(err)
			}
		}
		if _, _, err := f.pay(tx, "a", "x", 1, idem.TxOptions{}); !errors.Is(err, idem.ErrInFlight) || !dialect.LockTimeout(err) {
			f.Error(err)
		}
	})
}

// A repeat locks nothing that another repeat needs. On PostgreSQL it writes nothing, either.
func TestRepeatsDoNotWaitForEachOther(t *testing.T) {
	each(t, func(f *fixture) {
		f.pays("a", 1, false)
		for range 3 {
			tx := f.begin() // which stays open
			if _, replayed, err := f.pay(tx, "a", "x", 2, idem.TxOptions{NoWait: true}); !replayed || err != nil {
				f.Error(replayed, err)
			}
			if f.on.Dialect == dialect.PostgreSQL {
				var locks, writes int
				query := "SELECT count(*) FILTER (WHERE locktype = 'advisory'), count(*) FILTER (WHERE locktype = 'transactionid') FROM pg_locks WHERE pid = pg_backend_pid()"
				if err := dialect.New(f.on.Dialect).Add(query).Scan(f.Context(), tx, &locks, &writes); locks != 0 || writes != 0 || err != nil {
					f.Error(locks, writes, err)
				}
			}
			if f.on.Dialect == dialect.SQLite {
				return // whose writer is that transaction
			}
		}
	})
}

// A claim in flight was taken over when its time was up, so that both ran
// (aws-powertools/powertools-lambda-python#8386).
func TestACallInFlightDoesNotExpire(t *testing.T) {
	each(t, func(f *fixture) {
		first := f.begin()
		if _, _, err := f.pay(first, "a", "x", 1, idem.TxOptions{Expiry: time.Second}); err != nil {
			f.Fatal(err)
		}
		f.until("it has expired", func() (expired bool) {
			query := "SELECT count(*) = 1 FROM " + f.table + " WHERE name <> 'format' AND expires <= " + clock[f.on.Dialect]
			if err := dialect.New(f.on.Dialect).Add(query).Scan(f.Context(), first, &expired); err != nil {
				f.Fatal(err)
			}
			return expired
		})
		if f.on.Dialect != dialect.SQLite {
			if n, err := f.store.Sweep(f.Context(), f.db, 100); n != 0 || err != nil {
				f.Error(n, err)
			}
			if _, _, err := f.pay(f.begin(), "a", "x", 2, idem.TxOptions{NoWait: true}); !errors.Is(err, idem.ErrInFlight) {
				f.Error(err)
			}
		}
		f.commit(first)
		if n := f.count("a"); n != 1 {
			f.Error(n)
		}
	})
}

var clock = map[dialect.Dialect]string{dialect.PostgreSQL: "extract(epoch FROM clock_timestamp())", dialect.MySQL: "UNIX_TIMESTAMP()", dialect.SQLite: "unixepoch()"}

// A key that has expired is claimed by one of several callers, swept or not.
func TestAnExpiredKeyIsFree(t *testing.T) {
	each(t, func(f *fixture) {
		for round := range 3 {
			f.pays("a", 100*round, false)
			f.exec("UPDATE " + f.table + " SET expires = 1 WHERE name <> 'format'")
			if round == 1 {
				if n, err := f.store.Sweep(f.Context(), f.db, 100); n != 1 || err != nil {
					f.Error(n, err)
				}
			}
			var group sync.WaitGroup
			for n := range 4 {
				group.Go(func() { f.oneOf("a", 100*round+n+1) })
			}
			group.Wait()
			if n := f.count("a"); n != 2*(round+1) {
				f.Errorf("round %d: %d effects", round, n)
			}
			f.exec("UPDATE " + f.table + " SET expires = 1 WHERE name <> 'format'")
		}
	})
}

// Two transactions that claim two keys in different order (dtm-labs/dtm#478) are a deadlock or a wait.
func TestKeysInAnyOrder(t *testing.T) {
	each(t, func(f *fixture) {
		var group sync.WaitGroup
		for _, order := range [][]string{{"a", "b"}, {"b", "a"}, {"a", "b", "c"}, {"c", "a"}} {
			group.Go(func() {
				for {
					err := f.all(order)
					if err == nil {
						return
					}
					if !dialect.Again(err) {
						f.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		for _, id := range []string{"a", "b", "c"} {
			if n := f.count(id); n != 1 {
				f.Errorf("%s has %d effects", id, n)
			}
		}
	})
}

// all makes some calls in one transaction.
func (f *fixture) all(ids []string) error {
	tx, err := f.on.Begin(f.Context(), f.db)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	for _, id := range ids {
		if _, _, err := f.pay(tx, id, "x", 1, idem.TxOptions{}); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// The connection that ends between the effect and the result keeps neither (adcp-client#569: the effect
// without the result, so a repeat had it again).
func TestALostConnectionKeepsBothOrNeither(t *testing.T) {
	each(t, func(f *fixture) {
		if f.on.Dialect == dialect.SQLite {
			return // which has no connection; the processes of TestKilledProcesses die there
		}
		self := map[dialect.Dialect]string{dialect.PostgreSQL: "SELECT pg_terminate_backend(pg_backend_pid())", dialect.MySQL: "KILL CONNECTION_ID()"}[f.on.Dialect]
		tx := f.begin()
		_, _, err := idem.Do(f.Context(), f.store.In(tx), key("a"), print("x"), func(ctx context.Context) (int, error) {
			if err := f.write(ctx, tx, "a", 1); err != nil {
				f.Error(err)
			}
			tx.ExecContext(ctx, self) //nolint:errcheck // it is the end of the connection
			return 1, nil
		})
		if err == nil || tx.Commit() == nil {
			f.Error("it was kept", err)
		}
		if n := f.count("a"); n != 0 {
			f.Error(n)
		}
		f.pays("a", 1, false)
	})
}

// The sweeper deletes expired keys in batches, and leaves keys on which a transaction works.
func TestSweep(t *testing.T) {
	each(t, func(f *fixture) {
		for i := range 6 {
			f.pays(fmt.Sprint("k", i), i, false)
		}
		f.exec("UPDATE " + f.table + " SET expires = 1 WHERE name <> 'format' AND name NOT LIKE '%k5'")
		want := []int{2, 2, 1, 0}
		if f.on.Dialect != dialect.SQLite { // one is taken over while the sweeper works
			tx := f.begin()
			if p, replayed, err := f.pay(tx, "k0", "x", 10, idem.TxOptions{}); p.ID != 10 || replayed || err != nil {
				f.Fatal(p, replayed, err)
			}
			want = []int{2, 2, 0}
			defer f.commit(tx)
		}
		var is []int
		for range want {
			n, err := f.store.Sweep(f.Context(), f.db, 2)
			if err != nil {
				f.Fatal(err)
			}
			is = append(is, n)
		}
		if !slices.Equal(is, want) {
			f.Errorf("swept %v, want %v", is, want)
		}
		f.pays("k5", 9, true)
		for _, limit := range []int{0, -1, 10_001} {
			if _, err := f.store.Sweep(f.Context(), f.db, limit); err == nil || !strings.Contains(err.Error(), "1 to 10000") {
				f.Error(err)
			}
		}
	})
}

// Nearly all keys of a small table have expired, and a transaction has claimed another. The sweeper waits for no lock.
func TestSweepBesideAClaim(t *testing.T) {
	each(t, func(f *fixture) {
		for i := range 50 {
			f.pays(fmt.Sprint("k", i), i, false)
		}
		f.exec("UPDATE " + f.table + " SET expires = 1 WHERE name <> 'format'")
		if f.on.Dialect != dialect.SQLite { // which has one writer
			tx := f.begin()
			defer f.commit(tx)
			if _, _, err := f.pay(tx, "other", "x", 100, idem.TxOptions{}); err != nil {
				f.Fatal(err)
			}
		}
		ctx, stop := context.WithTimeout(f.Context(), 15*time.Second)
		defer stop()
		if n, err := f.store.Sweep(ctx, f.db, 100); n != 50 || err != nil {
			f.Error(n, err)
		}
	})
}

// Drivers and poolers send statements in several ways.
func TestEveryWayToSend(t *testing.T) {
	var all []sqltest.Database
	pooled := sqltest.Postgres(t, "")
	pooled.Source = testservers.PostgresURL(testservers.PgBouncer(t, testservers.SharedPostgres(t).Addr).Addr)
	for mode, d := range map[string]sqltest.Database{"exec": sqltest.Postgres(t, ""), "cache_describe": sqltest.Postgres(t, ""), "simple_protocol": pooled} {
		d.Name, d.Source = mode, d.Source+"&default_query_exec_mode="+mode
		all = append(all, d, d.WithPgx())
	}
	all = append(all, sqltest.MariaDB(t), sqltest.MariaDB(t, func(c *mysql.Config) { c.ClientFoundRows = true }))
	for _, d := range all {
		d := d.At(sql.LevelReadCommitted)
		t.Run(d.Name, func(t *testing.T) {
			f := newFixture(t, d)
			first := f.begin()
			if _, _, err := f.pay(first, "a", "x", 1, idem.TxOptions{}); err != nil {
				f.Error(err)
			}
			if _, _, err := f.pay(f.begin(), "a", "x", 2, idem.TxOptions{NoWait: true}); !errors.Is(err, idem.ErrInFlight) {
				f.Error(err)
			}
			f.commit(first)
			f.pays("a", 2, true)
			f.exec("UPDATE " + f.table + " SET expires = 1 WHERE name <> 'format'")
			f.pays("a", 3, false)
			if _, err := idem.Run(f.Context(), f.store.In(f.begin()), key("b"), print("x"), func(context.Context) error { return io.EOF }); err != io.EOF {
				f.Error(err)
			}
		})
	}
}

// noSavepoint is a transaction whose database refuses savepoints.
type noSavepoint struct {
	dialect.DB
	removals, unbounded int
}

func (tx *noSavepoint) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if strings.HasPrefix(query, "SAVEPOINT") {
		return nil, io.ErrUnexpectedEOF
	}
	if strings.HasPrefix(query, "DELETE") {
		tx.removals++
		if _, bounded := ctx.Deadline(); !bounded {
			tx.unbounded++
		}
	}
	return tx.DB.ExecContext(ctx, query, args...)
}

// A claim without its savepoint is removed within a bound, also where ctx has none. A database that hangs
// held the caller up for ever.
func TestARemovalIsBounded(t *testing.T) {
	each(t, func(f *fixture) {
		begun := f.begin()
		tx := &noSavepoint{DB: begun}
		_, _, err := f.pay(tx, "a", "x", 1, idem.TxOptions{})
		if !errors.Is(err, io.ErrUnexpectedEOF) || tx.removals != 1 || tx.unbounded > 0 {
			f.Errorf("%d removals, %d without a bound: %v", tx.removals, tx.unbounded, err)
		}
		f.commit(begun)
		f.pays("a", 2, false)
	})
}
