package mysqlengine_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
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

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// database connects as a user.
func database(t *testing.T, addr, user string, params map[string]string) *sql.DB {
	t.Helper()
	return testservers.MariaDBPool(t, addr, func(c *mysql.Config) {
		c.User, c.Params = user, params
		if charset := params["charset"]; charset != "" {
			c.Params = nil
			if err := c.Apply(mysql.Charset(charset, "")); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// execer is a pool or a connection.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func exec(t *testing.T, db execer, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func newEngine(t *testing.T, db *sql.DB, opts *mysqlengine.Options) engine.Engine {
	t.Helper()
	e, err := mysqlengine.New(t.Context(), db, opts)
	return leasetest.Opened(t, e, err)
}

// TestConnectionsKilled: all connections end while one holds and another waits.
func TestConnectionsKilled(t *testing.T) {
	addr := testservers.MariaDB(t).Addr
	admin := database(t, addr, "root", nil)
	exec(t, admin, "CREATE USER victim", "GRANT ALL ON pawl.* TO victim")
	e := newEngine(t, database(t, addr, "victim", nil), nil)
	pair := leasetest.NewPair(t, e, newEngine(t, database(t, addr, "victim", nil), nil))
	for range 2 {
		held, next := pair.Lock(t)
		killAll(t, admin, "victim", 2)
		sessiontest.Until(t, "the pool has met its dead connections", func() bool {
			_, err := e.Show(t.Context(), "killed")
			return err == nil
		})
		leasetest.HandsOver(t, held, next)
	}
}

// killAll ends every connection of a user that has not ended by itself: at least so many.
func killAll(t *testing.T, admin *sql.DB, user string, least int) {
	t.Helper()
	rows, err := admin.Query("SELECT id FROM information_schema.processlist WHERE user = ?", user)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Exec("KILL ?", id); err == nil {
			n++
		}
	}
	if err := rows.Err(); err != nil || n < least {
		t.Fatalf("%d connections were killed, %v", n, err)
	}
}

// TestRestart: the server is restarted while one holds and another waits.
func TestRestart(t *testing.T) {
	for name, restart := range map[string]func(*testservers.Server){
		"crash": func(s *testservers.Server) { s.Kill(); s.Restart() },
		"stop":  func(s *testservers.Server) { s.Stop(); s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testservers.MariaDB(t)
			a, b := newEngine(t, database(t, server.Addr, "root", nil), nil), newEngine(t, database(t, server.Addr, "root", nil), nil)
			held, next := leasetest.NewPair(t, a, b).Lock(t)
			restart(server)
			sessiontest.Until(t, "it answers", func() bool {
				_, err := a.Show(t.Context(), "restart")
				return err == nil
			})
			leasetest.HandsOver(t, held, next)
		})
	}
}

func TestLeastPrivilege(t *testing.T) {
	const right = "GRANT EXECUTE, SELECT ON pawl.* TO app"
	leasetest.Documented(t, "mysqlengine.go", right)
	addr := testservers.MariaDB(t).Addr
	admin := database(t, addr, "root", nil)
	exec(t, admin, "CREATE USER app", right)
	app := database(t, addr, "app", nil)
	if _, err := mysqlengine.New(t.Context(), app, nil); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "pawl store init") {
		t.Errorf("without tables and the right to create them: %v", err)
	}
	newEngine(t, admin, nil)
	leasetest.Complete(t, newEngine(t, app, nil), newEngine(t, app, nil))
	for _, forged := range []string{"UPDATE pawl_claims SET token = 1", "DELETE FROM pawl_sessions", "UPDATE pawl_slots SET last = 0",
		"INSERT INTO pawl_values VALUES ('x', 1, '')", "CREATE TABLE x (x INT)"} {
		if _, err := app.Exec(forged); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("%s: %v", forged, err)
		}
	}
}

