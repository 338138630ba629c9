package dtx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

// fileLog returns a log in a file. Init is called with each connection.
func fileLog(t *testing.T, init func(*sqlite3.Conn) error) (*sql.DB, *dtx.Log) {
	t.Helper()
	file := filepath.ToSlash(filepath.Join(t.TempDir(), "log.db"))
	db, err := driver.Open("file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)", init)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	log, err := dtx.NewLog(dialect.SQLite, db, nil)
	if err == nil {
		err = log.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return db, log
}

func plain(*sqlite3.Conn) error { return nil }

// nothing is the function of a transaction without statements.
func nothing(context.Context, *dtx.Tx) error { return nil }

// TestUnknownResources: recovery lists no branches of a resource that prepares nothing where New has it. So Run prepares none there.
func TestUnknownResources(t *testing.T) {
	t.Parallel()
	db, log := fileLog(t, plain)
	local := log.Resource("local")
	for name, known := range map[string]*dtx.Resource{"of the log": local, "read-only": dtx.ReadOnly(local)} {
		c, err := dtx.New(t.Context(), log, []*dtx.Resource{known}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []*dtx.Resource{dtx.PostgreSQL("local", db), dtx.PostgreSQL("other", db), nil, dtx.ReadOnly(nil)} {
			var whole *dtx.Error
			if err := c.Run(t.Context(), nothing, r); !errors.Is(err, pawl.ErrInvalid) || errors.As(err, &whole) {
				t.Errorf("%s, run with %v: %v", name, r, err)
			}
		}
		for _, r := range []*dtx.Resource{local, dtx.ReadOnly(local)} {
			if err := c.Run(t.Context(), nothing, r); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := dtx.New(t.Context(), log, []*dtx.Resource{dtx.ReadOnly(nil)}, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}

// TestForeignLog: the branch of a log commits together with the decision. So a branch of another log's database is refused, by New and by Run.
func TestForeignLog(t *testing.T) {
	t.Parallel()
	_, log := fileLog(t, plain)
	db, other := fileLog(t, plain)
	if _, err := dtx.New(t.Context(), log, []*dtx.Resource{log.Resource("mine"), other.Resource("other")}, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	c, err := dtx.New(t.Context(), log, []*dtx.Resource{log.Resource("mine"), dtx.ReadOnly(other.Resource("other"))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context(), nothing, other.Resource("other")); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	mariadb, err := dtx.NewLog(dialect.MySQL, testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dtx.New(t.Context(), log, []*dtx.Resource{mariadb.Resource("other")}, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	var file string
	if err := db.QueryRow("SELECT file FROM pragma_database_list").Scan(&file); err != nil {
		t.Fatal(err)
	}
	pool, err := driver.Open("file:" + filepath.ToSlash(file) + "?_pragma=busy_timeout(60000)&_pragma=synchronous(full)")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for name, db := range map[string]*sql.DB{"the same pool": db, "another pool": pool} {
		again, err := dtx.NewLog(dialect.SQLite, db, nil) // the same log once more
		if err != nil {
			t.Fatal(err)
		}
		if c, err = dtx.New(t.Context(), other, []*dtx.Resource{again.Resource("other")}, nil); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := errors.Join(c.Run(t.Context(), nothing, again.Resource("other")), c.Close(t.Context())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLogOfAnAttachedDatabase: the pool of a resource has not attached the database with the log. An error of the file says nothing of the log.
func TestLogOfAnAttachedDatabase(t *testing.T) {
	t.Parallel()
	dir := filepath.ToSlash(t.TempDir())
	db, plainly := fileLog(t, func(c *sqlite3.Conn) error { return c.Exec("ATTACH '" + dir + "/books.db' AS books") })
	log, err := dtx.NewLog(dialect.SQLite, db, &dtx.LogOptions{Table: "books.pawl_dtx"})
	if err == nil {
		err = log.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	_, other := fileLog(t, plain)
	if _, err := dtx.New(t.Context(), log, []*dtx.Resource{other.Resource("other")}, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	missing, err := driver.Open("file:" + dir + "/none/log.db")
	if err != nil {
		t.Fatal(err)
	}
	defer missing.Close()
	away, err := dtx.NewLog(dialect.SQLite, missing, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dtx.New(t.Context(), plainly, []*dtx.Resource{away.Resource("away")}, nil); err == nil || errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}

// TestLogOfAnotherDefaultDatabase: the pool of a resource finds another table by the name of the log, or none.
func TestLogOfAnotherDefaultDatabase(t *testing.T) {
	t.Parallel()
	config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
	direct := testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr)
	table, elsewhere := fmt.Sprintf("log_%d", time.Now().UnixNano()), fmt.Sprintf("other_%d", time.Now().UnixNano())
	must(t, direct, "CREATE DATABASE "+elsewhere)
	defer must(t, direct, "DROP DATABASE "+elsewhere)
	log, err := dtx.NewLog(dialect.MySQL, direct, &dtx.LogOptions{Table: table})
	if err == nil {
		err = log.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	pool := testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr, func(c *mysql.Config) { c.DBName = elsewhere })
	other, err := dtx.NewLog(dialect.MySQL, pool, &dtx.LogOptions{Table: config.DBName + "." + table})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dtx.New(t.Context(), log, []*dtx.Resource{other.Resource("shop")}, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}

// TestCloseBesideRegister: Close waits for a transaction that is about to have a new row, and so deletes the row.
func TestCloseBesideRegister(t *testing.T) {
	t.Parallel()
	registers, open := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(registers) })
	db, log := fileLog(t, func(c *sqlite3.Conn) error {
		return c.CreateFunction("gate", 0, sqlite3.INNOCUOUS, func(sqlite3.Context, ...sqlite3.Value) { once(); <-open })
	})
	c, err := dtx.New(t.Context(), log, []*dtx.Resource{log.Resource("local")}, &dtx.Options{Lease: time.Second, Settle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{"CREATE TRIGGER gate BEFORE INSERT ON pawl_dtx BEGIN SELECT gate(); END", "UPDATE pawl_dtx SET fenced = 1 WHERE id > 0"} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	result, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		err := dtx.ErrAborted
		for errors.Is(err, dtx.ErrAborted) { // until a beat has learnt of the fence
			err = c.Run(t.Context(), func(context.Context, *dtx.Tx) error { return errors.New("enough") }) // a commit would leave work for the log
		}
		result <- err
	}()
	<-registers
	go func() { closed <- c.Close(t.Context()) }()
	select {
	case err := <-closed:
		t.Errorf("Close did not wait: %v", err)
		closed <- err
	case <-time.After(time.Second):
	}
	close(open)
	if err := <-result; !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("a transaction beside Close: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pawl_dtx WHERE id > 0 AND fenced = 0").Scan(&n); err != nil || n != 0 {
		t.Errorf("after Close the log has %d rows: %v", n, err)
	}
}
