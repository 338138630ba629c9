package outbox

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

// confirmed returns the cleaner of a partition with so many messages, which were confirmed eight days ago.
func confirmed(t *testing.T, kind dialect.Dialect, n int) (c *cleaner, exec func(query string)) {
	t.Helper()
	driver, source := "sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))
	switch kind {
	case dialect.PostgreSQL:
		driver, source = "pgx", testservers.PostgresURL(testservers.Postgres(t).Addr)
	case dialect.MySQL:
		config := testservers.MariaDBConfig(testservers.MariaDB(t).Addr)
		config.InterpolateParams = true
		driver, source = "mysql", config.FormatDSN()
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
	exec = func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	message := Message{Topic: "t", Key: "k"}
	for n > 0 {
		part := min(n, maxBatch)
		messages := make([]Message, part)
		for i := range messages {
			messages[i] = message
		}
		if _, err := table.Enqueue(t.Context(), db, messages...); err != nil {
			t.Fatal(err)
		}
		n -= part
	}
	exec("UPDATE box SET state = 2, changed = changed - 8 * 86400")
	opts, err := RelayOptions{}.defaults()
	if err != nil {
		t.Fatal(err)
	}
	return newCleaner(&Relay{table: table, db: db, opts: opts}, message.part()), exec
}

// left counts the messages of the table.
func (c *cleaner) left(t *testing.T) (n int) {
	t.Helper()
	if err := c.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM box").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// within cleans for so many minutes, and returns after how many no more than left messages are there.
func (c *cleaner) within(t *testing.T, minutes, left int) (took int) {
	t.Helper()
	now := time.Now()
	for took = range minutes {
		for c.more = true; c.more; {
			c.round(t.Context(), now.Add(time.Duration(took)*time.Minute))
		}
		if c.left(t) <= left {
			return took
		}
	}
	t.Fatalf("%d messages are left after %d minutes", c.left(t), minutes)
	return took
}

// More old messages than a round takes are there, on each database. All are deleted at once, and no young one is.
func TestManyOldMessages(t *testing.T) {
	t.Parallel()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			c, exec := confirmed(t, kind, 2*mostPages*maxBatch+maxBatch)
			exec("UPDATE box SET state = 3 WHERE seq <= 500")
			exec("UPDATE box SET changed = changed + 2 * 86400 WHERE seq IN (7, 800, 4000)")
			exec("UPDATE box SET state = 4 WHERE seq = 9000")
			c.opts.OnError = func(err error) { t.Error(err) }
			if took := c.within(t, 1, 4); took != 0 || c.left(t) != 4 {
				t.Error(took, c.left(t))
			}
		})
	}
}

// A DELETE of 1,000 messages takes longer than a DELETE may take, because the messages are large. All are deleted by smaller statements.
func TestOldMessagesThatTakeLongToDelete(t *testing.T) {
	t.Parallel()
	c, exec := confirmed(t, dialect.PostgreSQL, 1000)
	exec("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.005); RETURN NULL; END'")
	exec("CREATE TRIGGER slow AFTER DELETE ON box FOR EACH ROW EXECUTE FUNCTION slow()")
	c.within(t, 1, 0)
}

// The first 100 messages cannot be deleted, for example because rows of the application refer to them. Those behind are deleted.
func TestOldMessagesThatCannotBeDeleted(t *testing.T) {
	t.Parallel()
	told := ""
	c, exec := confirmed(t, dialect.SQLite, 300)
	c.opts.OnError = func(err error) { told = err.Error() }
	exec("CREATE TRIGGER refuses BEFORE DELETE ON box WHEN OLD.seq <= 100 BEGIN SELECT RAISE(ABORT, 'has an invoice'); END")
	c.within(t, 10, 100)
	if !strings.HasPrefix(told, "outbox: clean: ") || !strings.Contains(told, "has an invoice") {
		t.Error(told)
	}
}