// TestSettings: what a connection is set to changes nothing.
func TestSettings(t *testing.T) {
	addr := testservers.MariaDB(t).Addr
	for name, params := range map[string]map[string]string{
		"lax":          {"sql_mode": "''"},
		"serializable": {"tx_isolation": "'SERIALIZABLE'"},
		"other zone":   {"time_zone": "'+05:00'"},
		"latin1":       {"charset": "latin1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, database(t, addr, "root", params), nil)
			held, next := leasetest.NewPair(t, e, e).Lock(t)
			leasetest.HandsOver(t, held, next)
			s, err := e.Open(t.Context(), engine.SessionOptions{TTL: leasetest.TTL})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(t.Context())
			long := &engine.Claim{Spec: engine.Spec{Kind: engine.KindLock, Capacity: 1}, Resource: strings.Repeat("x", 513), ID: "i", Owner: "i", Weight: 1}
			if g, err := s.Enter(t.Context(), long, true); err == nil {
				t.Errorf("a name that is too long is cut: %v", g)
			}
		})
	}
}

// TestNoAutocommit: it is refused, where the tables are missing and where they
// are there.
func TestNoAutocommit(t *testing.T) {
	db := database(t, testservers.MariaDB(t).Addr, "root", map[string]string{"autocommit": "0"})
	refused := func(err error) {
		t.Helper()
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "autocommit") {
			t.Error(err)
		}
	}
	for range 2 {
		_, err := mysqlengine.New(t.Context(), db, nil)
		refused(err)
		_, err = mysqlengine.NewRow(t.Context(), db, nil)
		refused(err)
	}
}

