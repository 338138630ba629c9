package outbox

import (
	"database/sql"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

// confirmed returns the owner of a partition with so many messages that are confirmed now. OnError gets what the owner tells.
func confirmed(t *testing.T, kind dialect.Dialect, n int, onError func(error)) (o *owner, exec func(query string)) {
	t.Helper()
	driver, source := "sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))
	if kind == dialect.PostgreSQL {
		driver, source = "pgx", testservers.PostgresURL(testservers.Postgres(t).Addr)
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	table, err := New(kind, &Options{Table: "box"})
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	messages := make([]Message, n)
	for i := range messages {
		messages[i] = Message{Topic: "t", Key: "k"}
	}
	if _, err := table.Enqueue(t.Context(), db, messages...); err != nil {
		t.Fatal(err)
	}
	exec = func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	exec("UPDATE box SET state = 2")
	opts, err := RelayOptions{OnError: onError}.defaults()
	if err != nil {
		t.Fatal(err)
	}
	return &owner{Relay: &Relay{table: table, db: db, opts: opts}, part: messages[0].part()}, exec
}

// cleansWithin cleans each minute until so many messages are left.
func (o *owner) cleansWithin(t *testing.T, minutes, left int) {
	t.Helper()
	now := time.Now()
	is := -1
	for end := now.Add(time.Duration(minutes) * time.Minute); !now.After(end); now = now.Add(time.Minute) {
		for range 20 { // turns of the owner
			o.clean(t.Context(), now)
		}
		if err := o.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM box").Scan(&is); err != nil {
			t.Fatal(err)
		}
		if is == left {
			return
		}
	}
	t.Fatalf("%d messages are left after %d minutes", is, minutes)
}

// A DELETE of 1,000 messages takes longer than a statement of the relay may take, because the messages are large. All are deleted by smaller statements.
func TestOldMessagesThatTakeLongToDelete(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	o, exec := confirmed(t, dialect.PostgreSQL, 1000, func(error) { told.Add(1) })
	exec("UPDATE box SET changed = changed - 8 * 86400")
	exec("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NULL; END'")
	exec("CREATE TRIGGER slow AFTER DELETE ON box FOR EACH ROW EXECUTE FUNCTION slow()")
	o.cleansWithin(t, 10, 0)
	if told.Load() == 0 {
		t.Error("nobody was told")
	}
}

// One old message cannot be deleted, for example because a row of the application refers to it. The others are deleted.
func TestAnOldMessageThatCannotBeDeleted(t *testing.T) {
	t.Parallel()
	told := ""
	o, exec := confirmed(t, dialect.SQLite, 100, func(err error) { told = err.Error() })
	exec("UPDATE box SET changed = changed - 8 * 86400")
	exec("CREATE TRIGGER refuses BEFORE DELETE ON box WHEN OLD.seq = 50 BEGIN SELECT RAISE(ABORT, 'has an invoice'); END")
	o.cleansWithin(t, 10, 1)
	if !strings.HasPrefix(told, "outbox: clean: ") || !strings.Contains(told, "has an invoice") {
		t.Error(told)
	}
}

// More messages than a look takes are young, and an old message is behind them: it was sent late, or its reply came late. The old message is deleted.
func TestAnOldMessageBehindYoungOnes(t *testing.T) {
	t.Parallel()
	o, exec := confirmed(t, dialect.SQLite, maxBatch, nil)
	if _, err := o.table.Enqueue(t.Context(), o.db, Message{ID: "old", Topic: "t", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	exec("UPDATE box SET state = 2, changed = changed - 8 * 86400 WHERE id = 'old'")
	o.cleansWithin(t, 2, maxBatch)
}

// A database that refuses to delete a message stops no sending. Neither does an error of the look for messages that are to be sent again.
func TestAnErrorOfTheCleaningStopsNoSending(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	o, exec := confirmed(t, dialect.SQLite, 1, func(error) { told.Add(1) })
	exec("UPDATE box SET changed = changed - 8 * 86400")
	exec("CREATE TRIGGER refuses BEFORE DELETE ON box BEGIN SELECT RAISE(ABORT, 'x'); END")
	if _, err := o.table.Enqueue(t.Context(), o.db, Message{ID: "new", Topic: "t", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	o.plan = newPlan(o.opts.Window, o.opts.WindowBytes, false, o.opts.Lag)
	o.full, o.passes = time.Now(), true
	if err := o.read(t.Context(), false); err != nil || len(o.plan.rows) != 1 || told.Load() == 0 {
		t.Errorf("%v, %d messages are read, %d errors are told", err, len(o.plan.rows), told.Load())
	}
	before := told.Load()
	o.opts.Resend = time.Second
	exec("ALTER TABLE box RENAME COLUMN repeats TO away")
	if err := o.read(t.Context(), false); err != nil || told.Load() == before {
		t.Errorf("%v, %d errors are told", err, told.Load()-before)
	}
}
