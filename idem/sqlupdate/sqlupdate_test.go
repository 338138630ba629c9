package sqlupdate_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/sqlfence"
	"github.com/pawl-go/pawl/idem/sqlupdate"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// fixture is a database with a table of orders, and a store of locks, that one test has for itself.
type fixture struct {
	*testing.T
	open   func() *sql.DB
	db     *sql.DB
	marks  sqlfence.Marks
	orders string
	level  sql.IsolationLevel
	locks  *memengine.Engine
}

var tables atomic.Int64

// each runs a test on every database, at the levels of isolation that differ.
func each(t *testing.T, test func(f *fixture)) {
	t.Helper()
	for _, s := range []struct {
		dialect dialect.Dialect
		level   sql.IsolationLevel
		driver  string
		source  func(t *testing.T) string
	}{
		{dialect.PostgreSQL, sql.LevelReadCommitted, "pgx", postgres},
		{dialect.PostgreSQL, sql.LevelSerializable, "pgx", postgres},
		{dialect.MySQL, sql.LevelReadCommitted, "mysql", mariadb},
		{dialect.MySQL, sql.LevelRepeatableRead, "mysql", mariadb},
		{dialect.SQLite, sql.LevelDefault, "sqlite3", sqlite},
	} {
		t.Run(fmt.Sprintf("%v, %v", s.dialect, s.level), func(t *testing.T) {
			t.Parallel()
			source := s.source(t)
			unique := fmt.Sprintf("%d_%d", time.Now().UnixNano(), tables.Add(1))
			f := &fixture{T: t, level: s.level, orders: "orders_" + unique, locks: memengine.New(), marks: sqlfence.Marks{Dialect: s.dialect, Table: "marks_" + unique}}
			f.open = func() *sql.DB {
				db, err := sql.Open(s.driver, source)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
				return db
			}
			f.db = f.open()
			f.exec("CREATE TABLE " + f.orders + " (id integer PRIMARY KEY, paid integer NOT NULL, balance integer NOT NULL)")
			f.exec("INSERT INTO " + f.orders + " VALUES (42, 0, 100), (43, 0, 100)")
			if err := f.marks.Create(t.Context(), f.db); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				f.exec("DROP TABLE " + f.orders)
				f.exec("DROP TABLE " + f.marks.Table)
			})
			test(f)
		})
	}
}

func postgres(t *testing.T) string {
	return testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
}
func mariadb(t *testing.T) string {
	return testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr).FormatDSN()
}

func sqlite(t *testing.T) string {
	return "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")) + "?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)"
}

func (f *fixture) exec(query string) {
	f.Helper()
	if _, err := f.db.ExecContext(context.Background(), query); err != nil {
		f.Fatalf("%s: %v", query, err)
	}
}

// client returns a client whose locks can be taken away without its notice.
func (f *fixture) client() *pawl.Client {
	f.Helper()
	c, err := pawl.New(f.Context(), f.locks, &pawl.Options{TTL: time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { c.Close(context.Background()) }) //nolint:errcheck // the lock may be lost
	return c
}

// lose ends the lease of a lock, and its holder does not notice.
func (f *fixture) lose(by *pawl.Client, lock *pawl.Mutex) {
	f.Helper()
	is, err := by.Show(f.Context(), lock.Name())
	if err != nil || len(is.Holders) != 1 {
		f.Fatalf("%+v, %v", is, err)
	}
	f.locks.Expire(is.Holders[0].Session)
}

func (f *fixture) paid(ctx context.Context, tx *sql.Tx) (done bool, err error) {
	var paid int
	err = tx.QueryRowContext(ctx, "SELECT paid FROM "+f.orders+" WHERE id = 42").Scan(&paid)
	return paid > 0, err
}

// pay counts, so that it shows when it is done twice.
func (f *fixture) pay(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "UPDATE "+f.orders+" SET paid = paid + 1, balance = balance - 5 WHERE id = 42")
	return err
}

