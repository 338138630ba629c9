package mysqlengine_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestRowUpgradeBesideADump: a transaction that reads for long, such as that of mysqldump, keeps tables from new columns. The
// upgrade gives up soon and says why, because sessions wait behind it. Tables that are complete are upgraded all the same.
func TestRowUpgradeBesideADump(t *testing.T) {
	db := database(t, testservers.SharedMariaDB(t).Addr, "root", nil)
	old := newRow(t, db, "beside_")
	dump, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Rollback() //nolint:errcheck // it has read
	upgrade := func() error {
		soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := mysqlengine.NewRow(soon, db, &mysqlengine.RowOptions{Prefix: "beside_"})
		return err
	}
	exec(t, db, "UPDATE beside_row_meta SET version = 5")
	exec(t, dump, "SELECT * FROM beside_row_meta", "SELECT * FROM beside_row_claims", "SELECT * FROM beside_row_names")
	if err := upgrade(); err != nil {
		t.Errorf("complete tables: %v", err)
	}
	dump.Rollback() //nolint:errcheck // it has read
	exec(t, db, "ALTER TABLE beside_row_meta DROP COLUMN server, DROP COLUMN moved", "DELETE FROM beside_row_meta WHERE version > 5", "INSERT IGNORE INTO beside_row_meta (version, format) VALUES (5, '"+engine.Format()+"')")
	if dump, err = db.BeginTx(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	exec(t, dump, "SELECT * FROM beside_row_meta")
	if err := upgrade(); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "dump") {
		t.Errorf("%v; want the transaction that is in the way", err)
	}
	sessiontest.Open(t, old, leasetest.TTL)
	dump.Rollback() //nolint:errcheck // it has read
	if err := upgrade(); err != nil {
		t.Errorf("after the dump: %v", err)
	}
}

// breaking is a client some of whose statements fail.
type breaking struct {
	driver.Connector
	fails func(query string) error
}

type breakingConn struct {
	driver.Conn
	fails func(query string) error
}

func (b breaking) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := b.Connector.Connect(ctx)
	return breakingConn{conn, b.fails}, err
}

func (c breakingConn) Prepare(query string) (driver.Stmt, error) {
	if err := c.fails(query); err != nil {
		return nil, err
	}
	return c.Conn.Prepare(query)
}

var errKilled = errors.New("the client was killed")

// TestProceduresHalfMade: a client that is killed while it makes the procedures of a restored dump leaves some of them out. The
// next client makes all.
func TestProceduresHalfMade(t *testing.T) {
	addr := testservers.SharedMariaDB(t).Addr
	db := database(t, addr, "root", nil)
	connector, err := mysql.NewConnector(testservers.MariaDBConfig(addr))
	if err != nil {
		t.Fatal(err)
	}
	for mode, open := range map[string]func(*sql.DB) error{
		"half_row_": func(db *sql.DB) error {
			_, err := mysqlengine.NewRow(t.Context(), db, &mysqlengine.RowOptions{Prefix: "half_row_"})
			return err
		},
		"half_lease_": func(db *sql.DB) error {
			e, err := mysqlengine.New(t.Context(), db, &mysqlengine.Options{Prefix: "half_lease_"})
			if err == nil {
				err = e.Close()
			}
			return err
		},
	} {
		procedures := func() []string { return proceduresOf(t, db, mode) }
		if err := open(db); err != nil {
			t.Fatal(err)
		}
		all := procedures()
		for made := range all {
			for _, name := range procedures() {
				exec(t, db, "DROP PROCEDURE "+name)
			}
			broken := sql.OpenDB(breaking{connector, func(query string) error {
				if strings.HasPrefix(query, "CREATE PROCEDURE") {
					if made--; made < 0 {
						return errKilled
					}
				}
				return nil
			}})
			if err := open(broken); !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			broken.Close() //nolint:errcheck // it has failed
			before := len(procedures())
			if err := open(db); err != nil || len(procedures()) != len(all) {
				t.Errorf("%s: after %d procedures of %d the next client leaves %d: %v", mode, before, len(all), len(procedures()), err)
			}
		}
	}
}

