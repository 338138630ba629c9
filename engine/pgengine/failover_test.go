package pgengine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// either connects to that of two servers which may be written.
func either(t *testing.T, one, other string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), "postgres://postgres@"+one+","+other+"/postgres?sslmode=disable&target_session_attrs=read-write")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// cutOff waits until a replica knows all so far, and ends the replication.
func cutOff(t *testing.T, primary, replica *pgxpool.Pool) {
	t.Helper()
	var heard string
	if err := primary.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&heard); err != nil {
		t.Fatal(err)
	}
	sessiontest.Until(t, "the replica knows that", func() bool {
		return count(t, replica, "SELECT (pg_last_wal_replay_lsn() >= '"+heard+"')::int") == 1
	})
	exec(t, replica, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
	sessiontest.Until(t, "the replica is cut off", func() bool { return count(t, replica, "SELECT count(*) FROM pg_stat_wal_receiver") == 0 })
}

// lasting opens a session that needs no heartbeat in a test, and whose holder believes for as long as belief says.
func lasting(t *testing.T, e engine.Engine, belief time.Duration) engine.Session {
	t.Helper()
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute, Delay: time.Minute - belief, Heartbeat: belief / 3})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLaggingReplicaPromoted: a replica takes over that has not heard of the last tokens, versions
// and grants. The new master's tokens are larger all the same, the holder that it does not know is told, and the
// next waiter gets the lock.
func TestLaggingReplicaPromoted(t *testing.T) {
	for name, opts := range map[string]*pgengine.Options{"logged": {}, "unlogged": {Unlogged: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lag(t, opts)
		})
	}
}

func lag(t *testing.T, opts *pgengine.Options) {
	const belief = 5 * time.Second
	primary := testservers.PostgresPrimary(t)
	replica := testservers.PostgresReplica(t, primary)
	old, standby := pool(t, primary.Addr, "postgres", "old"), pool(t, replica.Addr, "postgres", "standby")
	master := either(t, primary.Addr, replica.Addr)
	e := newEngine(t, master, opts)
	a := lasting(t, e, belief)
	lock := func(s engine.Session, number int) fence.Token {
		c := claimOf("many", s, number)
		token := sessiontest.Hold(t, s, c)
		sessiontest.Leave(t, s, c)
		return token
	}
	lock(a, 0)
	cutOff(t, old, standby)
	var before fence.Token
	for i := range 100 { // a sequence is ahead by up to 32 on a replica
		before = lock(a, i+1)
	}
	version, err := e.Put(t.Context(), "value", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	held := claimOf("held", a, 1)
	before = max(before, fence.Token(version), sessiontest.Hold(t, a, held))

	killed := time.Now()
	primary.Kill()
	exec(t, standby, "SELECT pg_promote()")
	if is := count(t, standby, "SELECT last_value FROM pawl.tokens"); fence.Token(is) >= before-32 {
		t.Errorf("the replica does not lag: it is at %d, and %d was given out", is, before)
	}
	sessiontest.Until(t, "the holder is told", func() bool {
		gone, err := a.Renew(t.Context(), []*engine.Claim{held})
		return len(gone) == 1 || errors.Is(err, engine.ErrGone)
	})
	// An idle connection to the dead server fails the request that gets it, and an engine retries nothing.
	master.Reset()
	b := lasting(t, e, belief)
	next := claimOf("held", b, 1)
	g := sessiontest.Enter(t, b, next)
	if g.Held() == opts.Unlogged && (!g.Held() || time.Since(killed) < belief) { // a busy machine may come after the grace
		t.Errorf("the next: %v; unlogged tables are empty then, so that there is a grace", g)
	}
	if !g.Held() {
		if g, err = b.Await(t.Context(), next); err != nil {
			t.Fatal(err)
		}
	}
	token := g.Token
	if token <= before {
		t.Errorf("token %v after %v", token, before)
	}
	if after, err := e.Put(t.Context(), "value", []byte("2"), 0); err != nil || fence.Token(after) <= before {
		t.Errorf("version %d after %v, %v", after, before, err)
	}
}
