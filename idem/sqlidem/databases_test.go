package sqlidem_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/internal/sqltest"
)

// fixture is a database with tables of keys and of effects, which one test has for itself.
type fixture struct {
	*testing.T
	on      sqltest.Database
	db      *sql.DB
	store   *sqlidem.Store
	table   string
	effects string
}

// each runs a test on every database and with every client, at every level of isolation.
func each(t *testing.T, test func(f *fixture)) {
	t.Helper()
	for _, d := range sqltest.All(t) {
		levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
		if d.Dialect == dialect.SQLite {
			levels = []sql.IsolationLevel{sql.LevelDefault}
		}
		for _, level := range levels {
			d := d.At(level)
			t.Run(d.Name, func(t *testing.T) { test(newFixture(t, d)) })
		}
	}
}

// once runs a test on every database and with every client.
func once(t *testing.T, test func(f *fixture)) {
	t.Helper()
	for _, d := range sqltest.All(t) {
		t.Run(d.Name, func(t *testing.T) { test(newFixture(t, d)) })
	}
}

func newFixture(t *testing.T, d sqltest.Database) *fixture {
	t.Helper()
	f := &fixture{T: t, on: d, db: d.Opened(t), table: sqltest.NewName("keys"), effects: sqltest.NewName("effects")}
	var err error
	if f.store, err = sqlidem.New(d.Dialect, &sqlidem.Options{Table: f.table}); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Migrate(t.Context(), f.db); err != nil {
		t.Fatal(err)
	}
	f.exec("CREATE TABLE " + f.effects + " (name varchar(100) NOT NULL, n bigint NOT NULL)")
	t.Cleanup(func() { f.exec("DROP TABLE " + f.table); f.exec("DROP TABLE " + f.effects) })
	return f
}

func (f *fixture) exec(query string) { f.Helper(); f.on.Run(f, f.db, query) }

// begin begins a transaction, which the end of the test rolls back.
func (f *fixture) begin() sqltest.Tx {
	f.Helper()
	tx, err := f.on.Begin(f.Context(), f.db)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { tx.Rollback() }) //nolint:errcheck // it may have ended
	return tx
}

func (f *fixture) commit(tx sqltest.Tx) {
	f.Helper()
	if err := tx.Commit(); err != nil {
		f.Fatal(err)
	}
}

// write has the effect of a key.
func (f *fixture) write(ctx context.Context, tx dialect.DB, key string, n int) error {
	return f.on.Exec(ctx, tx, "INSERT INTO "+f.effects+" (name, n) VALUES (?, ?)", key, n)
}

// count returns how many effects a key has, as others see it.
func (f *fixture) count(key string) int {
	f.Helper()
	return int(f.on.Number(f, f.db, "SELECT count(*) FROM "+f.effects+" WHERE name = ?", key))
}

// A *sql.DB is no transaction: a savepoint there would be in another connection than the claim.
func TestWhatIsNoTransactionIsRefused(t *testing.T) {
	once(t, func(f *fixture) {
		for _, tx := range []dialect.DB{f.db, nil} {
			if _, _, err := f.pay(tx, "a", "x", 1, idem.TxOptions{}); !errors.Is(err, pawl.ErrInvalid) {
				f.Error(err)
			}
		}
	})
}