// TestClock: the time is that after the wait for the lock, so that a session
// that ended meanwhile gets nothing.
func TestClock(t *testing.T) {
	db := database(t, testservers.MariaDB(t).Addr, "root", nil)
	e := newEngine(t, db, nil)
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("SELECT id FROM pawl_slots FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := s.Enter(context.Background(), &engine.Claim{Spec: engine.Spec{Kind: engine.KindLock, Capacity: 1}, Resource: "x", ID: "i", Owner: "i", Weight: 1}, true)
		got <- err
	}()
	sessiontest.Until(t, "the session has ended", func() bool {
		var ended bool
		err := db.QueryRow("SELECT ends < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM pawl_sessions WHERE id = ?", s.ID()).Scan(&ended)
		return err == nil && ended
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, engine.ErrGone) {
		t.Errorf("a session that ended while it waited for the server's lock: %v", err)
	}
}

// TestHeartbeatsPassWhatHangs: requests that wait in the server for a name leave a
// connection to heartbeats, which renew the client's other locks.
func TestHeartbeatsPassWhatHangs(t *testing.T) {
	addr := testservers.MariaDB(t).Addr
	db, other := database(t, addr, "root", nil), database(t, addr, "root", nil)
	db.SetMaxOpenConns(2)
	e := newEngine(t, db, nil)
	s := sessiontest.Open(t, e, leasetest.TTL)
	held, stuck := sessiontest.Whole(t, sessiontest.Fair), sessiontest.Whole(t, sessiontest.Fair)
	held.Resource, stuck.Resource = "held", "stuck"
	sessiontest.Hold(t, s, held)
	tx, err := other.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("SELECT id FROM pawl_slots WHERE id = CRC32('stuck') % 1024 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	const requests = 5
	for range requests {
		go func() {
			_, err := s.Enter(ctx, stuck, true)
			ended <- err
		}()
	}
	sessiontest.Until(t, "a request hangs", func() bool { return db.Stats().InUse > 0 })
	for range 3 {
		if gone, err := s.Renew(t.Context(), []*engine.Claim{held}); err != nil || len(gone) > 0 {
			t.Fatalf("renew: gone %v, %v", gone, err)
		}
	}
	cancel()
	for range requests {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// TestPoolOfOne: heartbeats need a connection of their own.
func TestPoolOfOne(t *testing.T) {
	db := database(t, testservers.SharedMariaDB(t).Addr, "root", nil)
	db.SetMaxOpenConns(1)
	if _, err := mysqlengine.New(t.Context(), db, nil); !errors.Is(err, engine.ErrUnsupported) {
		t.Error(err)
	}
}

// TestForgetfulServer: a server that does not flush each commit may have forgotten grants when it
// starts again. Such a server grants nothing as long as a holder may believe, and says so. A server that
// flushes goes on at once.
func TestForgetfulServer(t *testing.T) {
	for flush, forgets := range map[string]bool{"2": true, "1": false} {
		srv := testservers.MariaDB(t, "--innodb-flush-log-at-trx-commit="+flush)
		e := newEngine(t, database(t, srv.Addr, "root", nil), nil)
		s := sessiontest.Open(t, e, time.Hour)
		first := sessiontest.Whole(t, sessiontest.Fair)
		sessiontest.Hold(t, s, first)
		srv.Kill()
		srv.Restart()
		sessiontest.Until(t, "the server shows whether there is a grace that nobody has begun", func() bool {
			r, err := e.Show(t.Context(), "another")
			if err == nil && (r.Grace.On() != forgets || forgets && (r.Grace.Age != engine.Unknown || r.Grace.Left > time.Hour+time.Second)) {
				t.Errorf("flush %s: shown before the first client: %+v", flush, r)
			}
			return err == nil
		})
		var grant engine.Grant
		other := sessiontest.Whole(t, sessiontest.Fair)
		other.Resource = "another"
		sessiontest.Until(t, "the server answers", func() (ok bool) {
			var err error
			grant, err = s.Enter(t.Context(), other, true)
			return err == nil
		})
		if grant.Held() == forgets || grant.Grace.On() != forgets {
			t.Errorf("flush %s: %+v", flush, grant)
		}
		r, err := e.Show(t.Context(), "another")
		if err != nil || r.Grace.On() != forgets || forgets && r.Grace.Age > time.Hour {
			t.Errorf("flush %s: shown %+v, %v", flush, r, err)
		}
		third := sessiontest.Whole(t, sessiontest.Fair)
		third.Resource = "a third"
		var grace *engine.GraceError
		if _, err := s.Enter(t.Context(), third, false); errors.As(err, &grace) != forgets {
			t.Errorf("flush %s: %v", flush, err)
		}
	}
}

// TestFormats: tables of builds that had no mark are made anew when nobody uses them, and
// those of another format are refused.
func TestFormats(t *testing.T) {
	db := database(t, testservers.MariaDB(t).Addr, "root", nil)
	newEngine(t, db, nil)
	newRow(t, db, "")
	exec(t, db, "ALTER TABLE pawl_meta DROP COLUMN format", "UPDATE pawl_meta SET version = 1", "ALTER TABLE pawl_row_meta DROP COLUMN format",
		"ALTER TABLE pawl_claims DROP COLUMN granted", "INSERT INTO pawl_sessions (id, ends, ttl, label, client) VALUES ('old', 1 << 62, 1, '', '')")
	if _, err := mysqlengine.New(t.Context(), db, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "format 1") {
		t.Errorf("in use: %v", err)
	}
	exec(t, db, "DELETE FROM pawl_sessions")
	e := newEngine(t, db, nil)
	sessiontest.Hold(t, sessiontest.Open(t, e, leasetest.TTL), sessiontest.Whole(t, sessiontest.Fair))
	row := newRow(t, db, "")
	sessiontest.Hold(t, sessiontest.Open(t, row, leasetest.TTL), sessiontest.Whole(t, sessiontest.Fair))
	exec(t, db, "UPDATE pawl_meta SET version = 3 ORDER BY version DESC LIMIT 1", "ALTER TABLE pawl_claims DROP COLUMN held")
	if _, err := mysqlengine.New(t.Context(), db, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "version 3") || !strings.Contains(err.Error(), "version 8") {
		t.Errorf("version 3 in use: %v", err)
	}
	exec(t, db, "DELETE FROM pawl_sessions")
	sessiontest.Hold(t, sessiontest.Open(t, newEngine(t, db, nil), leasetest.TTL), sessiontest.Whole(t, sessiontest.Fair))
	exec(t, db, "UPDATE pawl_meta SET format = '99'", "UPDATE pawl_row_meta SET format = '99'")
	if _, err := mysqlengine.New(t.Context(), db, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "99") {
		t.Error(err)
	}
	if _, err := mysqlengine.NewRow(t.Context(), db, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "99") {
		t.Error(err)
	}
}

// TestNamesAreBytes: whatever character set a connection has, a name is the same for all. A name
// that differs by case, an accent or a space at its end is another.
func TestNamesAreBytes(t *testing.T) {
	addr := testservers.SharedMariaDB(t).Addr
	opts := &mysqlengine.Options{Prefix: "bytes_"}
	base := sessiontest.Open(t, newEngine(t, database(t, addr, "root", nil), opts), time.Hour)
	named := func(name string) *engine.Claim {
		c := sessiontest.Whole(t, sessiontest.Fair)
		c.Resource = name
		return c
	}
	var others []engine.Session
	for _, params := range []map[string]string{
		{"charset": "latin1"}, {"charset": "utf8"},
		{"character_set_connection": "'latin1'"}, {"character_set_client": "'latin1'"}, {"character_set_connection": "'utf16'"},
		{"sql_mode": "'NO_BACKSLASH_ESCAPES'"}, {"sql_mode": "'ANSI,PAD_CHAR_TO_FULL_LENGTH'"}, {"sql_safe_updates": "1"},
	} {
		others = append(others, sessiontest.Open(t, newEngine(t, database(t, addr, "root", params), opts), time.Hour))
	}
	names := []string{"a", "A", "a ", "é", "e\u0301", "e", "ß", "ss", "\uFEFFa", "\U0010FFFF", `\'; DROP`, "café", "🔒"}
	for _, name := range names {
		sessiontest.Hold(t, base, named(name)) // each is another
	}
	for _, name := range names {
		for i, s := range others {
			if g, err := s.Enter(t.Context(), named(name), false); !errors.Is(err, engine.ErrBusy) {
				t.Errorf("%q by client %d: %+v, %v", name, i, g, err)
			}
		}
	}
}

// TestNoProcedures: mysqldump leaves them out unless it is told otherwise. Values and tokens stay.
func TestNoProcedures(t *testing.T) {
	db := database(t, testservers.SharedMariaDB(t).Addr, "root", nil)
	opts := &mysqlengine.Options{Prefix: "restored_"}
	newEngine(t, db, opts)
	newRow(t, db, "restored_")
	rows, err := db.Query("SELECT CONCAT('DROP PROCEDURE ', routine_name) FROM information_schema.routines WHERE routine_name LIKE 'restored\\_%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var drops []string
	for rows.Next() {
		drops = append(drops, "")
		if err := rows.Scan(&drops[len(drops)-1]); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, append(drops, "UPDATE restored_row_meta SET ttl = 7200000000")...)
	for _, e := range []engine.Engine{newEngine(t, db, opts), newRow(t, db, "restored_")} {
		s := sessiontest.Open(t, e, leasetest.TTL)
		sessiontest.Hold(t, s, sessiontest.Whole(t, sessiontest.Barging))
	}
	var longest int64
	if err := db.QueryRow("SELECT MAX(ttl) FROM restored_row_meta").Scan(&longest); err != nil || longest != 7_200_000_000 {
		t.Errorf("the longest TTL is %d now, %v", longest, err)
	}
}

// TestReader: a user that may only read is not told of procedures, and looks all the same.
func TestReader(t *testing.T) {
	addr := testservers.SharedMariaDB(t).Addr
	db := database(t, addr, "root", nil)
	opts := &mysqlengine.Options{Prefix: "read_"}
	newEngine(t, db, opts)
	newRow(t, db, "read_")
	exec(t, db, "CREATE USER reader@'%'", "GRANT SELECT ON pawl.* TO reader@'%'")
	reader := database(t, addr, "reader", nil)
	for _, e := range []engine.Engine{newEngine(t, reader, opts), newRow(t, reader, "read_")} {
		if _, err := e.Show(t.Context(), "job"); err != nil {
			t.Error(err)
		}
	}
}
