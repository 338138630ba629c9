package dtx_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

// replicated returns a primary server with a standby, its pool, and a pool that takes any of the two servers.
func replicated(t *testing.T) (primary *testservers.Server, admin, either *sql.DB) {
	t.Helper()
	primary = testservers.PostgresPrimary(t)
	admin = testservers.PostgresPool(t, primary.Addr)
	must(t, admin, "ALTER SYSTEM SET max_prepared_transactions = 10") // of the copy, too
	primary.Kill()
	primary.Restart()
	replica := testservers.PostgresReplica(t, primary)
	either, err := sql.Open("pgx", fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable", primary.Addr, replica.Addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { either.Close() })
	return primary, admin, either
}

// TestStandby: a hot standby lists no prepared transactions, although a promotion brings them back. So the empty list of a standby must not end a
// transaction. Without the record, the branch would be rolled back after the promotion.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary, admin, either := replicated(t)
	books, log := fileLog(t, plain)
	c, err := dtx.New(t.Context(), log, []*dtx.Resource{dtx.PostgreSQL("there", either)}, &dtx.Options{Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := dtx.NewLog(dialect.PostgreSQL, either, nil)
	if err == nil {
		err = ledger.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	there, err := dtx.New(t.Context(), ledger, nil, &dtx.Options{Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var identity int64
	if err := books.QueryRow("SELECT began FROM pawl_dtx WHERE id = 0").Scan(&identity); err != nil {
		t.Fatal(err)
	}
	until(t, "the primary is back", func() bool { return admin.Ping() == nil })
	must(t, admin, "CREATE TABLE things (n int)", fmt.Sprintf("BEGIN; INSERT INTO things VALUES (1); PREPARE TRANSACTION 'pawl-%x-5-1-0'", identity))
	until(t, "the standby has the branch", func() bool {
		return number(t, admin, "SELECT COUNT(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_flush_lsn()") == 1
	})
	primary.Kill()
	must(t, books, "INSERT INTO pawl_dtx (id, fenced, began, name) VALUES (5, 1, 0, 'dead')", "INSERT INTO pawl_dtx_decided VALUES (5, 1, 0, CAST('there' AS blob))")
	until(t, "the standby answers", func() bool { return either.Ping() == nil })
	if _, err := c.Recover(t.Context()); !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
	if n := number(t, books, "SELECT COUNT(*) FROM pawl_dtx_decided"); n != 1 {
		t.Fatalf("the standby lists no branch, and %d records are left", n)
	}
	if _, err := there.Recover(t.Context()); !errors.Is(err, pawl.ErrUnavailable) { // a standby may lack records, too
		t.Error(err)
	}
	if err := dtx.PostgreSQL("there", either).Check(t.Context()); !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
	if err := dtx.ReadOnly(dtx.PostgreSQL("there", either)).Check(t.Context()); err != nil {
		t.Error(err)
	}
	must(t, either, "SELECT pg_promote()")
	for _, c := range []*dtx.Coordinator{c, there} {
		if _, err := c.Recover(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := number(t, either, "SELECT COUNT(*) FROM things"); n != 1 {
		t.Errorf("%d rows are committed", n)
	}
	if err := errors.Join(c.Close(t.Context()), there.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestReplica: a replica of MySQL or MariaDB lists no branch that the replica has not applied yet. A replica is known by read_only.
func TestReplica(t *testing.T) {
	t.Parallel()
	db := testservers.MariaDBPool(t, testservers.MariaDB(t).Addr)
	r := dtx.MySQL("there", db)
	for _, readOnly := range []bool{true, false} {
		must(t, db, fmt.Sprintf("SET GLOBAL read_only = %v", readOnly))
		if err := r.Check(t.Context()); errors.Is(err, pawl.ErrUnavailable) != readOnly || !readOnly && err != nil {
			t.Errorf("read_only = %v: %v", readOnly, err)
		}
		if _, err := r.Prepared(t.Context(), ""); errors.Is(err, pawl.ErrUnavailable) != readOnly || !readOnly && err != nil {
			t.Errorf("read_only = %v: %v", readOnly, err)
		}
		if err := dtx.ReadOnly(r).Check(t.Context()); err != nil {
			t.Errorf("read_only = %v: %v", readOnly, err)
		}
	}
}

// TestReplicaWithTheLog: no coordinator starts on a log whose server may lack records, because its recovery would read none. An operator looks on.
func TestReplicaWithTheLog(t *testing.T) {
	t.Parallel()
	db := testservers.MariaDBPool(t, testservers.MariaDB(t).Addr) // whose user may write all the same
	log, err := dtx.NewLog(dialect.MySQL, db, nil)
	if err == nil {
		err = log.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	must(t, db, "INSERT INTO pawl_dtx (id, fenced, began, name) VALUES (7, 1, 0, 'shop')", "INSERT INTO pawl_dtx_decided (coordinator, number, decided, resources) VALUES (7, 1, 0, 'stock')",
		"SET GLOBAL read_only = 1")
	if err := log.Resource("shop").Check(t.Context()); !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := dtx.New(t.Context(), log, []*dtx.Resource{dtx.MySQL("stock", db)}, nil); !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := dtx.New(t.Context(), log, nil, nil); !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
	if err := log.CheckTables(t.Context()); err != nil {
		t.Error(err)
	}
	all, err := log.Transactions(t.Context(), nil)
	if len(all) != 1 || !errors.Is(err, pawl.ErrUnavailable) {
		t.Fatal(all, err)
	}
	if err := log.Resolve(t.Context(), nil, all[0].ID, true, "test"); !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
}

func must(t *testing.T, db *sql.DB, queries ...string) {
	t.Helper()
	for _, query := range queries {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
