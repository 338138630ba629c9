package halfmsg

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// A DELETE of 1,000 half messages takes longer than Timeout, because the half messages are large. All are deleted by smaller statements, except a
// half message that the database refuses to delete. The error tells of the refusal.
func TestOldHalfMessagesThatTakeLongToDelete(t *testing.T) {
	t.Parallel()
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
		"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.002); IF OLD.id = ''h1000'' THEN RAISE ''has an invoice''; END IF; RETURN NULL; END'",
		"CREATE TRIGGER slow AFTER DELETE ON half FOR EACH ROW EXECUTE FUNCTION slow()",
	} {
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	r, batch := &run{Coordinator: c}, mostRemoved
	err = r.removeOld(t.Context(), Submitted, &batch)
	var left int
	if err := db.QueryRow("SELECT COUNT(*) FROM half").Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != 1 || err == nil || !strings.Contains(err.Error(), "has an invoice") {
		t.Errorf("%d half messages are left, %v", left, err)
	}
}
