package sqlidem_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
)

func TestMigrate(t *testing.T) {
	once(t, func(f *fixture) {
		for _, make := range []func() error{
			func() error { return f.store.Migrate(f.Context(), f.db) },
			func() error { // a migration of the user, which was interrupted and is run again
				for _, upTo := range []int{1, len(f.store.Schema())} {
					for _, query := range f.store.Schema()[:upTo] {
						f.exec(query)
					}
				}
				return f.store.Check(f.Context(), f.db)
			},
		} {
			f.exec("DROP TABLE " + f.table)
			if err := f.store.Check(f.Context(), f.db); !errors.Is(err, dialect.ErrMissing) {
				f.Error(err)
			}
			var group sync.WaitGroup
			for range 8 { // programs that start at the same time
				group.Go(func() {
					if err := f.store.Migrate(f.Context(), f.db); err != nil {
						f.Error(err)
					}
				})
			}
			group.Wait()
			if err := make(); err != nil {
				f.Error(err)
			}
			f.pays("a", 1, false)
		}
		f.exec("DELETE FROM " + f.table + " WHERE name = 'format'")
		if err := f.store.Check(f.Context(), f.db); !errors.Is(err, dialect.ErrMissing) || !strings.Contains(err.Error(), "format") {
			f.Error(err)
		}
		if err := f.store.Migrate(f.Context(), f.db); err != nil {
			f.Error(err)
		}
	})
}

// A table of a later version, whatever its shape, is refused with both formats.
func TestANewerFormatIsRefused(t *testing.T) {
	once(t, func(f *fixture) {
		f.exec("UPDATE " + f.table + " SET owner = 2 WHERE name = 'format'")
		for _, change := range []string{"", "ALTER TABLE " + f.table + " ADD COLUMN more integer"} {
			if change != "" {
				f.exec(change)
			}
			for _, err := range []error{f.store.Migrate(f.Context(), f.db), f.store.Check(f.Context(), f.db)} {
				if !errors.Is(err, pawl.ErrMismatch) || !strings.Contains(err.Error(), "has format 2") || !strings.Contains(err.Error(), "knows format 1") {
					f.Error(err)
				}
			}
		}
		f.exec("UPDATE " + f.table + " SET owner = 1 WHERE name = 'format'")
		if err := f.store.Check(f.Context(), f.db); !errors.Is(err, pawl.ErrMismatch) || !strings.Contains(err.Error(), "column more") {
			f.Error(err)
		}
		f.exec("DROP TABLE " + f.table)
		f.exec("CREATE TABLE " + f.table + " (n bigint)")
		if err := f.store.Migrate(f.Context(), f.db); !errors.Is(err, pawl.ErrMismatch) {
			f.Error(err)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		store, err := sqlidem.New(d, nil)
		if err != nil || !strings.Contains(store.Schema()[0], "pawl_idem") {
			t.Error(err)
		}
		schema, err := sqlidem.New(d, &sqlidem.Options{Table: "app.keys"})
		if err != nil || !strings.Contains(strings.Join(schema.Schema(), ";"), "expires") {
			t.Error(err)
		}
		for _, opts := range []sqlidem.Options{{Table: "a b"}, {Tx: idem.TxOptions{Expiry: -1}}, {Tx: idem.TxOptions{MaxResult: 16_000_001}}} {
			if _, err := sqlidem.New(d, &opts); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%+v: %v", opts, err)
			}
		}
	}
	if _, err := sqlidem.New(0, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}

// A table may be in a schema of its own, with its index.
func TestATableInASchema(t *testing.T) {
	once(t, func(f *fixture) {
		schema := "s" + f.table
		switch f.on.Dialect {
		case dialect.SQLite:
			f.db.SetMaxOpenConns(1)
			f.exec("ATTACH ':memory:' AS " + schema)
			defer f.exec("DETACH " + schema)
		case dialect.MySQL:
			f.exec("CREATE DATABASE " + schema)
			defer f.exec("DROP DATABASE " + schema)
		default:
			f.exec("CREATE SCHEMA " + schema)
			defer f.exec("DROP SCHEMA " + schema + " CASCADE")
		}
		store, err := sqlidem.New(f.on.Dialect, &sqlidem.Options{Table: schema + ".keys"})
		if err != nil {
			f.Fatal(err)
		}
		if err := store.Migrate(f.Context(), f.db); err != nil {
			f.Fatal(err)
		}
		f.store = store
		f.pays("a", 1, false)
		f.pays("a", 2, true)
	})
}
