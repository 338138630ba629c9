package pgengine_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestRowLongSchema: what the server keeps by a name that it cuts is told apart.
func TestRowLongSchema(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "long")
	for _, last := range []string{"a", "b"} {
		e := newRow(t, p, strings.Repeat("x", 62)+last)
		s := sessiontest.Open(t, e, leasetest.TTL)
		sessiontest.Hold(t, s, sessiontest.Whole(t, sessiontest.Fair))
	}
}

// TestRowShowsGrace: an operator learns of the restart grace before a client has noticed the restart.
func TestRowShowsGrace(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "grace")
	e := newRow(t, p, "row_grace")
	sessiontest.Open(t, e, time.Hour) // takes no connection
	exec(t, p, "UPDATE row_grace.row_boot SET started = now() - interval '1 day'")
	if r, err := e.Show(t.Context(), "x"); err != nil || r.Grace != (engine.Grace{Age: engine.Unknown, Left: time.Hour}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestModesBeginAtOnce: clients of both modes that are the first in a schema make it together.
func TestModesBeginAtOnce(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "begin")
	for round := range 10 {
		schema := fmt.Sprintf("begin_%d", round)
		var group sync.WaitGroup
		for range 2 {
			group.Go(func() {
				if _, err := pgengine.NewRow(t.Context(), p, &pgengine.RowOptions{Schema: schema}); err != nil {
					t.Errorf("row mode: %v", err)
				}
			})
			group.Go(func() {
				e, err := pgengine.New(t.Context(), p, &pgengine.Options{Schema: schema})
				if err != nil {
					t.Errorf("lease mode: %v", err)
				} else if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
}

func newRow(t *testing.T, p *pgxpool.Pool, schema string) engine.Engine {
	t.Helper()
	e, err := pgengine.NewRow(t.Context(), p, &pgengine.RowOptions{Schema: schema})
	return leasetest.Opened(t, e, err)
}

// one is a pool of one connection.
func one(t *testing.T, addr string) *pgxpool.Pool {
	t.Helper()
	config := pool(t, addr, "postgres", "one").Config()
	config.MaxConns = 1
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func claim(resource, id string) *engine.Claim {
	return &engine.Claim{Spec: sessiontest.Fair, Resource: resource, ID: id, Owner: id, Weight: engine.LockCapacity, Label: "same"}
}

// shown fails unless an operator sees that c holds since, or waits for, its
// resource.
func shown(t *testing.T, e engine.Engine, s engine.Session, c *engine.Claim, token fence.Token, since time.Time) {
	t.Helper()
	r, err := e.Show(t.Context(), c.Resource)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(r.Claims, func(is engine.ClaimInfo) bool { return is.ID == c.ID })
	if i < 0 {
		t.Fatalf("%s is not shown: %+v", c.ID, r.Claims)
	}
	is := r.Claims[i]
	age := is.Age
	is.Age = 0
	if want := (engine.ClaimInfo{ID: c.ID, Owner: c.Owner, Session: s.ID(), Label: c.Label, Weight: c.Weight, Token: token, Held: engine.Unknown, Left: engine.Unknown}); is != want || r.Barging != c.Barging {
		t.Errorf("shown as %+v, barging %v; want %+v", is, r.Barging, want)
	}
	if age < 0 || age > time.Since(since) {
		t.Errorf("shown to be %v old after %v", age, time.Since(since))
	}
}

// TestRowWritesOnce: the common texts of claims of a connection are written once, and each claim is
// shown with its own.
func TestRowWritesOnce(t *testing.T) {
	addr := testservers.Postgres(t).Addr // rows of connections that ended stay until there is a new one
	admin, e := pool(t, addr, "postgres", "admin"), newRow(t, one(t, addr), "once")
	operator := newRow(t, admin, "once")
	s := sessiontest.Open(t, e, leasetest.TTL)
	written := func() int { return count(t, admin, `SELECT xmin::text::int FROM once.row_claims WHERE session <> ''`) }
	var first int
	var last fence.Token
	for i := range 5 {
		start := time.Now()
		c := claim(fmt.Sprint("order/", i%2), fmt.Sprintf("%s.%x", s.ID(), 9+i))
		token := sessiontest.Hold(t, s, c)
		if token <= last {
			t.Errorf("token %v after %v", token, last)
		}
		last = token
		shown(t, operator, s, c, token, start)
		if names := count(t, admin, `SELECT count(*) FROM once.row_claims`); names != 1 {
			t.Errorf("%d rows", names)
		}
		sessiontest.Leave(t, s, c)
		if i == 0 {
			first = written()
		}
	}
	if now := written(); now != first {
		t.Error("the row was written again")
	}
	for _, change := range []func(*engine.Claim){
		func(c *engine.Claim) { c.Owner = "another" },
		func(c *engine.Claim) { c.Label = "another" },
		func(c *engine.Claim) { c.Barging = true },
		func(*engine.Claim) {},
	} {
		c := claim("order/0", s.ID()+".zz")
		change(c)
		start := time.Now()
		shown(t, operator, s, c, sessiontest.Hold(t, s, c), start)
		sessiontest.Leave(t, s, c)
	}
}

// TestRowClaimIDs: an id may be any text.
func TestRowClaimIDs(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "ids")
	e := newRow(t, p, "ids")
	s := sessiontest.Open(t, e, leasetest.TTL)
	for _, id := range []string{"plain", "7", ".7", "x.", "x.1.zz", "x.0123456789", "x.01234567890", "x.A", "x.1 2", "x.é", "名.1", strings.Repeat("l", 500) + ".1"} {
		c, next := claim("ids/"+id[:min(len(id), 50)], id), claim("ids/"+id[:min(len(id), 50)], "next of "+id[:min(len(id), 50)]+".1")
		start := time.Now()
		token := sessiontest.Hold(t, s, c)
		sessiontest.Wait(t, s, next)
		shown(t, e, s, c, token, start)
		shown(t, e, s, next, 0, start)
		got := sessiontest.Awaiting(t, s, next)
		if err := e.Evict(t.Context(), c.Resource, c.ID); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		shown(t, e, s, next, sessiontest.Granted(t, got).Token, start)
		s.Leave(t.Context(), c.Resource, c.ID) //nolint:errcheck // it is gone: that gives the connection back
		sessiontest.Leave(t, s, next)
	}
}

// TestRowDeleted: a row that somebody deleted, be it with its table, is there again
// soon.
func TestRowDeleted(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	admin, e := pool(t, addr, "postgres", "admin"), newRow(t, one(t, addr), "deleted")
	s := sessiontest.Open(t, e, time.Minute)
	n := 0
	locked := func() bool {
		n++
		c := claim("deleted", fmt.Sprintf("%s.%d", s.ID(), n))
		sessiontest.Hold(t, s, c)
		defer sessiontest.Leave(t, s, c)
		return count(t, admin, `SELECT count(*) FROM deleted.row_claims c JOIN pg_stat_activity a ON a.pid = c.pid AND starts_with(a.application_name, c.tag)`) == 1
	}
	if !locked() {
		t.Fatal("it is not shown")
	}
	exec(t, admin, `DROP SCHEMA deleted CASCADE`)
	newRow(t, admin, "deleted")
	sessiontest.Until(t, "it is shown again", locked)
}

// TestRowSharedConnection: two engines that use one connection in turn are not
// taken for one another.
func TestRowSharedConnection(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	admin, p := pool(t, addr, "postgres", "admin"), one(t, addr)
	var sessions []engine.Session
	schemas := []string{"turn_a", "turn_b"}
	for _, schema := range schemas {
		sessions = append(sessions, sessiontest.Open(t, newRow(t, p, schema), leasetest.TTL))
	}
	for i := range 6 {
		s, c := sessions[i%2], claim("turns", fmt.Sprint("same.", i))
		start := time.Now()
		token := sessiontest.Hold(t, s, c)
		shown(t, newRow(t, admin, schemas[i%2]), s, c, token, start)
		if r, err := newRow(t, admin, schemas[1-i%2]).Show(t.Context(), "turns"); err != nil || len(r.Claims) > 0 {
			t.Errorf("the other engine shows %+v, %v", r.Claims, err)
		}
		sessiontest.Leave(t, s, c)
	}
}

// TestRowOtherUser: a user is not told since when the transaction of another is
// open, and sees the rest.
func TestRowOtherUser(t *testing.T) {
	addr := testservers.Postgres(t).Addr // roles are of all its schemas
	admin := pool(t, addr, "postgres", "admin")
	e := newRow(t, admin, "others")
	exec(t, admin, `CREATE ROLE row_looker LOGIN`, `GRANT USAGE ON SCHEMA others TO row_looker`, `GRANT SELECT ON ALL TABLES IN SCHEMA others TO row_looker`)
	s := sessiontest.Open(t, e, leasetest.TTL)
	c := claim("others", s.ID()+".1")
	token := sessiontest.Hold(t, s, c)
	r, err := newRow(t, pool(t, addr, "row_looker", "looker"), "others").Show(t.Context(), c.Resource)
	if err != nil || len(r.Claims) != 1 || r.Claims[0].ID != c.ID || r.Claims[0].Token != token || r.Claims[0].Age >= 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRowOperatorOfAnotherRole: an operator with the documented rights breaks a waiter of another role, whose state the server does not
// tell. The waiter is told, and stays connected. A server without track_activities tells nobody.
func TestRowOperatorOfAnotherRole(t *testing.T) {
	for track, roles := range map[string]string{"on": "pg_signal_backend", "off": "pg_signal_backend, pg_read_all_stats"} {
		t.Run("track_activities "+track, func(t *testing.T) { breakOfAnotherRole(t, track, roles) })
	}
}

func breakOfAnotherRole(t *testing.T, track, roles string) {
	addr := testservers.Postgres(t).Addr // roles are of all its schemas
	admin := pool(t, addr, "postgres", "admin")
	holder := sessiontest.Open(t, newRow(t, admin, "others"), leasetest.TTL)
	for _, role := range []string{"row_app", "row_op"} {
		exec(t, admin, `CREATE ROLE `+role+` LOGIN`, `GRANT USAGE ON SCHEMA others TO `+role,
			`GRANT SELECT, INSERT, UPDATE, DELETE ON others.row_names, others.row_claims, others.row_boot, others.row_meta TO `+role,
			`GRANT USAGE, UPDATE ON SEQUENCE others.row_tokens TO `+role, `ALTER ROLE `+role+` SET track_activities = `+track)
	}
	exec(t, admin, `GRANT `+roles+` TO row_op`)
	held, waits := claim("broken", holder.ID()+".1"), claim("broken", "waiter.1")
	sessiontest.Hold(t, holder, held)
	s, op := sessiontest.Open(t, newRow(t, pool(t, addr, "row_app", "app"), "others"), leasetest.TTL), newRow(t, pool(t, addr, "row_op", "op"), "others")
	sessiontest.Wait(t, s, waits)
	got := sessiontest.Awaiting(t, s, waits)
	sessiontest.Until(t, "the operator sees both", func() bool {
		r, err := op.Show(t.Context(), "broken")
		return err == nil && len(r.Claims) == 2
	})
	sessiontest.Evict(t, op, waits)
	if is := <-got; !errors.Is(is.Err, engine.ErrGone) {
		t.Errorf("the waiter is told %v", is.Err)
	}
}

// TestRowMigration: tables of version 1, which kept more of a claim in its row,
// are those of today then.
func TestRowMigration(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "migration")
	newRow(t, p, "version_1")
	exec(t, p, `UPDATE version_1.row_meta SET version = 1`, `DROP TABLE version_1.row_claims`,
		`CREATE UNLOGGED TABLE version_1.row_claims (pid INT PRIMARY KEY, tag TEXT NOT NULL, resource TEXT COLLATE "C", claim TEXT,
			owner TEXT, session TEXT, label TEXT, barging BOOLEAN, since TIMESTAMPTZ) WITH (fillfactor = 50)`)
	e := newRow(t, p, "version_1")
	s, c := sessiontest.Open(t, e, leasetest.TTL), claim("migrated", "migrated.1")
	start := time.Now()
	shown(t, e, s, c, sessiontest.Hold(t, s, c), start)
}

// A schema of another format refuses row mode, with both formats named.
func TestRowFormat(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "row_format")
	newRow(t, p, "row_format")
	exec(t, p, `UPDATE row_format.row_meta SET format = '99'`)
	_, err := pgengine.NewRow(t.Context(), p, &pgengine.RowOptions{Schema: "row_format"})
	if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "format 99 ") || !strings.Contains(err.Error(), "format "+engine.Format()+":") {
		t.Errorf("opened on format 99: %v", err)
	}
}
