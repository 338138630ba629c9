package sqlmark_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/sqlmark"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestRegisters(t *testing.T) {
	each(t, func(t *testing.T, all []id.Registers, _ *sql.DB) {
		if err := idtest.Contract(t.Context(), "ids", all...); err != nil {
			t.Error(err)
		}
	})
}

// The same checks find a counter wrong that writes without a version.
func TestNaiveCounterIsFoundWrong(t *testing.T) {
	each(t, func(t *testing.T, all []id.Registers, _ *sql.DB) {
		var naive []id.Counter
		for _, r := range all {
			naive = append(naive, idtest.NaiveCounter(r.Mark("naive")))
		}
		for try := 1; ; try++ { // that two do it at the same time is likely, not certain
			n, err := idtest.Count(t.Context(), 4, 40, naive...)
			if err != nil && strings.Contains(err.Error(), "twice") {
				break
			}
			if try == 10 {
				t.Fatalf("%d numbers: %v", n, err)
			}
		}
	})
}

// The server is killed at any time. A number that was acknowledged is never handed out again,
// neither by a counter nor by a mark that is raised before its use.
func TestOverKills(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (dialect.Dialect, *testservers.Server, func() *sql.DB){
		"PostgreSQL": func(t *testing.T) (dialect.Dialect, *testservers.Server, func() *sql.DB) {
			s := testservers.Postgres(t)
			return dialect.PostgreSQL, s, func() *sql.DB { return postgres(t, s.Addr, pgx.QueryExecModeExec, "synchronous_commit", "off") }
		},
		"MariaDB": func(t *testing.T) (dialect.Dialect, *testservers.Server, func() *sql.DB) {
			s := testservers.MariaDB(t)
			return dialect.MySQL, s, func() *sql.DB { return mariadb(t, s.Addr, func(*mysql.Config) {}) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, server, open := start(t)
			if err := registers(t, open(), d, "marks").Create(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var byCounter, byMark idtest.Checker[int64]
			var counted, marked atomic.Int64
			var group sync.WaitGroup
			for range 3 {
				r := registers(t, open(), d, "marks")
				group.Go(func() { countOn(ctx, r.Counter("it"), byCounter.Log(), &counted) })
				group.Go(func() { countOn(ctx, id.CounterOf(r.Mark("it")), byMark.Log(), &marked) })
			}
			for kills := 0; kills < 8 || kills < 100 && min(counted.Load(), marked.Load()) < 100; kills++ {
				pause(t, time.Duration(50+rand.IntN(100))*time.Millisecond)
				server.Kill()
				server.Restart()
			}
			pause(t, 50*time.Millisecond)
			stop()
			group.Wait()
			for kind, check := range map[string]*idtest.Checker[int64]{"counter": &byCounter, "mark": &byMark} {
				if n, err := check.Check(); err != nil || n < 100 {
					t.Errorf("%s: %d numbers: %v", kind, n, err)
				} else {
					t.Logf("%s: %d numbers", kind, n)
				}
			}
		})
	}
}

// countOn counts until ctx ends, whatever errors come.
func countOn(ctx context.Context, counter id.Counter, log *idtest.Log[int64], n *atomic.Int64) {
	for ctx.Err() == nil {
		if last, err := counter.Add(ctx, 1); err == nil {
			log.Add(last)
			n.Add(1)
		}
	}
}

// pause lets others work for a while.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal("the test ended")
	}
}

func refused(t *testing.T, d dialect.Dialect, db *sql.DB, class error, why string) {
	t.Helper()
	r := registers(t, db, d, newTable())
	if err := r.Create(t.Context()); !errors.Is(err, class) || !strings.Contains(err.Error(), why) {
		t.Errorf("create: %v; it should say %q", err, why)
	}
	if _, err := r.Counter("it").Add(t.Context(), 1); err == nil {
		t.Error("it counts")
	}
}

// A database that may lose what it acknowledged is refused by the name of the setting, before
// anything is written.
func TestRefusesToForget(t *testing.T) {
	t.Run("PostgreSQL without fsync", func(t *testing.T) {
		s := testservers.Postgres(t, "-c", "fsync=off")
		refused(t, dialect.PostgreSQL, postgres(t, s.Addr, pgx.QueryExecModeExec), pawl.ErrUnsupported, "fsync = off")
	})
	t.Run("PostgreSQL, read only", func(t *testing.T) {
		db := postgres(t, testservers.SharedPostgres(t).Addr, pgx.QueryExecModeExec, "default_transaction_read_only", "on")
		refused(t, dialect.PostgreSQL, db, pawl.ErrUnavailable, "default_transaction_read_only")
	})
	t.Run("SQLite in memory", func(t *testing.T) {
		for source, why := range map[string]string{":memory:": "in memory", "file:x?mode=memory&cache=shared": "in memory",
			"file:" + filepath.Join(t.TempDir(), "x.db") + "?_pragma=journal_mode(off)": "journal_mode = off"} {
			db, err := sql.Open("sqlite3", source)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
			refused(t, dialect.SQLite, bounded(db), pawl.ErrUnsupported, why)
		}
	})
	t.Run("SQLite, read only", func(t *testing.T) {
		refused(t, dialect.SQLite, sqlite(t, filepath.Join(t.TempDir(), "x.db"), "&_pragma=query_only(on)"), pawl.ErrUnavailable, "query_only")
	})
}