func (f *fixture) want(payments int) {
	f.Helper()
	var paid, balance int
	if err := f.db.QueryRow("SELECT paid, balance FROM "+f.orders+" WHERE id = 42").Scan(&paid, &balance); err != nil {
		f.Fatal(err)
	}
	if paid != payments || balance != 100-5*payments {
		f.Errorf("%d payments, and a balance of %d: want %d payments", paid, balance, payments)
	}
}

func (f *fixture) updater(db *sql.DB) *sqlupdate.Updater {
	return sqlupdate.New(db, f.marks, &sql.TxOptions{Isolation: f.level})
}

type outcome struct {
	done bool
	err  error
}

func (f *fixture) begin(c *pawl.Client, db *sql.DB, check sqlupdate.Check) <-chan outcome {
	ended := make(chan outcome, 1)
	go func() {
		done, err := f.updater(db).Do(f.Context(), c.Mutex("order/42"), check, f.pay)
		ended <- outcome{done, err}
	}()
	return ended
}

// TestFrozenBeforeTheTransaction: a holder that is frozen after it got the lock, until another has
// paid, writes nothing.
func TestFrozenBeforeTheTransaction(t *testing.T) {
	each(t, func(f *fixture) {
		a, b, pool := f.client(), f.client(), f.open()
		pool.SetMaxOpenConns(1)
		frozen, err := pool.Conn(f.Context()) // the holder waits for this connection
		if err != nil {
			f.Fatal(err)
		}
		late := f.begin(a, pool, f.paid)
		f.until("the holder waits for a connection", func() bool { return pool.Stats().WaitCount > 0 })
		f.lose(b, b.Mutex("order/42"))
		if is := <-f.begin(b, f.db, f.paid); is.err != nil || is.done {
			f.Fatalf("the next holder: %v, %v", is.done, is.err)
		}
		frozen.Close() //nolint:errcheck // it is free
		if is := <-late; !errors.Is(is.err, fence.ErrStale) {
			f.Errorf("the late holder: %v, %v", is.done, is.err)
		}
		f.want(1)
		if is := <-f.begin(a, f.db, f.paid); is.err != nil || !is.done {
			f.Errorf("it calls again: %v, %v", is.done, is.err)
		}
		f.want(1)
	})
}

// TestFrozenInTheTransaction: a holder is frozen between its check and its update. The next holder
// waits for the end of that transaction, and sees what it did.
func TestFrozenInTheTransaction(t *testing.T) {
	each(t, func(f *fixture) {
		a, b := f.client(), f.client()
		checked, thaw := make(chan bool, 10), make(chan bool)
		late := f.begin(a, f.db, func(ctx context.Context, tx *sql.Tx) (bool, error) {
			done, err := f.paid(ctx, tx)
			checked <- done
			<-thaw
			return done, err
		})
		if <-checked {
			f.Fatal("it is paid")
		}
		f.lose(b, b.Mutex("order/42"))
		next := f.begin(b, f.open(), f.paid)
		f.until("the next holder has the lock", func() bool {
			is, err := b.Show(f.Context(), "order/42")
			return err == nil && len(is.Holders) == 1
		})
		select {
		case is := <-next:
			f.Errorf("the next holder did not wait: %v, %v", is.done, is.err)
		case <-time.After(50 * time.Millisecond):
		}
		close(thaw)
		if is := <-late; is.err != nil && !errors.Is(is.err, pawl.ErrLost) {
			f.Errorf("the late holder: %v, %v", is.done, is.err)
		}
		if is := <-next; is.err != nil || !is.done {
			f.Errorf("the next holder: %v, %v", is.done, is.err)
		}
		f.want(1)
	})
}

