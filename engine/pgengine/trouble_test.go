package pgengine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func claimOf(name string, s engine.Session, number int) *engine.Claim {
	c := &engine.Claim{Spec: sessiontest.Fair, Resource: name, ID: fmt.Sprintf("%s.%d", s.ID(), number), Weight: sessiontest.Fair.Capacity}
	c.Owner = c.ID
	return c
}

// small is a pool of few connections.
func small(t *testing.T, addr string, connections int32, params string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(addr) + params)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = connections
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// TestWhatHangsStarvesNobody: a step of one name hangs in the server, and more ask for
// that name than the pool has connections. Heartbeats go on, and so does who leaves.
func TestWhatHangsStarvesNobody(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	pooler := testservers.PgBouncer(t, addr).Addr
	for name, c := range map[string]struct {
		addr string
		opts pgengine.Options
	}{
		"direct": {addr, pgengine.Options{Schema: "hangs"}},
		"pooled": {pooler, pgengine.Options{Schema: "hangs_pooled", Pooled: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			params := ""
			if c.opts.Pooled {
				params = "&default_query_exec_mode=exec"
			}
			e := newEngine(t, small(t, c.addr, 3, params), &c.opts)
			s := sessiontest.Open(t, e, leasetest.TTL)
			mine := claimOf("mine", s, 1)
			sessiontest.Hold(t, s, mine)
			admin := pool(t, addr, "postgres", "admin")
			tx, err := admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background()) //nolint:errcheck // ends with the connection
			if _, err := tx.Exec(t.Context(), "SELECT * FROM "+c.opts.Schema+".step('poll', '', 'hangs', '', '', '', 0, '', 0, 0, 0)"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 8)
			for i := range cap(ended) {
				go func() { _, err := s.Enter(ctx, claimOf("hangs", s, 10+i), true); ended <- err }()
			}
			hung := "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory' AND query LIKE '%" + c.opts.Schema + "%step%'"
			sessiontest.Until(t, "some hang", func() bool { return count(t, admin, hung) > 0 })
			for range 10 {
				soon, stop := context.WithTimeout(t.Context(), leasetest.TTL/3)
				gone, err := s.Renew(soon, []*engine.Claim{mine})
				stop()
				if err != nil || len(gone) > 0 {
					t.Fatalf("a renewal beside requests that hang: %v, %v", gone, err)
				}
			}
			soon, stop := context.WithTimeout(t.Context(), leasetest.TTL/3)
			defer stop()
			if err := s.Leave(soon, mine.Resource, mine.ID); err != nil {
				t.Errorf("leave beside requests that hang: %v", err)
			}
			cancel()
			for range cap(ended) {
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
	}
}

func TestPoolOfOneIsRefused(t *testing.T) {
	p := small(t, testservers.SharedPostgres(t).Addr, 1, "")
	if e, err := pgengine.New(t.Context(), p, &pgengine.Options{Schema: "one"}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("%v, %v", e, err)
	}
}

// waitAll has n claims of a session wait for a name that another session holds. waitAll returns the
// holder's claim, and the answers in the order in which they come.
func waitAll(t *testing.T, holder, waiter engine.Session, name string, n int) (held *engine.Claim, got chan *engine.Claim) {
	t.Helper()
	held = claimOf(name, holder, 0)
	sessiontest.Hold(t, holder, held)
	got = make(chan *engine.Claim, n)
	for i := range n {
		c := claimOf(name, waiter, 1+i)
		sessiontest.Wait(t, waiter, c)
		go func() {
			if _, err := waiter.Await(t.Context(), c); err != nil {
				t.Errorf("%s: %v", c.ID, err)
			}
			got <- c
		}()
	}
	return held, got
}

// inTurn lets all have it, one after the other, and returns the longest hand-over.
func inTurn(t *testing.T, holder, waiter engine.Session, held *engine.Claim, got chan *engine.Claim) (longest time.Duration) {
	t.Helper()
	s := holder
	for range cap(got) {
		start := time.Now()
		sessiontest.Leave(t, s, held)
		select {
		case held = <-got:
		case <-sessiontest.Soon(t).Done():
			t.Fatal("nobody is told")
		}
		longest, s = max(longest, time.Since(start)), waiter
	}
	sessiontest.Leave(t, s, held)
	return longest
}

// TestLostMessages: no message arrives, and each waiter is told all the same within a heartbeat,
// not only the waiter that looks.
func TestLostMessages(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "lost")
	opts := &pgengine.Options{Schema: "lost"}
	const heartbeat = time.Second
	open := func() engine.Session {
		s, err := newEngine(t, p, opts).Open(t.Context(), engine.SessionOptions{TTL: time.Minute, Delay: time.Minute - 3*heartbeat, Heartbeat: heartbeat})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(context.Background()) }) //nolint:errcheck // the end of the test
		return s
	}
	holder, waiter := open(), open()
	held, got := waitAll(t, holder, waiter, "lost", 3)
	sessiontest.Until(t, "a message has proved that they arrive", func() bool {
		return count(t, p, "SELECT count(*) FROM lost.told") == 2
	})
	exec(t, p, "DELETE FROM lost.told")
	if longest := inTurn(t, holder, waiter, held, got); longest > 3*heartbeat {
		t.Errorf("a hand-over took %v", longest)
	}
}

