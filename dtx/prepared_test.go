package dtx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

// otherProtocols: a branch that another protocol decides stays until it is finished, and no coordinator touches the branch.
func otherProtocols(t *testing.T) {
	b := newBank(t, [2]place{postgres(t, "postgres"), mariadb(t)})
	c := b.coordinator(t)
	before := b.sums(t)
	stem := fmt.Sprintf("other_%d-", time.Now().UnixNano())
	for i, r := range b.parts {
		work := func(ctx context.Context, db dialect.DB) error {
			_, err := db.ExecContext(ctx, fmt.Sprintf("UPDATE %s_%d SET n = n + 1 WHERE id = 0", b.table, i))
			return err
		}
		for _, commit := range []bool{true, false} {
			name := stem + fmt.Sprintf("%d_%v", i, commit)
			if err := r.Prepare(t.Context(), name, work); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Recover(t.Context()); err != nil {
				t.Error(err)
			}
			if all, err := r.Prepared(t.Context(), stem); err != nil || !slices.Equal(all, []string{name}) {
				t.Errorf("%s: %v, %v", name, all, err)
			}
			for range 2 {
				if err := r.Finish(t.Context(), name, commit); err != nil {
					t.Error(err)
				}
			}
		}
		enough := errors.New("enough")
		if err := r.Prepare(t.Context(), stem+"no", func(ctx context.Context, db dialect.DB) error { return errors.Join(work(ctx, db), enough) }); !errors.Is(err, enough) {
			t.Error(err)
		}
		for _, name := range []string{"", "a b", strings.Repeat("x", 65), "pawl-1-2-3-0"} {
			if err := r.Prepare(t.Context(), name, work); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%q: %v", name, err)
			}
		}
		if err := dtx.ReadOnly(r).Prepare(t.Context(), stem+"read", work); !errors.Is(err, pawl.ErrInvalid) {
			t.Error(err)
		}
		if all, err := r.Prepared(t.Context(), stem); err != nil || len(all) > 0 {
			t.Error(all, err)
		}
	}
	if after := b.sums(t); after != [2]int{before[0] + 1, before[1] + 1} {
		t.Errorf("%v, and before %v", after, before)
	}
}

// TestFlushed: a log in a database of SQLite that does not flush is refused, also in an attached one. Mode WAL does not flush by default. Attached databases
// that do not have the log are not judged.
func TestFlushed(t *testing.T) {
	t.Parallel()
	dir := filepath.ToSlash(t.TempDir())
	for i, c := range []struct{ source, prepare, refused string }{
		{"file:?", "", ""},
		{"file:?&_pragma=journal_mode(wal)", "", "main.synchronous"},
		{"file:?&_pragma=synchronous(off)", "", "main.synchronous"},
		{"file:?&_pragma=journal_mode(wal)&_pragma=synchronous(full)", "", ""},
		{"file:?&_pragma=journal_mode(memory)", "", "main.journal_mode"},
		{"file:?&_pragma=journal_mode(off)", "", "main.journal_mode"},
		{":memory:", "", "main.journal_mode"},
		{"file:?", "ATTACH ':memory:' AS scratch", ""},
		{"file:?", "ATTACH '?' AS aux", ""},
		{"file:?", "ATTACH '?' AS aux; PRAGMA aux.synchronous = off", "aux.synchronous"},
		{"file:?", "ATTACH ':memory:' AS aux", "aux.journal_mode"},
	} {
		db, err := sql.Open("sqlite3", strings.Replace(c.source, "?", fmt.Sprint(dir, "/log", i, "?_pragma=busy_timeout(20000)"), 1))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(1) // a database is attached to a connection
		if _, err := db.Exec(strings.Replace(c.prepare, "?", fmt.Sprint(dir, "/aux", i), 1)); err != nil {
			t.Fatal(err)
		}
		opts := &dtx.LogOptions{}
		if strings.HasPrefix(c.refused, "aux.") {
			opts.Table = "aux.pawl_dtx"
		}
		log, err := dtx.NewLog(dialect.SQLite, db, opts)
		if err == nil {
			err = log.Migrate(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, check := range []func(context.Context) error{log.Check, log.Resource("local").Check} {
			err := check(t.Context())
			if (c.refused == "") != (err == nil) || err != nil && (!errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(err.Error(), "the setting "+c.refused+" of SQLite")) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
}

// TestBinaryLog: InnoDB does not flush a commit whose binary log is not flushed. A database that only reads has nothing to flush.
func TestBinaryLog(t *testing.T) {
	t.Parallel()
	server := testservers.MariaDB(t, "--log-bin", "--sync-binlog=0")
	db := testservers.MariaDBPool(t, server.Addr)
	refused := func(db *sql.DB, setting string) {
		t.Helper()
		err := dtx.MySQL("bank", db).Check(t.Context())
		if !errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(err.Error(), "the setting "+setting+" of MySQL") {
			t.Error(err)
		}
		if err := dtx.ReadOnly(dtx.MySQL("bank", db)).Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	refused(db, "sync_binlog")
	if _, err := db.Exec("SET GLOBAL sync_binlog = 1"); err != nil {
		t.Fatal(err)
	}
	if err := dtx.MySQL("bank", db).Check(t.Context()); err != nil {
		t.Error(err)
	}
	manual := testservers.MariaDBPool(t, server.Addr, func(c *mysql.Config) { c.Params = map[string]string{"autocommit": "0"} })
	if err := dtx.MySQL("bank", manual).Check(t.Context()); err != nil { // a branch begins and commits explicitly
		t.Error(err)
	}
	tables, err := dtx.NewLog(dialect.MySQL, db, nil)
	if err == nil {
		err = tables.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	log, err := dtx.NewLog(dialect.MySQL, manual, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Check(t.Context()); !errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(err.Error(), "never committed") {
		t.Error(err)
	}
}
