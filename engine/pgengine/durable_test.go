package pgengine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestTokensGrowAfterFailover: a replica that lagged is promoted, so that the sequence
// of tokens is behind, and the mark of the server is another's.
func TestTokensGrowAfterFailover(t *testing.T) {
	for name, opts := range map[string]*pgengine.Options{"logged": {Schema: "behind"}, "unlogged": {Schema: "behind_unlogged", Unlogged: true}} {
		t.Run(name, func(t *testing.T) {
			p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "behind")
			e := newEngine(t, p, opts)
			s := sessiontest.Open(t, e, leasetest.TTL)
			first := claimOf("behind", s, 1)
			before := sessiontest.Hold(t, s, first)
			version, err := e.Put(t.Context(), "behind", []byte("1"), 0)
			if err != nil {
				t.Fatal(err)
			}
			sessiontest.Leave(t, s, first)
			exec(t, p, "SELECT setval('"+opts.Schema+".tokens', 17)", "UPDATE "+opts.Schema+".boot SET started = now() - interval '1 day'")
			second := claimOf("behind", s, 2)
			if after := sessiontest.Hold(t, s, second); after <= before {
				t.Errorf("token %d after %d", after, before)
			}
			exec(t, p, "SELECT setval('"+opts.Schema+".tokens', 17)", "UPDATE "+opts.Schema+".boot SET started = now() - interval '1 day'")
			if after, err := e.Put(t.Context(), "behind", []byte("2"), version); err != nil || after <= version {
				t.Errorf("version %d after %d, %v", after, version, err)
			}
		})
	}
}

// TestGrantsSurviveTheServer: grants in logged tables are there after a crash, although the server
// does not wait for the disk by default.
func TestGrantsSurviveTheServer(t *testing.T) {
	server := testservers.Postgres(t, "-c", "synchronous_commit=off", "-c", "wal_writer_delay=10000ms", "-c", "autovacuum=off")
	p := pool(t, server.Addr, "postgres", "survives")
	e := newEngine(t, p, nil)
	s := sessiontest.Open(t, e, time.Minute)
	for i := range 20 {
		c := claimOf("survives", s, i)
		sessiontest.Hold(t, s, c)
		sessiontest.Leave(t, s, c)
	}
	token := sessiontest.Hold(t, s, claimOf("survives", s, 20))
	server.Kill()
	server.Restart()
	sessiontest.Until(t, "the grant is there", func() bool {
		r, err := e.Show(t.Context(), "survives")
		if err == nil && (len(r.Claims) != 1 || r.Claims[0].Token != token) {
			t.Fatalf("%+v", r)
		}
		return err == nil
	})
}

// TestBeliefsSurviveTheServer: for how long holders believe is there after a crash, although the server does not wait for the
// disk by default. Otherwise the grace would be too short.
func TestBeliefsSurviveTheServer(t *testing.T) {
	for name, open := range map[string]func(*pgxpool.Pool) engine.Engine{
		"unlogged": func(p *pgxpool.Pool) engine.Engine { return newEngine(t, p, &pgengine.Options{Unlogged: true}) },
		"row":      func(p *pgxpool.Pool) engine.Engine { return newRow(t, p, "pawl") },
	} {
		server := testservers.Postgres(t, "-c", "synchronous_commit=off", "-c", "wal_writer_delay=10000ms", "-c", "autovacuum=off")
		p := pool(t, server.Addr, "postgres", "beliefs")
		e := open(p)
		exec(t, p, "CHECKPOINT") // the tables are on the disk
		sessiontest.Open(t, e, time.Hour)
		server.Kill()
		server.Restart()
		sessiontest.Until(t, "the grace is shown", func() bool {
			r, err := e.Show(t.Context(), "x")
			if err == nil && r.Grace.Left < time.Hour-time.Minute {
				t.Errorf("%s: %+v", name, r.Grace)
			}
			return err == nil
		})
	}
}

