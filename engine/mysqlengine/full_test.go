package mysqlengine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestFullServer: all tables and the undo log of a server are in one file, which is full. Renewals and
// releases are refused with the reason and grant nothing. Once there is room, both go through.
func TestFullServer(t *testing.T) {
	const file = "--innodb-data-file-path=ibdata1:12M:autoextend"
	server := testservers.MariaDB(t, "--innodb-file-per-table=0", file+":max:16M")
	db := database(t, server.Addr, "root", nil)
	e := newEngine(t, db, nil)
	holder, waiter := sessiontest.Open(t, e, time.Hour), sessiontest.Open(t, e, time.Hour)
	held, next := sessiontest.Whole(t, sessiontest.Fair), sessiontest.Whole(t, sessiontest.Fair)
	sessiontest.Hold(t, holder, held)
	next.Resource = held.Resource
	sessiontest.Wait(t, waiter, next)
	exec(t, db, "CREATE TABLE filler (data LONGBLOB)")
	const tableFull = 1114
	for _, size := range []int{1 << 18, 1 << 14, 1 << 7} {
		var refused *mysql.MySQLError
		var err error
		for err == nil {
			_, err = db.ExecContext(t.Context(), "INSERT INTO filler (data) VALUES (REPEAT('x', ?))", size)
		}
		if !errors.As(err, &refused) || refused.Number != tableFull {
			t.Fatal(err)
		}
	}
	full := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "is full") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := holder.Renew(t.Context(), nil)
	full("renew", err)
	full("leave", holder.Leave(t.Context(), held.Resource, held.ID))
	if r, err := e.Show(t.Context(), held.Resource); err != nil || len(r.Claims) != 2 || r.Claims[0].ID != held.ID || r.Claims[1].Token != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	server.RestartWith(file)                                     // a full server cannot even drop a table
	sessiontest.Until(t, "the session is renewed", func() bool { // old connections have ended
		_, err := holder.Renew(t.Context(), nil)
		return err == nil
	})
	sessiontest.Leave(t, holder, held)
	sessiontest.Await(t, waiter, next)
}