// The setting may also change later.
func TestRefusesToForgetLater(t *testing.T) {
	t.Run("MariaDB", func(t *testing.T) {
		s := testservers.MariaDB(t, "--log-bin", "--sync-binlog=1")
		db := mariadb(t, s.Addr, func(*mysql.Config) {})
		r := registers(t, db, dialect.MySQL, "marks")
		if err := r.Create(t.Context()); err != nil {
			t.Fatal(err)
		}
		for set, class := range map[string]error{"innodb_flush_log_at_trx_commit = 2": pawl.ErrUnsupported, "innodb_flush_log_at_trx_commit = 0": pawl.ErrUnsupported,
			"sync_binlog = 0": pawl.ErrUnsupported, "sync_binlog = 5": pawl.ErrUnsupported, "read_only = 1": pawl.ErrUnavailable} {
			exec(t, db, "SET GLOBAL "+set)
			losesIt(t, r, class, set)
			refused(t, dialect.MySQL, db, class, set)
			name, _, _ := strings.Cut(set, " ")
			exec(t, db, "SET GLOBAL "+name+" = "+map[string]string{"read_only": "0"}[name]+map[string]string{"sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1"}[name])
		}
		manual := mariadb(t, s.Addr, func(c *mysql.Config) { c.Params = map[string]string{"autocommit": "0"} })
		refused(t, dialect.MySQL, manual, pawl.ErrUnsupported, "autocommit = 0")
		if last, err := r.Counter("it").Add(t.Context(), 1); err != nil || last != 1 {
			t.Errorf("in the end %d, %v", last, err)
		}
	})
	t.Run("PostgreSQL, a table that became unlogged", func(t *testing.T) {
		db := postgres(t, testservers.SharedPostgres(t).Addr, pgx.QueryExecModeExec)
		r := registers(t, db, dialect.PostgreSQL, strings.ToLower(newTable()))
		if err := r.Create(t.Context()); err != nil {
			t.Fatal(err)
		}
		table := strings.Fields(r.Schema())[5]
		exec(t, db, "ALTER TABLE "+table+" SET UNLOGGED")
		losesIt(t, r, pawl.ErrUnsupported, "unlogged")
		exec(t, db, "DROP TABLE "+table)
	})
}

// losesIt asks for all verbs, each of which has to be refused though they were used before.
func losesIt(t *testing.T, r *sqlmark.Registers, class error, why string) {
	t.Helper()
	_, adding := r.Counter("it").Add(t.Context(), 1)
	_, loading := r.Mark("it").Load(t.Context())
	_, raising := r.Mark("it").Raise(t.Context(), 5, id.Reading{})
	for verb, err := range map[string]error{"add": adding, "load": loading, "raise": raising} {
		if !errors.Is(err, class) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v; it should say %q", verb, err, why)
		}
	}
}

