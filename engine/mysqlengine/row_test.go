package mysqlengine_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func newRow(t *testing.T, db *sql.DB, prefix string) engine.Engine {
	t.Helper()
	e, err := mysqlengine.NewRow(t.Context(), db, &mysqlengine.RowOptions{Prefix: prefix})
	return leasetest.Opened(t, e, err)
}

// TestRowTimeouts: those of a connection are given back as they were, also after
// a wait that had to be asked for again.
func TestRowTimeouts(t *testing.T) {
	const ttl = time.Second
	db := database(t, testservers.SharedMariaDB(t).Addr, "root", map[string]string{"wait_timeout": "1234", "innodb_lock_wait_timeout": "567"})
	db.SetMaxOpenConns(2)
	db.SetMaxIdleConns(2)
	e := newRow(t, db, "timeouts_")
	a, b := sessiontest.Open(t, e, 10*ttl), sessiontest.Open(t, e, ttl)
	held, next := sessiontest.Whole(t, sessiontest.Fair), sessiontest.Whole(t, sessiontest.Fair)
	first := sessiontest.Hold(t, a, held)
	sessiontest.Wait(t, b, next)
	got := sessiontest.Awaiting(t, b, next)
	tick := time.NewTicker(ttl / 5)
	defer tick.Stop()
	for range 12 { // b lives, and asks twice
		<-tick.C
		if _, err := b.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	sessiontest.Leave(t, a, held)
	if second := sessiontest.Granted(t, got).Token; second <= first {
		t.Errorf("token %v after %v", second, first)
	}
	sessiontest.Leave(t, b, next)
	for range 2 {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var idle, patience, open int
		if err := conn.QueryRowContext(t.Context(), "SELECT @@wait_timeout, @@innodb_lock_wait_timeout, @@in_transaction").Scan(&idle, &patience, &open); err != nil {
			t.Fatal(err)
		}
		if idle != 1234 || patience != 567 || open != 0 {
			t.Errorf("time-outs of %d and %d s, in transaction: %d", idle, patience, open)
		}
	}
}

// plain hides all but what every driver has.
type plain struct{ driver.Connector }

func (p plain) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := p.Connector.Connect(ctx)
	return struct{ driver.Conn }{conn}, err
}

// TestRowPlainDriver: a driver around the driver need not do what that does.
func TestRowPlainDriver(t *testing.T) {
	connector, err := mysql.NewConnector(testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr))
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(plain{connector})
	t.Cleanup(func() { db.Close() })
	s := sessiontest.Open(t, newRow(t, db, "plain_"), leasetest.TTL)
	var last uint64
	for range 2 {
		c := sessiontest.Whole(t, sessiontest.Fair)
		token := uint64(sessiontest.Hold(t, s, c))
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
		sessiontest.Leave(t, s, c)
	}
}

// TestRowNoStart: a client that does not know when the server started gives nothing out.
func TestRowNoStart(t *testing.T) {
	db := database(t, testservers.SharedMariaDB(t).Addr, "root", nil)
	e := newRow(t, db, "no_start_")
	s := sessiontest.Open(t, e, leasetest.TTL)
	exec(t, db, "DELETE FROM no_start_row_boot")
	if r, err := e.Show(t.Context(), "x"); err != nil || r.Grace.Age != engine.Unknown || r.Grace.Left != leasetest.TTL {
		t.Errorf("shown before a client has noticed the restart: %+v, %v", r, err)
	}
	exec(t, db, "DELETE FROM no_start_row_meta")
	sessiontest.Refuse(t, s, sessiontest.Whole(t, sessiontest.Fair), true, engine.ErrUnavailable)
}

// TestRowUpgradeBesideARestart: a server that was restarted has forgotten who held, also if a program that
// replaces older procedures is the first to come.
func TestRowUpgradeBesideARestart(t *testing.T) {
	db := database(t, testservers.MariaDB(t).Addr, "root", nil)
	newRow(t, db, "")
	exec(t, db, "UPDATE pawl_row_meta SET version = 3, ttl = 60000000", "DELETE FROM pawl_row_boot") // a restart empties it
	s := sessiontest.Open(t, newRow(t, db, ""), time.Minute)
	if g, err := s.Enter(t.Context(), sessiontest.Whole(t, sessiontest.Fair), false); !errors.Is(err, engine.ErrGrace) {
		t.Errorf("%v, %v; want the grace of the restart", g, err)
	}
}

// TestRowPromotedReplica: a replica that takes over has all tables of its primary, and knows no holder. So the replica grants nothing
// until no holder of the primary trusts its lock.
func TestRowPromotedReplica(t *testing.T) {
	addr := testservers.MariaDB(t).Addr
	db := database(t, addr, "root", nil)
	e := newRow(t, db, "")
	sessiontest.Hold(t, sessiontest.Open(t, e, leasetest.TTL), sessiontest.Whole(t, sessiontest.Fair))
	exec(t, db, "SET GLOBAL server_id = @@GLOBAL.server_id + 1") // now the tables are those of another server
	promoted := newRow(t, database(t, addr, "root", nil), "")
	if r, err := promoted.Show(t.Context(), "x"); err != nil || r.Grace.Left != leasetest.TTL {
		t.Errorf("shown before a client has noticed: %+v, %v", r, err)
	}
	s := sessiontest.Open(t, promoted, leasetest.TTL)
	c := sessiontest.Whole(t, sessiontest.Fair)
	c.Resource += "/other"
	if g, err := s.Enter(t.Context(), c, false); !errors.Is(err, engine.ErrGrace) {
		t.Errorf("%v, %v; want the grace of another server", g, err)
	}
}

// TestRowShowsSinceWhenItHolds: an operator sees since when a claim waits, and since when
// it holds.
func TestRowShowsSinceWhenItHolds(t *testing.T) {
	e := newRow(t, database(t, testservers.SharedMariaDB(t).Addr, "root", nil), "since_")
	a, b := sessiontest.Open(t, e, leasetest.TTL), sessiontest.Open(t, e, leasetest.TTL)
	first, next := sessiontest.Whole(t, sessiontest.Fair), sessiontest.Whole(t, sessiontest.Fair)
	sessiontest.Hold(t, a, first)
	sessiontest.Wait(t, b, next)
	got := sessiontest.Awaiting(t, b, next)
	const while = 20 * time.Millisecond
	sessiontest.Until(t, "it waits for a while", func() bool {
		r, err := e.Show(t.Context(), next.Resource)
		return err == nil && len(r.Claims) == 2 && r.Claims[0].Held >= while && r.Claims[1].Held == engine.Unknown && r.Claims[1].Age >= while
	})
	sessiontest.Leave(t, a, first)
	sessiontest.Granted(t, got)
	r, err := e.Show(t.Context(), next.Resource)
	if err != nil || len(r.Claims) != 1 || r.Claims[0].Held < 0 || r.Claims[0].Age < r.Claims[0].Held+while {
		t.Errorf("%+v, %v", r, err)
	}
}
