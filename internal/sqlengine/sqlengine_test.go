package sqlengine_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine/sqliteengine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// No verb looks at more rows than it needs.
func TestNoStatementScansATable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pawl.db")
	e, err := sqliteengine.New(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, query := range sqlengine.Statements {
		rows, err := db.QueryContext(t.Context(), `EXPLAIN QUERY PLAN `+query, make([]any, strings.Count(query, "?"))...)
		if err != nil {
			t.Fatal(query, err)
		}
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(detail, "SCAN") && !strings.Contains(detail, "pawl_meta") && !strings.Contains(detail, "CONSTANT ROW") ||
				strings.Contains(detail, "TEMP B-TREE") {
				t.Errorf("%s\n%s", query, detail)
			}
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
