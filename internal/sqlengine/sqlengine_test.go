package sqlengine_test

import (
	"database/sql"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine/sqliteengine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// No verb looks at more rows than it needs.
var parameter = regexp.MustCompile(`\?[0-9]*`)

// parameters counts those of a query, of which one with a number may be there twice.
func parameters(query string) int {
	all := parameter.FindAllString(query, -1)
	slices.Sort(all)
	if !slices.Contains(all, "?") {
		all = slices.Compact(all)
	}
	return len(all)
}

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
		rows, err := db.QueryContext(t.Context(), `EXPLAIN QUERY PLAN `+query, make([]any, parameters(query))...)
		if err != nil {
			t.Fatal(query, err)
		}
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(query, "LIMIT ?2") && (detail == "SCAN c" || strings.HasPrefix(detail, "SCAN (subquery") || detail == "USE TEMP B-TREE FOR ORDER BY") {
				continue // of the loaded claims: the holders, and a few waiters
			}
			if strings.HasSuffix(detail, "(resource=?)") && !strings.HasPrefix(query, "UPDATE pawl_claims SET capacity") {
				t.Errorf("%s\nreads the whole line: %s", query, detail)
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
