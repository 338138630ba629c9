//go:build unix

package cli

import (
	"database/sql"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/internal/testservers"
)

type database struct {
	driver, dsn, owner, user, ready string
	before, after                   []string // the statements of its administrator
}

// TestStoreInit: one user may create the tables, another may only use them.
func TestStoreInit(t *testing.T) {
	t.Parallel()
	for _, s := range []database{
		func() (s database) {
			addr := testservers.Postgres(t).Addr
			s.driver, s.dsn, s.ready = "pgx", testservers.PostgresURL(addr), "postgres: ready"
			s.owner, s.user = "postgres://postgres@"+addr+"/postgres", "postgres://app@"+addr+"/postgres"
			s.before = []string{"CREATE ROLE app LOGIN"}
			s.after = []string{"GRANT USAGE ON SCHEMA pawl TO app", "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pawl TO app", "GRANT SELECT ON ALL TABLES IN SCHEMA pawl TO app"}
			return s
		}(),
		func() (s database) {
			addr := testservers.MariaDB(t).Addr
			s.driver, s.dsn, s.ready = "mysql", testservers.MariaDBConfig(addr).FormatDSN(), "mysql: ready"
			s.owner, s.user = "mysql://root@"+addr+"/pawl", "mysql://app@"+addr+"/pawl"
			s.before = []string{"CREATE USER app", "GRANT EXECUTE, SELECT ON pawl.* TO app"}
			return s
		}(),
	} {
		db, err := sql.Open(s.driver, s.dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		exec := func(statements []string) {
			for _, statement := range statements {
				if _, err := db.Exec(statement); err != nil {
					t.Fatal(err)
				}
			}
		}
		exec(s.before)
		_, stderr := want(t, 69, s.user, "store", "init")
		complaint(t, stderr, "may not create them")
		_, stderr = want(t, 69, s.user, "run", "x", "--", "true")
		complaint(t, stderr, "Let a user that may do so run pawl store init")
		for range 2 {
			stdout, _ := want(t, 0, s.owner, "store", "init")
			matches(t, stdout, s.ready)
		}
		exec(s.after)
		stdout, _ := want(t, 0, s.user, "run", "x", "--", "echo", "done")
		matches(t, stdout, "done")
		want(t, 0, s.user, "ls")
	}
}

// TestStoreInit_redlock: one command marks all nodes. A node that was away is marked alone later.
func TestStoreInit_redlock(t *testing.T) {
	t.Parallel()
	away := testservers.Redis(t)
	redlock := "redlock:" + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr + "," + away.Addr
	away.Stop()
	want(t, 69, redlock, "store", "init")
	away.Restart()
	want(t, 0, "redis://"+away.Addr, "store", "init")
	_, stderr := want(t, 64, redlock, "store", "init")
	if n := strings.Count(stderr, "it is not new"); n != 3 {
		t.Errorf("%d nodes are marked: %s", n, stderr)
	}
}

func TestStoreInit_where_nothing_is_needed(t *testing.T) {
	t.Parallel()
	stdout, _ := want(t, 0, sqliteStore(t), "store", "init")
	matches(t, stdout, "sqlite: ready")
	_, stderr := want(t, 64, "", "store")
	complaint(t, stderr, "a verb is missing")
}