// TestWithoutTheGuard: the same freeze with a lock, a check and an update alone pays twice.
func TestWithoutTheGuard(t *testing.T) {
	each(t, func(f *fixture) {
		if f.marks.Dialect == dialect.SQLite || f.level == sql.LevelSerializable {
			return // there a transaction excludes others by itself
		}
		naive := func(c *pawl.Client, check sqlupdate.Check) error {
			return c.Mutex("order/42").Do(f.Context(), func(ctx context.Context) error {
				tx, err := f.db.BeginTx(ctx, &sql.TxOptions{Isolation: f.level})
				if err != nil {
					return err
				}
				defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
				if done, err := check(ctx, tx); done || err != nil {
					return err
				}
				if err := f.pay(ctx, tx); err != nil {
					return err
				}
				return tx.Commit()
			})
		}
		a, b := f.client(), f.client()
		checked, thaw, late := make(chan bool), make(chan bool), make(chan error)
		go func() {
			late <- naive(a, func(ctx context.Context, tx *sql.Tx) (bool, error) {
				done, err := f.paid(ctx, tx)
				checked <- done
				<-thaw
				return done, err
			})
		}()
		<-checked
		f.lose(b, b.Mutex("order/42"))
		if err := naive(b, f.paid); err != nil {
			f.Fatal(err)
		}
		close(thaw)
		<-late
		f.want(2)
	})
}

// TestErrors: an error of the update or of the check writes nothing, and neither does a panic.
func TestErrors(t *testing.T) {
	each(t, func(f *fixture) {
		c, broken := f.client(), errors.New("broken")
		lock := c.Mutex("order/42")
		fails := func(ctx context.Context, tx *sql.Tx) error { return errors.Join(f.pay(ctx, tx), broken) }
		if done, err := f.updater(f.db).Do(f.Context(), lock, f.paid, fails); done || !errors.Is(err, broken) {
			f.Errorf("%v, %v", done, err)
		}
		no := func(context.Context, *sql.Tx) (bool, error) { return true, broken }
		if done, err := f.updater(f.db).Do(f.Context(), lock, no, f.pay); done || !errors.Is(err, broken) {
			f.Errorf("%v, %v", done, err)
		}
		func() {
			defer func() {
				if recover() == nil {
					f.Error("it does not panic")
				}
			}()
			f.updater(f.db).Do(f.Context(), lock, f.paid, func(ctx context.Context, tx *sql.Tx) error { //nolint:errcheck // it panics
				if err := f.pay(ctx, tx); err != nil {
					return err
				}
				panic("broken")
			})
		}()
		f.want(0)
		if _, err := lock.TryLock(f.Context()); err != nil {
			f.Errorf("the lock is not free: %v", err)
		}
	})
}

// TestStripes: many callers of the same few keys, in 100 stripes, each pay once.
func TestStripes(t *testing.T) {
	each(t, func(f *fixture) {
		const keys, callers = 20, 4
		f.exec("CREATE TABLE paid_" + f.orders + " (id varchar(20) PRIMARY KEY)")
		f.Cleanup(func() { f.exec("DROP TABLE paid_" + f.orders) })
		clients := []*pawl.Client{f.client(), f.client()}
		f.db.SetMaxOpenConns(8)
		var group sync.WaitGroup
		var first atomic.Int64
		for i := range callers {
			stock := clients[i%2].Striped("stock", 100)
			group.Go(func() {
				for k := range keys {
					key := fmt.Sprint((k + 5*i) % keys)
					done, err := f.updater(f.db).Do(f.Context(), stock.For(key),
						func(ctx context.Context, tx *sql.Tx) (bool, error) {
							var n int
							err := tx.QueryRowContext(ctx, f.placeholder("SELECT count(*) FROM paid_"+f.orders+" WHERE id = ?"), key).Scan(&n)
							return n > 0, err
						},
						func(ctx context.Context, tx *sql.Tx) error {
							_, err := tx.ExecContext(ctx, f.placeholder("INSERT INTO paid_"+f.orders+" VALUES (?)"), key)
							return err
						})
					if err != nil {
						f.Error(err)
					} else if !done {
						first.Add(1)
					}
				}
			})
		}
		group.Wait()
		if first.Load() != keys {
			f.Errorf("%d of %d updates", first.Load(), keys)
		}
	})
}

func (f *fixture) placeholder(query string) string {
	if f.marks.Dialect == dialect.PostgreSQL {
		return strings.Replace(query, "?", "$1", 1)
	}
	return query
}

// until waits for a condition that has to come.
func (f *fixture) until(what string, is func() bool) {
	f.Helper()
	for giveUp := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(giveUp) {
			f.Fatalf("%s: not yet", what)
		}
	}
}
