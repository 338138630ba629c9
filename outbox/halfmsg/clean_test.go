package halfmsg

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/internal/batches"
)

// cleaned runs the cleaning of 1,000 old half messages on a PostgreSQL whose trigger runs at each DELETE.
func cleaned(t *testing.T, trigger string) (left int, refused error) {
	t.Helper()
	db, err := sql.Open("pgx", testservers.PostgresURL(testservers.Postgres(t).Addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	box, err := outbox.New(dialect.PostgreSQL, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(dialect.PostgreSQL, db, box, &Options{Table: "half", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{
		"INSERT INTO half (id, producer, state, asks, due, created, changed, messages, reason) SELECT 'h' || n, 'shop', 1, 0, 0, 0, 0, '[]', '' FROM generate_series(1, 1000) AS n",
		"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN " + trigger + " RETURN NULL; END'",
		"CREATE TRIGGER slow AFTER DELETE ON half FOR EACH ROW EXECUTE FUNCTION slow()",
	} {
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	err = (&run{Coordinator: c}).removeOld(ctx, &batches.Deleter{Bound: time.Second}, Submitted)
	if ctx.Err() != nil {
		t.Fatal("the cleaning does not end")
	}
	if err := db.QueryRow("SELECT COUNT(*) FROM half").Scan(&left); err != nil {
		t.Fatal(err)
	}
	return left, err
}

// A DELETE of 1,000 half messages takes longer than Timeout, because the half messages are large. All are deleted by smaller statements, except three
// that the database refuses to delete. The error tells of the refusal.
func TestOldHalfMessagesThatTakeLongToDelete(t *testing.T) {
	t.Parallel()
	left, err := cleaned(t, "PERFORM pg_sleep(0.002); IF OLD.id IN (''h1'', ''h500'', ''h1000'') THEN RAISE ''has an invoice''; END IF;")
	if left != 3 || err == nil || !strings.Contains(err.Error(), "has an invoice") {
		t.Errorf("%d half messages are left, %v", left, err)
	}
}

// The database refuses each DELETE. The cleaning ends, and tells so.
func TestNoHalfMessageCanBeDeleted(t *testing.T) {
	t.Parallel()
	if left, err := cleaned(t, "RAISE ''has an invoice'';"); left != 1000 || err == nil || !strings.Contains(err.Error(), "has an invoice") {
		t.Errorf("%d half messages are left, %v", left, err)
	}
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

// The database deletes no row of a barrier, and says no error. The caller of Clean learns that.
func TestABarrierWhoseRowsStay(t *testing.T) {
	t.Parallel()
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
	for _, query := range []string{"INSERT INTO pawl_barrier (id, outcome, owner, created) VALUES ('a', 1, 1, 0), ('b', 1, 1, 0)",
		"CREATE TRIGGER keeps BEFORE DELETE ON pawl_barrier WHEN OLD.id = 'a' BEGIN SELECT RAISE(IGNORE); END"} {
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := b.Clean(t.Context(), db); n != 1 || err != nil {
		t.Error(n, err)
	}
}