// TestUnsaidPooler: a client that does not say that there is a pooler is told by nobody, and asks.
func TestUnsaidPooler(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	p := small(t, testservers.PgBouncer(t, addr).Addr, 4, "&default_query_exec_mode=exec")
	opts := &pgengine.Options{Schema: "unsaid"}
	holder, waiter := sessiontest.Open(t, newEngine(t, p, opts), leasetest.TTL), sessiontest.Open(t, newEngine(t, p, opts), leasetest.TTL)
	held, got := waitAll(t, holder, waiter, "unsaid", 20)
	if longest := inTurn(t, holder, waiter, held, got); longest > leasetest.TTL/4 {
		t.Errorf("a hand-over took %v", longest)
	}
}

// TestForgedMessages: a user of locks cannot find out where a waiter is told. Messages to names
// that the user can read tell nobody.
func TestForgedMessages(t *testing.T) {
	addr := testservers.Postgres(t).Addr
	admin := pool(t, addr, "postgres", "admin")
	e := newEngine(t, admin, nil)
	exec(t, admin, "CREATE ROLE app LOGIN", rights)
	app := pool(t, addr, "app", "app")
	holder, waiter := sessiontest.Open(t, e, leasetest.TTL), sessiontest.Open(t, e, leasetest.TTL)
	held, got := waitAll(t, holder, waiter, "forged", 1)
	if n := count(t, admin, "SELECT count(*) FROM pawl.told"); n != 2 {
		t.Fatalf("%d channels", n)
	}
	if n := count(t, app, "SELECT count(*) FROM pawl.told"); n != 0 {
		t.Errorf("a user reads %d channels", n)
	}
	exec(t, app, `SELECT pg_notify('pawl_' || x, '9007199254740991 0 ' || c.session || ' ' || c.id)
		FROM pawl.claims c JOIN pawl.sessions s ON s.id = c.session, unnest(ARRAY[s.client, s.id, c.id]) x WHERE c.waits = 1`)
	exec(t, app, "SELECT 1") // a message that is sent after those
	sessiontest.Leave(t, holder, held)
	<-got
	r, err := e.Show(t.Context(), "forged")
	if err != nil || len(r.Claims) != 1 || r.Claims[0].Token > 1<<52 {
		t.Errorf("%+v, %v", r, err)
	}
	var query string
	if err := admin.QueryRow(t.Context(), "SELECT coalesce(string_agg(query, ';'), '') FROM pg_stat_activity WHERE query LIKE '%pawl\\_%' AND pid <> pg_backend_pid()").Scan(&query); err != nil || query != "" {
		t.Errorf("the activity of the server shows %q, %v", query, err)
	}
}

// TestManyDeadAreBuried: not one a heartbeat.
func TestManyDeadAreBuried(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "dead")
	s := sessiontest.Open(t, newEngine(t, p, &pgengine.Options{Schema: "dead"}), leasetest.TTL)
	sessiontest.Hold(t, s, &engine.Claim{
		Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: 1000}, Resource: "dead", ID: s.ID() + ".1", Owner: s.ID() + ".1", Weight: 1,
	})
	exec(t, p, `INSERT INTO dead.sessions (id, ends, ttl, label, client) SELECT 'dead' || i, i, 15000000, 'x', 'y' FROM generate_series(1, 300) i`,
		`INSERT INTO dead.claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waits, news, slot)
			SELECT 'dead', i + 1, 'dead' || i, 'c' || i, 'o', 'l', 1, i, 0, 0, 'semaphore', 1000, 0, 0, 0, slot FROM dead.claims, generate_series(1, 300) i`)
	buried := func(renew bool, most int) func() bool {
		return func() bool {
			if renew {
				if _, err := s.Renew(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			return count(t, p, "SELECT count(*) FROM dead.sessions WHERE id LIKE 'dead%'") <= most
		}
	}
	buried(true, 0)()
	sessiontest.Until(t, "one renewal buries more than one", buried(false, 298))
	sessiontest.Until(t, "all are buried", buried(true, 0))
	if n := count(t, p, "SELECT count(*) FROM dead.claims"); n != 1 {
		t.Errorf("%d claims are left, not one", n)
	}
}

// TestNoPlanIsCompiled: the functions have no index for the table with one row, and seqscan is off in them. So its plan costs
// enough to be compiled, which takes 65 ms in each new connection, unless the functions forbid that.
func TestNoPlanIsCompiled(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "compiled")
	newEngine(t, p, &pgengine.Options{Schema: "compiled"})
	const functions = "FROM pg_proc WHERE pronamespace = 'compiled'::regnamespace AND prokind = 'f'"
	if all, off := count(t, p, "SELECT count(*) "+functions), count(t, p, "SELECT count(*) "+functions+" AND 'jit=off' = ANY(proconfig)"); all != 5 || off != all {
		t.Errorf("%d of %d functions compile no plan; want all 5", off, all)
	}
}

