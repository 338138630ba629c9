package pgxtx_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/sqltest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// both are the shared server with transactions of database/sql and then with those of pgx.
func both(t *testing.T, more string) []sqltest.Database {
	d := sqltest.Postgres(t, more)
	return []sqltest.Database{d, d.WithPgx()}
}

func begin(t *testing.T, d sqltest.Database, db *sql.DB) sqltest.Tx {
	t.Helper()
	tx, err := d.Begin(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() }) //nolint:errcheck // it may have ended
	return tx
}

// Values of all types come out of both clients as the same Go values, in every way to send.
func TestValuesAreThoseOfTheStandardClient(t *testing.T) {
	const query = `SELECT true, 1::int2, -2::int4, 3::int8, 4::oid, 1.5::float4, -2.5::float8, 'é', 'v'::varchar, '\x00ff'::bytea, 12.340::numeric,
		'00000000-0000-0000-0000-00000000000a'::uuid, '{"a": 1}'::json, '{"a":  1}'::jsonb, '2024-02-29'::date, '2024-02-29 10:11:12.5'::timestamp,
		'2024-02-29 10:11:12Z'::timestamptz, '1 day'::interval, '{1,2}'::int[], 'infinity'::timestamp, 'c'::"char", 'pg_class'::regclass, '<a/>'::xml,
		NULL::int8, NULL::text, NULL::bytea FROM generate_series(1, 2) WHERE 7 = $1`
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			var want [][]any
			for _, d := range both(t, "&default_query_exec_mode="+mode) {
				rows, err := begin(t, d, d.Opened(t)).QueryContext(t.Context(), query, 7)
				if err != nil {
					t.Fatal(err)
				}
				columns, err := rows.Columns()
				if err != nil {
					t.Fatal(err)
				}
				var is [][]any
				for rows.Next() {
					row, targets := make([]any, len(columns)), make([]any, len(columns))
					for i := range row {
						targets[i] = &row[i]
					}
					if err := rows.Scan(targets...); err != nil {
						t.Fatal(err)
					}
					is = append(is, row)
				}
				if err := rows.Err(); err != nil || len(is) != 2 || columns[1] != "int2" {
					t.Error(len(is), columns, err)
				}
				if want == nil {
					want = is
				}
				for i := range want[0] {
					if !reflect.DeepEqual(is[1][i], want[1][i]) {
						t.Errorf("column %d: %T %#v, want %T %#v", i, is[1][i], is[1][i], want[1][i], want[1][i])
					}
				}
			}
		})
	}
}

// classes are what package dialect says of an error.
type classes struct{ again, duplicate, timeout, readOnly, lost, done, none, ended bool }

func classesOf(err error) classes {
	return classes{dialect.Again(err), dialect.Duplicate(err), dialect.LockTimeout(err), dialect.ReadOnly(err), dialect.Lost(err),
		errors.Is(err, sql.ErrTxDone), errors.Is(err, sql.ErrNoRows), errors.Is(err, context.Canceled)}
}

// An error has the same classes with both clients, as the answer to a statement and to a query.
func TestErrorsHaveTheSameClasses(t *testing.T) {
	for _, d := range both(t, "") {
		t.Run(d.Name, func(t *testing.T) {
			d := d.At(sql.LevelRepeatableRead)
			db, table := d.Opened(t), sqltest.NewName("things")
			d.Run(t, db, "CREATE TABLE "+table+" (id bigint PRIMARY KEY, n bigint)")
			t.Cleanup(func() { d.Run(t, db, "DROP TABLE "+table) })
			d.Run(t, db, "INSERT INTO "+table+" VALUES (1, 1), (2, 2)")
			var held sqltest.Tx
			holder := func() sqltest.Tx { held = begin(t, d, db); return held }
			update := "UPDATE " + table + " SET n = n + 1 WHERE id = 1 RETURNING n"
			for name, c := range map[string]struct {
				before func(tx sqltest.Tx)
				query  string
				want   classes
			}{
				"duplicate": {nil, "INSERT INTO " + table + " VALUES (1, 1) RETURNING n", classes{duplicate: true}},
				"serialization failure": {func(tx sqltest.Tx) {
					d.Number(t, tx, "SELECT n FROM "+table+" WHERE id = 1")
					d.Run(t, db, update)
				}, update, classes{again: true}},
				"lock timeout": {func(tx sqltest.Tx) {
					d.Run(t, tx, "SET LOCAL lock_timeout = '20ms'")
					d.Run(t, holder(), update)
				}, update, classes{timeout: true}},
				"read only":        {func(tx sqltest.Tx) { d.Run(t, tx, "SET TRANSACTION READ ONLY") }, update, classes{readOnly: true}},
				"ended connection": {nil, "SELECT CASE WHEN pg_terminate_backend(pg_backend_pid()) THEN (SELECT 1 FROM pg_sleep(9)) END", classes{lost: true}},
				"lost connection": {func(tx sqltest.Tx) {
					d.Exec(t.Context(), tx, "SELECT pg_terminate_backend(pg_backend_pid())") //nolint:errcheck // it is the end
				}, update, classes{lost: true}},
				"committed":   {func(tx sqltest.Tx) { tx.Commit() }, update, classes{done: true}},   //nolint:errcheck // that is not asked here
				"rolled back": {func(tx sqltest.Tx) { tx.Rollback() }, update, classes{done: true}}, //nolint:errcheck // as above
				"no row":      {nil, "SELECT n FROM " + table + " WHERE id = 9", classes{none: true}},
				"a mistake":   {nil, "nonsense", classes{}},
			} {
				for _, way := range []string{"query", "statement"} {
					tx, want, n := begin(t, d, db), c.want, 0
					if c.before != nil {
						c.before(tx)
					}
					var err error
					if way == "query" {
						err = dialect.New(d.Dialect).Add(c.query).Scan(t.Context(), tx, &n)
					} else {
						want.none, err = false, d.Exec(t.Context(), tx, c.query)
					}
					if is := classesOf(err); is != want || err == nil && !c.want.none {
						t.Errorf("%s, %s: %+v, want %+v: %v", name, way, is, want, err)
					}
					tx.Rollback() //nolint:errcheck // it may have ended
					if held != nil {
						held.Rollback() //nolint:errcheck // as above
					}
				}
			}
		})
	}
}

