package halfmsg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/internal/batches"
)

// cleaned runs the cleaning of so many minutes on a PostgreSQL with 1,000 old half messages, whose trigger runs at each DELETE. The error is the
// first of a minute.
func cleaned(t *testing.T, minutes int, trigger string) (left int, refused error) {
	t.Helper()
	c := newCoordinator(t, dialect.PostgreSQL, "pgx", testservers.PostgresURL(testservers.Postgres(t).Addr))
	db := c.db
	for _, query := range []string{
		"INSERT INTO half (id, producer, state, asks, due, created, changed, messages, reason) SELECT 'h' || 1000 + n, 'shop', 1, 0, 0, 0, 0, '[]', '' FROM generate_series(1, 1000) AS n",
		"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN " + trigger + " RETURN NULL; END'",
		"CREATE TRIGGER slow AFTER DELETE ON half FOR EACH ROW EXECUTE FUNCTION slow()",
	} {
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	deleter, w := batches.Deleter{Bound: time.Second}, walk{state: Submitted}
	for range minutes {
		if err := (&run{Coordinator: c}).removeOld(ctx, &deleter, &w); refused == nil {
			refused = err
		}
	}
	if ctx.Err() != nil {
		t.Fatal("the cleaning does not end")
	}
	if err := db.QueryRow("SELECT COUNT(*) FROM half").Scan(&left); err != nil {
		t.Fatal(err)
	}
	return left, refused
}

// A DELETE of 1,000 half messages takes longer than Timeout, because the half messages are large. All are deleted by smaller statements, except three
// that the database refuses to delete. The error tells of the refusal.
func TestOldHalfMessagesThatTakeLongToDelete(t *testing.T) {
	t.Parallel()
	left, err := cleaned(t, 1, "PERFORM pg_sleep(0.002); IF OLD.id IN (''h1001'', ''h1500'', ''h2000'') THEN RAISE ''has an invoice''; END IF;")
	if left != 3 || err == nil || !strings.Contains(err.Error(), "has an invoice") {
		t.Errorf("%d half messages are left, %v", left, err)
	}
}

// The database refuses each DELETE. The cleaning ends, and tells so.
func TestNoHalfMessageCanBeDeleted(t *testing.T) {
	t.Parallel()
	if left, err := cleaned(t, 1, "RAISE ''has an invoice'';"); left != 1000 || err == nil || !strings.Contains(err.Error(), "has an invoice") {
		t.Errorf("%d half messages are left, %v", left, err)
	}
}

// The database refuses the first 30 half messages. The next minute goes on behind the first 20, so the others are deleted.
func TestManyRefusedHalfMessages(t *testing.T) {
	t.Parallel()
	left, err := cleaned(t, 2, "IF OLD.id <= ''h1030'' THEN RAISE ''has an invoice''; END IF;")
	if left != 30 || err == nil || !strings.Contains(err.Error(), "has an invoice") {
		t.Errorf("%d half messages are left, %v", left, err)
	}
}

// The cleaning reads no half messages that are young: there may be millions of them, and the cleaning comes each minute.
func TestCleanReadsNoYoungHalfMessages(t *testing.T) {
	t.Parallel()
	db := testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr)
	db.SetMaxOpenConns(1) // because the server counts for each connection
	box, err := outbox.New(dialect.MySQL, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(dialect.MySQL, db, box, &Options{Table: fmt.Sprint("half_", time.Now().UnixNano())})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const young = 5000
	insert := "INSERT INTO " + c.table.Name + " (id, producer, state, asks, due, created, changed, messages, reason) "
	for _, query := range []string{
		insert + "SELECT CONCAT('young', seq), 'shop', 1, 0, UNIX_TIMESTAMP() + 10, 0, UNIX_TIMESTAMP(), '[]', '' FROM seq_1_to_" + fmt.Sprint(young),
		insert + "SELECT CONCAT('old', seq), 'shop', 1, 0, 10, 0, 0, '[]', '' FROM seq_1_to_20",
		"ANALYZE TABLE " + c.table.Name,
	} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	before := rowsRead(t, db)
	if err := (&run{Coordinator: c}).removeOld(t.Context(), &batches.Deleter{Bound: time.Minute}, &walk{state: Submitted}); err != nil {
		t.Fatal(err)
	}
	read, left := rowsRead(t, db)-before, 0
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+c.table.Name).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if read > young/10 || left != young {
		t.Errorf("%d rows were read, %d half messages are left", read, left)
	}
}