// countedPool counts how often a request takes a connection of the pool.
func countedPool(t *testing.T, addr string) (p *pgxpool.Pool, requests *atomic.Int64) {
	t.Helper()
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	requests = new(atomic.Int64)
	config.BeforeAcquire = func(context.Context, *pgx.Conn) bool { requests.Add(1); return true }
	if p, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, requests
}

// TestHandOverUnderManyWaiters: a release asks for as much among many waiters as among few. Holder and waiters are of one
// pool, which counts.
func TestHandOverUnderManyWaiters(t *testing.T) {
	const rounds = 20
	cost := make(map[int]float64)
	for _, n := range []int{10 + rounds, 300} {
		p, requests := countedPool(t, testservers.SharedPostgres(t).Addr)
		s := sessiontest.Open(t, newEngine(t, p, &pgengine.Options{Schema: "turns"}), 10*time.Minute)
		held, got := waitAll(t, s, s, fmt.Sprint("turns/", n), n)
		before := requests.Load()
		for range rounds {
			sessiontest.Leave(t, s, held)
			held = <-got
		}
		cost[n] = float64(requests.Load()-before) / rounds
		for range n - rounds {
			sessiontest.Leave(t, s, held)
			held = <-got
		}
	}
	t.Logf("requests of a hand-over by waiters: %v", cost)
	if few, more := cost[10+rounds], cost[300]; few > 3 || more > 2*few+1 {
		t.Errorf("requests of a hand-over by waiters: %v", cost)
	}
}

// TestBrokenWaiterIsAlone: one of many that wait is broken, and the others ask nothing.
func TestBrokenWaiterIsAlone(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	opts := &pgengine.Options{Schema: "broken"}
	holder := sessiontest.Open(t, newEngine(t, pool(t, addr, "postgres", "holder"), opts), time.Minute)
	counted, requests := countedPool(t, addr)
	e := newEngine(t, counted, opts)
	waiter := sessiontest.Open(t, e, time.Minute)
	const n = 200
	sessiontest.Hold(t, holder, claimOf("x", holder, 0))
	ended := make(chan error, n)
	for i := range n {
		c := claimOf("x", waiter, 1+i)
		sessiontest.Wait(t, waiter, c)
		go func() { _, err := waiter.Await(t.Context(), c); ended <- err }()
	}
	before := requests.Load()
	if err := holder.Leave(t.Context(), "x", claimOf("x", waiter, n).ID); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, engine.ErrGone) {
		t.Error(err)
	}
	for range 20 { // meanwhile others would ask, too
		if _, err := e.Show(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if asked := requests.Load() - before - 20; asked > 5 {
		t.Errorf("%d requests for one that was broken", asked)
	}
}

// TestFullQueue: another program keeps the queue of notifications full. A client that leaves does
// so, and a waiter is told by asking.
func TestFullQueue(t *testing.T) {
	if os.Getenv("PAWL_TEST_SOAK") == "" {
		t.Log("it takes 8 GB of messages: only with PAWL_TEST_SOAK=1")
		return
	}
	addr := testservers.Postgres(t).Addr
	admin := pool(t, addr, "postgres", "admin")
	conn, err := admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, q := range []string{"LISTEN other", "BEGIN", "SELECT 1"} {
		if _, err := conn.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	e := newEngine(t, pool(t, addr, "postgres", "full"), nil)
	holder := sessiontest.Open(t, e, time.Hour)
	for i := 0; err == nil; i += 20000 {
		_, err = admin.Exec(t.Context(), `SELECT count(pg_notify('other', lpad(i::text, 7990, 'x'))::text) FROM generate_series($1::int, $1::int + 19999) i`, i)
	}
	if !strings.Contains(err.Error(), "too many notifications") {
		t.Fatal(err)
	}
	held, got := waitAll(t, holder, sessiontest.Open(t, e, leasetest.TTL), "full", 1)
	sessiontest.Leave(t, holder, held)
	select {
	case <-got:
	case <-time.After(leasetest.TTL):
		t.Error("the waiter is not told")
	}
}