// A statement whose ctx ends says so.
func TestTheEndOfACtx(t *testing.T) {
	for _, d := range both(t, "") {
		t.Run(d.Name, func(t *testing.T) {
			db := d.Opened(t)
			tx := begin(t, d, db)
			pid := d.Number(t, tx, "SELECT pg_backend_pid()")
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() { failed <- dialect.New(d.Dialect).Add("SELECT 1 FROM pg_sleep(60)").Scan(ctx, tx, new(int)) }()
			for d.Number(t, db, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = ?", pid) == 0 {
				time.Sleep(5 * time.Millisecond)
			}
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// batched begins a transaction of pgx whose statements have a command behind them.
func batched(t *testing.T, after string) (d sqltest.Database, tx sqltest.Tx, db dialect.DB) {
	t.Helper()
	d = sqltest.Postgres(t, "").WithPgx()
	tx = begin(t, d, d.Opened(t))
	return d, tx, tx.(dialect.Batcher).Batch(after)
}

// The command of a batch runs after the statement. The first failure is the error, also of a query whose
// rows were not read.
func TestBatch(t *testing.T) {
	const after = "SET LOCAL pawl.a = '2'"
	is := func(d sqltest.Database, tx dialect.DB) int64 {
		return d.Number(t, tx, "SELECT coalesce(nullif(current_setting('pawl.a', true), ''), '1')::bigint")
	}
	d, tx, db := batched(t, after)
	if n := is(d, db); n != 1 {
		t.Error("in the statement:", n)
	}
	if n := is(d, tx); n != 2 {
		t.Error("after a query:", n)
	}
	d, tx, db = batched(t, after)
	if err := d.Exec(t.Context(), db, "SELECT 1"); err != nil {
		t.Error(err)
	}
	if n := is(d, tx); n != 2 {
		t.Error("after a statement:", n)
	}
	for _, c := range []struct{ query, after string }{{"nonsense", after}, {"SELECT 1", "nonsense"},
		{"SELECT 1/0 FROM generate_series(1, 2)", after}, {"SELECT 1 FROM generate_series(1, 9)", "nonsense"}} {
		_, tx, db := batched(t, c.after)
		if err := dialect.New(dialect.PostgreSQL).Add(c.query).Scan(t.Context(), db, new(int)); err == nil || dialect.Lost(err) {
			t.Errorf("query %+v: %v", c, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Errorf("query %+v: %v", c, err)
		}
		d, tx, db = batched(t, c.after)
		if err := d.Exec(t.Context(), db, c.query); err == nil || dialect.Lost(err) {
			t.Errorf("statement %+v: %v", c, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Errorf("statement %+v: %v", c, err)
		}
	}
}

// Rows that were left unread are in nobody's way once they are closed, and a late error is not missed.
func TestRowsAreClosed(t *testing.T) {
	for _, d := range both(t, "") {
		t.Run(d.Name, func(t *testing.T) {
			tx := begin(t, d, d.Opened(t))
			for range 3 {
				rows, err := tx.QueryContext(t.Context(), "SELECT n FROM generate_series(1, 100000) AS n")
				if err != nil {
					t.Fatal(err)
				}
				if !rows.Next() {
					t.Error(rows.Err())
				}
				if err := rows.Close(); err != nil {
					t.Error(err)
				}
			}
			rows, err := tx.QueryContext(t.Context(), "SELECT 1 / (3000 - n) FROM generate_series(1, 5000) AS n")
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for rows.Next() {
				n++
			}
			if rows.Err() == nil || n != 2999 {
				t.Error(n, rows.Err())
			}
		})
	}
}

// BenchmarkQuery shows the cost of a query beside its round trip.
func BenchmarkQuery(b *testing.B) {
	for _, d := range []sqltest.Database{sqltest.Postgres(b, ""), sqltest.Postgres(b, "").WithPgx()} {
		b.Run(d.Name, func(b *testing.B) {
			tx, err := d.Begin(b.Context(), d.Opened(b))
			if err != nil {
				b.Fatal(err)
			}
			defer tx.Rollback() //nolint:errcheck // nothing is lost
			b.ReportAllocs()
			for b.Loop() {
				d.Number(b, tx, "SELECT 1::bigint")
			}
		})
	}
}