// The same on PostgreSQL, which uses no index for a time that goes on.
func TestCleanFindsOldHalfMessagesByTheIndex(t *testing.T) {
	t.Parallel()
	c := newCoordinator(t, dialect.PostgreSQL, "pgx", testservers.PostgresURL(testservers.Postgres(t).Addr))
	insert := "INSERT INTO half (id, producer, state, asks, due, created, changed, messages, reason) "
	for _, query := range []string{
		insert + "SELECT 'young' || n, 'shop', 1, 0, extract(epoch FROM now()) + 10, 0, extract(epoch FROM now()), '[]', '' FROM generate_series(1, 5000) AS n",
		insert + "SELECT 'old' || n, 'shop', 1, 0, 10, 0, 0, '[]', '' FROM generate_series(1, 20) AS n",
		"ANALYZE half",
	} {
		if _, err := c.db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	query, args, err := (&run{Coordinator: c}).find(&walk{state: Submitted}).Build()
	if err != nil {
		t.Fatal(err)
	}
	rows, err := c.db.QueryContext(t.Context(), "EXPLAIN (ANALYZE) "+query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	plan := ""
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		plan += line + "\n"
	}
	if !regexp.MustCompile("Index Cond: .*due <= ").MatchString(plan) {
		t.Error(plan)
	}
}

// A walk that cannot read begins anew in the next minute. Half messages that had been refused, or whose submission came late, lay before it for ever.
func TestAWalkThatFailsBeginsAnew(t *testing.T) {
	t.Parallel()
	c := newCoordinator(t, dialect.SQLite, "sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")))
	if _, err := c.db.Exec("INSERT INTO half (id, producer, state, asks, due, created, changed, messages, reason) VALUES ('h', 'shop', 1, 0, 10, 0, 0, x'5b5d', '')"); err != nil {
		t.Fatal(err)
	}
	r, deleter, w := &run{Coordinator: c}, batches.Deleter{Bound: time.Minute}, walk{state: Submitted, last: place{100, "x"}}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := r.removeOld(ended, &deleter, &w); err == nil {
		t.Error("a ctx that has ended is no error")
	}
	left := -1
	if err := r.removeOld(t.Context(), &deleter, &w); err != nil {
		t.Error(err)
	}
	if err := c.db.QueryRow("SELECT COUNT(*) FROM half").Scan(&left); err != nil || left != 0 {
		t.Error(left, err)
	}
}

// newCoordinator returns a coordinator whose table "half" is empty.
func newCoordinator(t *testing.T, d dialect.Dialect, driver, source string) *Coordinator {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	box, err := outbox.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(d, db, box, &Options{Table: "half", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// rowsRead is how many rows statements of the only connection of MariaDB have read.
func rowsRead(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), "SELECT SUM(variable_value) FROM information_schema.session_status WHERE variable_name IN ('Handler_read_next', 'Handler_read_rnd_next', 'Handler_read_key')").Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Another process has asked about a half message of a producer who does not answer. This process learns nothing of that producer, and
// waits for as long as before after the next failure.
func TestAQuestionOfAnotherProcess(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	box, err := outbox.New(dialect.SQLite, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(dialect.SQLite, db, box, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(box.Migrate(t.Context(), db), c.Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	id, err := c.Prepare(t.Context(), "shop", outbox.Message{Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("UPDATE pawl_half SET asks = 1"); err != nil {
		t.Fatal(err)
	}
	r := &run{Coordinator: c, busy: make(map[string]int), away: map[string]rest{"shop": {time.Now(), 5}}, locked: make(map[string]rest), done: make(chan struct{}, 1)}
	if err := r.begins(t.Context(), []Entry{{ID: id, Producer: "shop"}}); err != nil {
		t.Fatal(err)
	}
	if r.away["shop"].tries != 5 || r.all != 0 || len(r.busy) != 0 {
		t.Error(r.away, r.all, r.busy)
	}
}

// A trigger keeps more rows of a barrier than a DELETE takes, and says no error. The rows behind are deleted all the same, and the caller of Clean
// learns how many.
func TestABarrierWhoseRowsStay(t *testing.T) {
	t.Parallel()
	const kept, others = 1500, 1501
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	b, err := NewBarrier(dialect.SQLite, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{
		fmt.Sprintf("INSERT INTO pawl_barrier (id, outcome, owner, created) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) "+
			"SELECT iif(i > %d, 'b', 'a') || i, 1, 1, max(0, i - %d) / 7 FROM n", kept+others, kept, kept),
		"CREATE TRIGGER keeps BEFORE DELETE ON pawl_barrier WHEN OLD.id LIKE 'a%' BEGIN SELECT RAISE(IGNORE); END"} {
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	n, err := b.Clean(t.Context(), db)
	var left int
	if err := db.QueryRow("SELECT COUNT(*) FROM pawl_barrier").Scan(&left); err != nil {
		t.Fatal(err)
	}
	if n != others || left != kept || err != nil {
		t.Error(n, left, err)
	}
}