// A database refuses each DELETE of a confirmed message. The operator is told in each minute, after few statements. Done messages are deleted.
func TestEveryDeleteIsRefused(t *testing.T) {
	t.Parallel()
	told := 0
	c, exec := confirmed(t, dialect.SQLite, 2000)
	c.opts.OnError = func(error) { told++ }
	exec("UPDATE box SET state = 3 WHERE seq = 1900")
	exec("CREATE TRIGGER refuses BEFORE DELETE ON box WHEN OLD.state = 2 BEGIN SELECT RAISE(FAIL, 'no'); END")
	c.within(t, 1, 1999)
	if told != 1 {
		t.Errorf("%d errors are told in a minute", told)
	}
	for minute := range 10 {
		c.round(t.Context(), time.Now().Add(time.Duration(minute+1)*time.Minute))
		if c.more {
			t.Error("the next round is at once")
		}
		c.round(t.Context(), time.Now().Add(time.Duration(minute+1)*time.Minute))
	}
	if told != 11 {
		t.Errorf("%d errors are told in eleven minutes", told)
	}
}

// More messages than a page has are young, and an old one is behind them: it was sent late. The second walk finds and deletes the old message, also behind
// a message that cannot be deleted.
func TestAnOldMessageBehindYoungOnes(t *testing.T) {
	t.Parallel()
	c, exec := confirmed(t, dialect.SQLite, 3*maxBatch)
	exec(fmt.Sprintf("UPDATE box SET changed = changed + 2 * 86400 WHERE seq NOT IN (1, %d)", 3*maxBatch-1))
	exec("CREATE TRIGGER refuses BEFORE DELETE ON box WHEN OLD.seq = 1 BEGIN SELECT RAISE(ABORT, 'has an invoice'); END")
	c.within(t, 4, 3*maxBatch-1)
}

// A transaction of a completion has locked some messages, and is in doubt. The others are deleted.
func TestOldMessagesThatAreLocked(t *testing.T) {
	t.Parallel()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			told := ""
			c, _ := confirmed(t, kind, 100)
			c.opts.OnError = func(err error) { told = err.Error() }
			tx, err := c.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback() //nolint:errcheck // nothing is to be kept
			if _, err := tx.ExecContext(t.Context(), "UPDATE box SET repeats = 1 WHERE seq IN (50, 51)"); err != nil {
				t.Fatal(err)
			}
			c.within(t, 2, 2)
			if !strings.Contains(told, "message with the number 50: another transaction has locked the message") {
				t.Error(told)
			}
		})
	}
}

// The database fails to say which messages are to be sent again. New messages are sent all the same.
func TestAnErrorOfTheRepeatsStopsNoSending(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	c, exec := confirmed(t, dialect.SQLite, 1)
	c.opts.OnError = func(error) { told.Add(1) }
	if _, err := c.table.Enqueue(t.Context(), c.db, Message{ID: "new", Topic: "t", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	o := &owner{Relay: c.Relay, part: c.part, plan: newPlan(c.opts.Window, c.opts.WindowBytes, false, c.opts.Lag), full: time.Now(), passes: true}
	if err := o.read(t.Context(), false); err != nil || len(o.plan.rows) != 1 {
		t.Fatal(err, len(o.plan.rows))
	}
	o.opts.Resend = time.Second
	exec("ALTER TABLE box RENAME COLUMN repeats TO away")
	for range 2 {
		if err := o.read(t.Context(), false); err != nil || told.Load() != 1 {
			t.Errorf("%v, %d errors are told", err, told.Load())
		}
	}
}

// Another connection has the file of SQLite for longer than a DELETE may take. The cleaning tells of that, also where the connection itself waits for nothing.
func TestACleaningThatNeverGetsTheFile(t *testing.T) {
	t.Parallel()
	c, _ := confirmed(t, dialect.SQLite, 1)
	var file string
	if err := c.db.QueryRow("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&file); err != nil {
		t.Fatal(err)
	}
	other, err := c.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close() //nolint:errcheck // nothing is lost
	db, err := sql.Open("sqlite3", "file:"+file+"?_pragma=busy_timeout(0)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // nothing is lost
	told := ""
	c.db, c.opts.OnError = db, func(err error) { told = err.Error() }
	for _, l := range c.looks {
		l.deleter.Bound = 100 * time.Millisecond
	}
	if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if c.round(t.Context(), time.Now()); !strings.Contains(told, "a DELETE takes too long") {
		t.Errorf("told: %q", told)
	}
}