// TestNoFsyncIsRefused also beside unlogged tables: the server keeps values in others, and for how long holders believe.
func TestNoFsyncIsRefused(t *testing.T) {
	p := pool(t, testservers.Postgres(t, "-c", "fsync=off").Addr, "postgres", "fsync")
	for name, open := range map[string]func() (engine.Engine, error){
		"logged": func() (engine.Engine, error) { return pgengine.New(t.Context(), p, nil) },
		"unlogged": func() (engine.Engine, error) {
			return pgengine.New(t.Context(), p, &pgengine.Options{Schema: "unlogged", Unlogged: true})
		},
		"row": func() (engine.Engine, error) { return pgengine.NewRow(t.Context(), p, nil) },
	} {
		if e, err := open(); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "fsync") {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
}

// TestOtherEncodingIsRefused: a name would be another one in the database, and two
// would hold. The URL says which it is.
func TestOtherEncodingIsRefused(t *testing.T) {
	addr := testservers.Postgres(t).Addr
	exec(t, pool(t, addr, "postgres", "admin"), "CREATE ROLE latin LOGIN SUPERUSER", "ALTER ROLE latin SET client_encoding = 'LATIN1'")
	p := pool(t, addr, "latin", "latin")
	if e, err := pgengine.New(t.Context(), p, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "LATIN1") {
		t.Errorf("lease mode: %v, %v", e, err)
	}
	if e, err := pgengine.NewRow(t.Context(), p, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "LATIN1") {
		t.Errorf("row mode: %v, %v", e, err)
	}
	for _, mode := range []string{"lease", "row"} {
		a, err := open.Open(t.Context(), "postgres://latin@"+addr+"/postgres?mode="+mode)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := open.Open(t.Context(), "postgres://postgres@"+addr+"/postgres?mode="+mode)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		holder, other := sessiontest.Open(t, a, leasetest.TTL), sessiontest.Open(t, b, leasetest.TTL)
		sessiontest.Hold(t, holder, claimOf("café", holder, 1))
		sessiontest.Refuse(t, other, claimOf("café", other, 1), false, engine.ErrBusy)
	}
}

// TestFormats: tables of another format of pawl are refused, by both names. Those of
// the versions before there were marks are taken over when nobody uses them.
func TestFormats(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "formats")
	opts := &pgengine.Options{Schema: "formats"}
	e := newEngine(t, p, opts)
	s := sessiontest.Open(t, e, leasetest.TTL)
	version, err := e.Put(t.Context(), "kept", []byte("kept"), 0)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what, found string) {
		t.Helper()
		e, err := pgengine.New(t.Context(), p, opts)
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "format "+found) || !strings.Contains(err.Error(), "format "+engine.Format()) {
			t.Errorf("%s: %v, %v", what, e, err)
		}
	}
	exec(t, p, "UPDATE formats.meta SET format = '99'")
	refused("another format", "99")
	exec(t, p, "UPDATE formats.meta SET version = 1, format = NULL")
	refused("an old version that is used", "1")
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := newEngine(t, p, opts)
	if v, err := again.Get(t.Context(), "kept"); err != nil || v.Version != version || string(v.Data) != "kept" {
		t.Errorf("%+v, %v", v, err)
	}
	next := sessiontest.Open(t, again, leasetest.TTL)
	if token := sessiontest.Hold(t, next, claimOf("formats", next, 1)); uint64(token) <= version {
		t.Errorf("token %d after %d", token, version)
	}
	exec(t, p, `CREATE OR REPLACE FUNCTION formats.start(p_session text, p_ttl bigint, p_belief bigint, p_label text, p_client text, p_channel text, OUT r_format text)
		LANGUAGE sql AS $$ SELECT '99' $$`)
	if _, err := again.Open(t.Context(), engine.SessionOptions{TTL: leasetest.TTL}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a session where another format came meanwhile: %v", err)
	}
}

// TestGraceOfBeliefs: a store that forgot grants nothing for the longest time for which
// a holder may believe, and says how long that is. Operators add nothing to it.
func TestGraceOfBeliefs(t *testing.T) {
	server := testservers.Postgres(t)
	p := pool(t, server.Addr, "postgres", "grace")
	e := newEngine(t, p, &pgengine.Options{Unlogged: true})
	const belief = 4 * time.Second
	for _, o := range []engine.SessionOptions{{TTL: time.Hour, Delay: time.Hour}, {TTL: time.Minute, Delay: time.Minute - belief}, {TTL: time.Second}} {
		if _, err := e.Open(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	server.Restart()
	p.Reset() // no request gets a connection to the dead server
	sessiontest.Until(t, "the grace is shown that nobody has begun", func() bool {
		r, err := e.Show(t.Context(), "nobody's")
		if err == nil && (r.Grace.Age != engine.Unknown || r.Grace.Left < belief || r.Grace.Left > belief+time.Second) {
			t.Fatalf("%+v", r)
		}
		return err == nil
	})
	var s engine.Session
	sessiontest.Until(t, "a session is open", func() (ok bool) {
		var err error
		s, err = e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute, Delay: time.Minute})
		return err == nil
	})
	var grace *engine.GraceError
	if _, err := s.Enter(t.Context(), claimOf("grace", s, 1), false); !errors.As(err, &grace) || !errors.Is(err, engine.ErrGrace) || grace.Left > belief || grace.Left < belief/4 || grace.Age < 0 {
		t.Fatalf("%v: %+v", err, grace)
	}
	waits := claimOf("grace", s, 2)
	g, err := s.Enter(t.Context(), waits, true)
	if err != nil || g.Held() || !g.Grace.On() || g.Grace.Left > belief {
		t.Errorf("%+v, %v", g, err)
	}
	if r, err := e.Show(t.Context(), "nobody's"); err != nil || !r.Grace.On() || len(r.Claims) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	sessiontest.Await(t, s, waits)
	if r, err := e.Show(t.Context(), "grace"); err != nil || r.Grace.On() || len(r.Claims) != 1 || r.Claims[0].Left <= 0 || r.Claims[0].Held < 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestFound: a renewal tells of a claim that the client does not know to hold.
func TestFound(t *testing.T) {
	e := newEngine(t, pool(t, testservers.SharedPostgres(t).Addr, "postgres", "found"), &pgengine.Options{Schema: "found"})
	var found []string
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: leasetest.TTL, Found: func(resource, claim string) { found = append(found, resource+" "+claim) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	known, strange := claimOf("found/1", s, 1), claimOf("found/2", s, 2)
	sessiontest.Hold(t, s, known)
	sessiontest.Hold(t, s, strange)
	gone, err := s.Renew(t.Context(), []*engine.Claim{known})
	if err != nil || len(gone) > 0 || len(found) != 1 || found[0] != strange.Resource+" "+strange.ID {
		t.Errorf("%q, %v, %v", found, gone, err)
	}
}
