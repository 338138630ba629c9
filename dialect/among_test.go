package dialect_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

// DeleteByKey waits for no transaction that has inserted another row, also where all other rows of a small table are deleted. The name may have
// a schema, and the connection needs no database of its own.
func TestDeleteByKey(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		schema := ""
		if d == dialect.MySQL {
			config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
			schema, config.DBName = config.DBName+".", ""
			db = open(t, "mysql", config.FormatDSN())
		}
		deletesByKey(t, d, db, schema, dialect.Integer, func(i int) int64 { return int64(i) })
		deletesByKey(t, d, db, schema, dialect.Text, func(i int) string { return fmt.Sprintf(`an "odd' key\ %d, é`, i) })
	})
}

func deletesByKey[K int64 | string](t *testing.T, d dialect.Dialect, db *sql.DB, schema string, kind dialect.Type, key func(int) K) {
	t.Helper()
	for _, n := range []int{1, 7, 50, 1000} {
		table := dialect.Table{Name: schema + fmt.Sprintf("by_%d_%d_%d", kind, n, time.Now().UnixNano()),
			Columns: []dialect.Column{{Name: "id", Type: kind, Key: true}, {Name: "n", Type: dialect.Integer}}}
		if err := table.Create(t.Context(), db, d); err != nil {
			t.Fatal(err)
		}
		insert := func(db dialect.DB, i int) {
			t.Helper()
			if _, err := dialect.InsertIfAbsent(d, table.Name, "id", dialect.Columns{"id": key(i), "n": i}).Exec(t.Context(), db); err != nil {
				t.Fatal(err)
			}
		}
		var keys []K
		all, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			insert(all, i)
			keys = append(keys, key(i))
		}
		if err := all.Commit(); err != nil {
			t.Fatal(err)
		}
		if d != dialect.SQLite { // which has one writer
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback() //nolint:errcheck // nothing is to be kept
			insert(tx, n)
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		found := 0
		if err := dialect.Among(dialect.New(d).Add("SELECT COUNT(*) FROM ").Table(table.Name).Add(" WHERE "), "id", keys).Scan(ctx, db, &found); err != nil || found != n {
			t.Error(n, found, err)
		}
		result, err := dialect.DeleteByKey(dialect.New(d), table.Name, "id", keys).Add(" AND n <> ").Value(0).Exec(ctx, db)
		if err != nil {
			t.Fatal(n, err)
		}
		if gone, err := result.RowsAffected(); gone != int64(n-1) || err != nil {
			t.Error(n, gone, err)
		}
	}
}

// On PostgreSQL the text is the same for any number of values. Else each connection would keep hundreds of prepared statements.
func TestAmongIsOneText(t *testing.T) {
	text := func(ids ...string) string {
		query, _, err := dialect.Among(dialect.DeleteByKey(dialect.New(dialect.PostgreSQL), "t", "seq", make([]int64, len(ids))).Add(" AND "), "id", ids).Build()
		if err != nil {
			t.Fatal(err)
		}
		return query
	}
	if is := text("a", "b"); is != text("a") {
		t.Error(is)
	}
}
