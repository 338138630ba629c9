package sequence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id/sequence"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

const connections = 4 // of a process to a database

func postgres(t testing.TB, addr string) sequence.Database {
	t.Helper()
	db := testservers.PostgresPool(t, addr, func(c *pgx.ConnConfig) {
		c.RuntimeParams["synchronous_commit"] = "off" // which must not matter
	})
	db.SetMaxOpenConns(connections)
	return sequence.Database{DB: db, Dialect: dialect.PostgreSQL}
}

func mariadb(t testing.TB, addr string) sequence.Database {
	t.Helper()
	db := testservers.MariaDBPool(t, addr)
	db.SetMaxOpenConns(connections)
	return sequence.Database{DB: db, Dialect: dialect.MySQL}
}

func sqlite(t testing.TB, file string) sequence.Database {
	t.Helper()
	_, err := os.Stat(file)
	db, opening := sql.Open("sqlite3", "file:"+filepath.ToSlash(file)+"?_pragma=busy_timeout(1000)")
	if opening != nil {
		t.Fatal(opening)
	}
	if err != nil { // which SQLite lets one connection do only
		exec(t, sequence.Database{DB: db}, "PRAGMA journal_mode = wal")
	}
	db.SetMaxOpenConns(connections)
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	return sequence.Database{DB: db, Dialect: dialect.SQLite}
}

// three opens one database of each kind, as a process of its own does.
func three(t testing.TB) func() []sequence.Database {
	pg, my, file := testservers.SharedPostgres(t).Addr, testservers.SharedMariaDB(t).Addr, filepath.Join(t.TempDir(), "ids.db")
	return func() []sequence.Database {
		return []sequence.Database{postgres(t, pg), mariadb(t, my), sqlite(t, file)}
	}
}

// files opens some files, which are enough where the kind does not matter.
func files(t testing.TB, n int) func() []sequence.Database {
	dir := t.TempDir()
	return func() (all []sequence.Database) {
		for i := range n {
			all = append(all, sqlite(t, filepath.Join(dir, fmt.Sprint(i, ".db"))))
		}
		return all
	}
}

var names atomic.Int64

// newTable is a table that no other test has.
func newTable() string { return fmt.Sprintf("seq_%d_%d", time.Now().UnixNano(), names.Add(1)) }

// patience is long enough for a machine that is busy.
const patience = 4 * time.Second

func open(t testing.TB, databases []sequence.Database, opts sequence.Options) *sequence.Sequence {
	t.Helper()
	s, err := try(t, databases, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func try(t testing.TB, databases []sequence.Database, opts sequence.Options) (*sequence.Sequence, error) {
	t.Helper()
	if opts.Timeout == 0 {
		opts.Timeout = patience
	}
	s, err := sequence.New(t.Context(), databases, "orders", &opts)
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return s, err
}

func next(t testing.TB, s *sequence.Sequence) int64 {
	t.Helper()
	n, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func exec(t testing.TB, d sequence.Database, query string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := d.DB.ExecContext(ctx, query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not soon: " + what)
		}
	}
}

func unavailable(err error) bool {
	return errors.Is(err, pawl.ErrUnavailable) && !errors.Is(err, pawl.ErrMismatch) && !errors.Is(err, pawl.ErrInvalid)
}
