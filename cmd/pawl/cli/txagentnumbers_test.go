//go:build unix

package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestTx_agent_numbers: a number of a request reaches the database with all its digits, or is refused.
func TestTx_agent_numbers(t *testing.T) {
	t.Parallel()
	const much = "9007199254740993.0001" // has more digits than a float64
	for url, all := range map[string][]struct{ sql, args, says, left string }{
		"postgres://postgres@" + testservers.SharedPostgres(t).Addr + "/postgres": {
			{"UPDATE %s SET n = n + $1", "[0.1]", "", "9007199254740993.1001 0"},
			{"UPDATE %s SET n = $1", "[9007199254740993.1234]", "", "9007199254740993.1234 0"},
			{"UPDATE %s SET n = $1", "[18446744073709551617]", "", "18446744073709551617.0000 0"},
			{"UPDATE %s SET n = n + $1", "[-1e-4]", "", "9007199254740993.0000 0"},
			{"UPDATE %s SET n = n + $1, i = $2", "[1, 9007199254740993]", "", "9007199254740994.0001 9007199254740993"},
			{"UPDATE %s SET i = $1", "[0.5]", `invalid input syntax for type bigint: "0.5"`, much + " 0"},
			{"UPDATE %s SET i = $1", "[9223372036854775808]", "out of range", much + " 0"},
		},
		"mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl": {
			{"UPDATE %s SET n = n + ?, i = ?", "[1, 9007199254740993]", "", "9007199254740994.0001 9007199254740993"},
			{"UPDATE %s SET n = n + CAST(? AS DECIMAL(30, 4))", `["0.1"]`, "", "9007199254740993.1001 0"},
			{"UPDATE %s SET n = n + ?", "[0.1]", "argument 1 is the number 0.1", much + " 0"},
			{"UPDATE %s SET i = ?, n = ?", "[1, 18446744073709551617]", "argument 2 is the number 18446744073709551617", much + " 0"},
		},
	} {
		db, err := open.OpenDatabase(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.DB.Close() }) //nolint:errcheck // nothing is lost
		table := fmt.Sprintf("numbers_%d", time.Now().UnixNano())
		if _, err := db.DB.ExecContext(t.Context(), "CREATE TABLE "+table+" (n decimal(30, 4), i bigint)"); err != nil {
			t.Fatal(err)
		}
		for _, is := range all {
			if _, err := db.DB.ExecContext(t.Context(), "DELETE FROM "+table); err != nil {
				t.Fatal(err)
			}
			if _, err := db.DB.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ("+much+", 0)"); err != nil {
				t.Fatal(err)
			}
			payload := fmt.Sprintf(`[{"sql": %q, "args": %s, "rows": 1}]`, fmt.Sprintf(is.sql, table), is.args)
			err := executeStatements(t.Context(), db.Dialect, db.DB, []byte(payload))
			if (err == nil) != (is.says == "") || err != nil && !strings.Contains(err.Error(), is.says) {
				t.Errorf("%s %s: %v", is.sql, is.args, err)
			}
			var n, i string
			if err := db.DB.QueryRowContext(t.Context(), "SELECT n, i FROM "+table).Scan(&n, &i); err != nil || n+" "+i != is.left {
				t.Errorf("%s %s: %s %s is left, not %s: %v", is.sql, is.args, n, i, is.left, err)
			}
		}
	}
}
