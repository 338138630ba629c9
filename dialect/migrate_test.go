package dialect_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

var errRefused = errors.New("refused")

// refusing refuses so many statements that begin with a text.
type refusing struct {
	*sql.DB
	text  string
	times int
}

func (r *refusing) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if r.times > 0 && strings.HasPrefix(query, r.text) {
		r.times--
		return nil, errRefused
	}
	return r.DB.ExecContext(ctx, query, args...)
}

// migration is a table with a unique index, and a table that comes last.
func migration(t *testing.T) (db *sql.DB, statements []string, check func(context.Context) error) {
	db = open(t, "sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")))
	columns := []dialect.Column{{Name: "n", Type: dialect.Integer, Key: true}, {Name: "id", Type: dialect.Text}}
	tables := []dialect.Table{{Name: "things", Columns: columns, Indexes: []dialect.Index{{Columns: []string{"id"}, Unique: true}}}, {Name: "format", Columns: columns}}
	for _, table := range tables {
		schema, err := table.Schema(dialect.SQLite)
		if err != nil {
			t.Fatal(err)
		}
		statements = append(statements, strings.Split(schema, ";\n")...)
	}
	return db, statements, func(ctx context.Context) error {
		for _, table := range tables {
			if err := table.Check(ctx, db, dialect.SQLite); err != nil {
				return err
			}
		}
		return nil
	}
}

// isUnique reports whether the table refuses a second row with the same ID.
func isUnique(t *testing.T, db *sql.DB) bool {
	exec(t, db, "INSERT INTO things (n, id) VALUES (1, 'a')")
	_, err := db.ExecContext(t.Context(), "INSERT INTO things (n, id) VALUES (2, 'a')")
	return dialect.Duplicate(err)
}

// The statement that makes a unique index fails once, or each time. Then Migrate makes the index, or returns the error until a later
// Migrate has made the index.
func TestMigrateMakesTheIndexesOfATable(t *testing.T) {
	for name, times := range map[string]int{"once": 1, "each time": 1_000_000} {
		t.Run(name, func(t *testing.T) {
			db, statements, check := migration(t)
			err := dialect.Migrate(t.Context(), &refusing{db, "CREATE UNIQUE INDEX", times}, statements, check)
			if times > 1 {
				if !errors.Is(err, errRefused) {
					t.Error(err)
				}
				err = dialect.Migrate(t.Context(), db, statements, check)
			}
			if err != nil || !isUnique(t, db) {
				t.Error("the table takes an ID twice, ", err)
			}
		})
	}
}

// The index of the last table fails. The table is there, so only this call can tell.
func TestMigrateTellsOfAnIndexThatCheckDoesNotMiss(t *testing.T) {
	db, statements, check := migration(t)
	last := []string{statements[2], statements[0], statements[1]}
	if err := dialect.Migrate(t.Context(), &refusing{db, "CREATE UNIQUE INDEX", 1_000_000}, last, check); !errors.Is(err, errRefused) {
		t.Error(err)
	}
}

// A statement fails in a transaction. All later ones fail because the first one did, and Migrate tells the first error.
func TestMigrateTellsTheFirstError(t *testing.T) {
	db := open(t, "pgx", testservers.PostgresURL(testservers.SharedPostgres(t).Addr))
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing is kept
	err = dialect.Migrate(t.Context(), tx, []string{"CREATE TABLE no_such_schema.things (n int)"}, func(context.Context) error { return dialect.ErrMissing })
	if _, state, _ := strings.Cut(fmt.Sprint(err), "SQLSTATE "); state != "3F000)" {
		t.Error(err)
	}
}

// The error of Create names the table that could not be made.
func TestCreateNamesItsTable(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		table := dialect.Table{Name: "no_such_schema.things", Columns: []dialect.Column{{Name: "n", Type: dialect.Integer, Key: true}}}
		if d == dialect.SQLite { // whose check of another schema fails
			table.Name = "things"
			db.SetMaxOpenConns(1)
			exec(t, db, "PRAGMA query_only = 1")
		}
		if err := table.Create(t.Context(), db, d); err == nil || !strings.HasPrefix(err.Error(), "create table "+table.Name+": ") {
			t.Error(err)
		}
	})
}

// A program without the right to make tables finds that another program has made them meanwhile.
func TestMigrateWithoutTheRight(t *testing.T) {
	db, statements, check := migration(t)
	looks := 0
	err := dialect.Migrate(t.Context(), &refusing{db, "CREATE", 1_000_000}, statements, func(ctx context.Context) error {
		if looks++; looks == 2 {
			for _, query := range statements {
				exec(t, db, query)
			}
		}
		return check(ctx)
	})
	if err != nil || looks != 2 {
		t.Error(looks, err)
	}
}
