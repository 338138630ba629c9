package outbox

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

// A server has become read-only, as the old primary at a switchover. Transactions are open on the new one, so no look there tells which.
func TestNoLookAtAReadOnlyServer(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("mysql", testservers.MariaDBConfig(testservers.MariaDB(t).Addr).FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	table, err := New(dialect.MySQL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing is kept
	m := Message{ID: "open", Topic: "t", Key: "k"}
	if _, err := table.Enqueue(t.Context(), tx, m); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		readOnly string
		want     error
	}{{"0", nil}, {"1", errReadOnly}, {"0", nil}} {
		if _, err := db.ExecContext(t.Context(), "SET GLOBAL read_only = "+step.readOnly); err != nil {
			t.Fatal(err)
		}
		found, upTo, err := table.uncommitted(t.Context(), db, int(m.part()), 0, 100, nil)
		if !errors.Is(err, step.want) || err == nil && (len(found) != 1 || upTo != 100) {
			t.Errorf("read_only = %s: %v, %d, %v", step.readOnly, found, upTo, err)
		}
	}
}