// A replica is unavailable, because its marks may be old.
func TestReplicaIsUnavailable(t *testing.T) {
	primary := testservers.PostgresPrimary(t)
	on := registers(t, postgres(t, primary.Addr, pgx.QueryExecModeExec), dialect.PostgreSQL, "marks")
	if err := on.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := on.Counter("it").Add(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	replica := testservers.PostgresReplica(t, primary)
	there := registers(t, postgres(t, replica.Addr, pgx.QueryExecModeExec), dialect.PostgreSQL, "marks")
	losesIt(t, there, pawl.ErrUnavailable, "replica")
}

// A flush that the session has turned off is on during the write, and off again afterwards.
func TestSessionIsLeftAsItWas(t *testing.T) {
	db := sqlite(t, filepath.Join(t.TempDir(), "x.db"), "&_pragma=synchronous(normal)")
	db.SetMaxOpenConns(1)
	r := registers(t, db, dialect.SQLite, "marks")
	if err := r.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Counter("it").Add(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	var is int
	if err := db.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&is); err != nil || is != 1 {
		t.Errorf("synchronous is %d, %v", is, err)
	}
	// A server of its own, because the log of a shared server grows between the statement and the look.
	pg := postgres(t, testservers.Postgres(t).Addr, pgx.QueryExecModeExec, "synchronous_commit", "off")
	pg.SetMaxOpenConns(1)
	r = registers(t, pg, dialect.PostgreSQL, "marks")
	if err := r.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	const looks = 20
	unflushed := func(write func()) (n int) {
		for range looks {
			write()
			var flushed bool
			var after string
			const look = "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn(), current_setting('synchronous_commit')"
			if err := pg.QueryRowContext(t.Context(), look).Scan(&flushed, &after); err != nil || after != "off" {
				t.Errorf("synchronous_commit = %s, %v", after, err)
			}
			if !flushed {
				n++
			}
		}
		return n
	}
	adds := func() {
		if _, err := r.Counter("it").Add(t.Context(), 1); err != nil {
			t.Error(err)
		}
	}
	if n := unflushed(adds); n > looks/10 { // the server itself writes now and then
		t.Errorf("%d of %d were not flushed", n, looks)
	}
	if n := unflushed(func() { exec(t, pg, "UPDATE marks SET n = n + 1") }); n < looks/2 {
		t.Errorf("a naive write: only %d of %d were not flushed", n, looks)
	}
}

// TestAttached: the flush of an attached SQLite database is that of its own file, whatever the main one does.
func TestAttached(t *testing.T) {
	folder := t.TempDir()
	db := sqlite(t, filepath.Join(folder, "main.db"), "")
	db.SetMaxOpenConns(1)
	exec(t, db, "ATTACH '"+filepath.Join(folder, "aux.db")+"' AS aux")
	r := registers(t, db, dialect.SQLite, "aux.marks")
	if err := r.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	const look = "SELECT synchronous FROM pragma_synchronous WHERE schema = "
	exec(t, db, "CREATE TEMP TABLE seen (main, aux)")
	exec(t, db, "CREATE TEMP TRIGGER sees AFTER UPDATE ON aux.marks BEGIN INSERT INTO seen SELECT ("+look+"'main'), ("+look+"'aux'); END")
	exec(t, db, "PRAGMA main.synchronous = OFF")
	for before, name := range []string{"OFF", "NORMAL", "FULL", "EXTRA"} {
		exec(t, db, "DELETE FROM seen")
		exec(t, db, "PRAGMA aux.synchronous = "+name)
		if _, err := r.Counter("it").Add(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		var main, aux, after int
		err := db.QueryRowContext(t.Context(), "SELECT max(main), min(aux), ("+look+"'aux') FROM seen").Scan(&main, &aux, &after)
		if err != nil || main != 0 || aux != max(before, 2) || after != before {
			t.Errorf("aux.synchronous = %s: %d in the write and %d after it, beside %d of main, %v", name, aux, after, main, err)
		}
	}
}

// A wrong shape, a missing table, a bad name and a number of another program: one clear
// error each.
func TestBadInput(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db, table := d.open(t), strings.ToLower(newTable())
			r := registers(t, db, d.dialect, table)
			if _, err := r.Counter("it").Add(t.Context(), 1); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "no such table") {
				t.Errorf("a missing table: %v", err)
			}
			exec(t, db, "CREATE TABLE "+table+" (name varchar(20) NOT NULL PRIMARY KEY, n bigint NOT NULL, version bigint NOT NULL)")
			_, using := r.Mark("it").Load(t.Context())
			for _, err := range []error{using, r.Create(t.Context())} {
				if !errors.Is(err, pawl.ErrMismatch) || !strings.Contains(err.Error(), table+" has another shape: column name is varchar") &&
					!strings.Contains(err.Error(), table+" has another shape: column name is character varying") {
					t.Errorf("another shape: %v", err)
				}
			}
			exec(t, db, "DROP TABLE "+table)
			exec(t, db, r.Schema())
			defer exec(t, db, "DROP TABLE "+table)
			exec(t, db, "INSERT INTO "+table+" (name, n, version) VALUES ('mark/it', -5, 1), ('counter/it', -5, 1)")
			_, loading := r.Mark("it").Load(t.Context())
			_, adding := r.Counter("it").Add(t.Context(), 1)
			for _, err := range []error{loading, adding} {
				if err == nil || !strings.Contains(err.Error(), "another program") {
					t.Error(err)
				}
			}
		})
	}
	for table, d := range map[string]dialect.Dialect{"a b": dialect.MySQL, `a"b`: dialect.PostgreSQL, "a;": dialect.SQLite, "good": 7} {
		if _, err := sqlmark.New(nil, d, &sqlmark.Options{Table: table}); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q: %v", table, err)
		}
	}
}