func proceduresOf(t *testing.T, db *sql.DB, prefix string) (names []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT routine_name FROM information_schema.routines WHERE routine_schema = DATABASE() AND LEFT(routine_name, ?) = ?", len(prefix), prefix)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		names = append(names, "")
		if err := rows.Scan(&names[len(names)-1]); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// TestRowNumberInUse: the clock of the server was set back, so a connection that begins may come to the number of a claim. The connection waits for that
// claim a moment only.
func TestRowNumberInUse(t *testing.T) {
	addr := testservers.SharedMariaDB(t).Addr
	db := database(t, addr, "root", nil)
	s, c := sessiontest.Open(t, newRow(t, db, "number_"), time.Minute), sessiontest.Whole(t, sessiontest.Fair)
	token := sessiontest.Hold(t, s, c)
	exec(t, db, "UPDATE number_row_boot SET ready = '2000-01-01'")
	is := fmt.Sprintf("%d.%06d", token/1e6, token%1e6)
	back := database(t, addr, "root", map[string]string{"timestamp": is})
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	other := sessiontest.Whole(t, sessiontest.Fair)
	other.Resource += "/other"
	g, err := sessiontest.Open(t, newRow(t, back, "number_"), time.Minute).Enter(soon, other, false)
	if err != nil || g.Token <= token {
		t.Errorf("%v, %v; want a token after %d", g, err, token)
	}
}

// TestIdleRenewal: a server closes a connection on which nothing was asked for long. The next renewal does well all the same.
func TestIdleRenewal(t *testing.T) {
	addr := testservers.SharedMariaDB(t).Addr
	root := database(t, addr, "root", nil)
	exec(t, root, "CREATE USER IF NOT EXISTS idle", "GRANT ALL ON pawl.* TO idle")
	left := func() (n int) {
		if err := root.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'idle'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for name, end := range map[string]func(){"idle": func() {}, "killed": func() { killAll(t, root, "idle", 1) }} {
		params := map[string]string{"wait_timeout": "1"}
		if name == "killed" {
			params = nil
		}
		s := sessiontest.Open(t, newEngine(t, database(t, addr, "idle", params), &mysqlengine.Options{Prefix: "idle_"}), time.Minute)
		c := sessiontest.Whole(t, sessiontest.Fair)
		sessiontest.Hold(t, s, c)
		if gone, err := s.Renew(t.Context(), []*engine.Claim{c}); err != nil || len(gone) > 0 {
			t.Fatalf("%s: %v, %v", name, gone, err)
		}
		end()
		sessiontest.Until(t, "the server has closed the connections", func() bool { return left() == 0 })
		if gone, err := s.Renew(t.Context(), []*engine.Claim{c}); err != nil || len(gone) > 0 {
			t.Errorf("%s: %v, %v", name, gone, err)
		}
		sessiontest.Leave(t, s, c)
	}
}

// TestGroupReplication: group replication takes no table in memory, with an error that tells nobody why. That error comes at the first start.
func TestGroupReplication(t *testing.T) {
	connector, err := mysql.NewConnector(testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr))
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(breaking{connector, func(query string) error {
		if strings.HasPrefix(query, "INSERT IGNORE INTO group_boot") || strings.HasPrefix(query, "INSERT IGNORE INTO group_row_boot") {
			return &mysql.MySQLError{Number: 3098, Message: "The table does not comply with the requirements by an external plugin."}
		}
		return nil
	}})
	defer db.Close()
	_, lease := mysqlengine.New(t.Context(), db, &mysqlengine.Options{Prefix: "group_"})
	_, row := mysqlengine.NewRow(t.Context(), db, &mysqlengine.RowOptions{Prefix: "group_"})
	for _, err := range []error{lease, row} {
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "group replication") {
			t.Errorf("%v; want a refusal that names group replication", err)
		}
	}
}

// TestMadeInAnotherCharacterSet: the client that makes the tables and procedures may have any character set.
func TestMadeInAnotherCharacterSet(t *testing.T) {
	addr := testservers.SharedMariaDB(t).Addr
	wide := database(t, addr, "root", map[string]string{"character_set_connection": "'utf16'"})
	plain := database(t, addr, "root", nil)
	for mode, open := range map[string]func(*sql.DB) engine.Engine{
		"lease": func(db *sql.DB) engine.Engine { return newEngine(t, db, &mysqlengine.Options{Prefix: "wide_"}) },
		"row":   func(db *sql.DB) engine.Engine { return newRow(t, db, "wide_") },
	} {
		one, other := open(wide), open(plain)
		s, w := sessiontest.Open(t, one, time.Minute), sessiontest.Open(t, other, time.Minute)
		held := sessiontest.Whole(t, sessiontest.Fair)
		held.Resource, held.Label = "wide/é🔒", "é"
		sessiontest.Hold(t, s, held)
		next := sessiontest.Whole(t, sessiontest.Fair)
		next.Resource = held.Resource
		sessiontest.Wait(t, w, next)
		for _, e := range []engine.Engine{one, other} {
			for name, err := range e.List(t.Context(), "wide/é") {
				if name != held.Resource || err != nil {
					t.Errorf("%s: %q, %v", mode, name, err)
				}
			}
			if r, err := e.Show(t.Context(), held.Resource); err != nil || len(r.Claims) != 2 || r.Claims[0].Label != held.Label {
				t.Errorf("%s: %+v, %v", mode, r, err)
			}
		}
		if gone, err := s.Renew(t.Context(), []*engine.Claim{held}); err != nil || len(gone) > 0 {
			t.Errorf("%s: %v, %v", mode, gone, err)
		}
		got := sessiontest.Awaiting(t, w, next)
		sessiontest.Leave(t, s, held)
		sessiontest.Granted(t, got)
		if err := one.Evict(t.Context(), next.Resource, next.ID); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
}
