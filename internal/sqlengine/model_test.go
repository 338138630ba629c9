package sqlengine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/engine/sqliteengine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/sqlengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// model drives the routines of a server and queue.Apply with the same steps.
// After each of them all that can be seen must be the same.
type model struct {
	engine.Engine
	ctx      context.Context
	kill     func(session string) error
	name     string
	sessions []engine.Session
	dead     map[string]bool
	state    queue.State
	ids      []string // every claim that ever entered
	next     int
	embedded bool // a claim may look as soon as the queue says; each step first hands on what the dead held, so before a resize
	alone    bool // semaphores only, where each holder is its own owner: then the sum of what all hold is noted
}

// ends is in the hour after the next for the first session, an hour later for
// the second.
func (m *model) ends(session string) int64 {
	if m.dead[session] {
		return 0
	}
	i := slices.IndexFunc(m.sessions, func(s engine.Session) bool { return s.ID() == session })
	return 1 + int64(i+1)*time.Hour.Microseconds()
}

// class is the part of an error that the seam promises.
func class(err error) error {
	for _, c := range []error{engine.ErrBusy, engine.ErrGone, engine.ErrMismatch} {
		if errors.Is(err, c) {
			return c
		}
	}
	return err
}

// step takes a step in the server and in the model.
func (m *model) step(t *rapid.T, s engine.Session, r queue.Request) {
	token, pause, err := sqlengine.Step(m.ctx, s, m.name, r)
	if r.Op == queue.Enter && m.dead[s.ID()] {
		if class(err) != engine.ErrGone {
			t.Fatalf("enter of a dead session: %v, %v", token, err)
		}
		return
	}
	var out queue.Outcome
	if m.embedded {
		m.state, _ = queue.Apply(m.state, queue.Request{Op: queue.Poll}, queue.Clock{Now: 1, Mint: 1, Ends: m.ends})
	}
	m.state, out = queue.Apply(m.state, r, queue.Clock{Now: 1, Mint: 1, Ends: m.ends})
	if class(err) != class(out.Err) || (token != 0) != (out.Token != 0) {
		t.Fatalf("%+v: server %v %v, model %v %v", r, token, err, out.Token, out.Err)
	}
	wait, most := m.blocked(r.Claim.ID, out.Next)
	if m.embedded {
		wait = min(wait, time.Duration(max(out.Next-1, 0))*time.Microsecond)
	}
	if out.Err == nil && (pause > most || pause < wait-time.Minute) {
		t.Fatalf("%+v: looks after %v, model %v to %v: %+v", r, pause, wait, most, m.state.Claims)
	}
	m.agree(t)
}

// blocked is for how long a claim may wait at least and at most: until the first session ends that
// is in its way. That is the session of a holder, or of the first waiter. While a holder has all,
// neither the first waiter nor a lighter claim of that holder is in the way. The queue reckons with
// all that are before it.
func (m *model) blocked(claim string, next int64) (least, most time.Duration) {
	if next == 0 {
		return 0, 0
	}
	held, whole, first, waits := int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), false
	for _, c := range m.state.Claims {
		switch ends := m.ends(c.Session); {
		case c.Token != 0 && c.ID != claim:
			held = min(held, ends)
			if c.Weight == m.state.Spec.Capacity {
				whole = min(whole, ends)
			}
		case !waits && c.ID != claim:
			first = ends
			fallthrough
		default:
			waits = true
		}
	}
	until := func(ends int64) time.Duration { return time.Duration(ends-1) * time.Microsecond }
	if whole != math.MaxInt64 {
		return until(min(held, first)), until(whole)
	}
	return until(min(held, first)), until(min(held, first))
}

// agree compares the server with the model.
func (m *model) agree(t *rapid.T) {
	is, err := m.Show(m.ctx, m.name)
	if err != nil {
		t.Fatal(err)
	}
	live := m.state
	live.Claims = slices.DeleteFunc(slices.Clone(live.Claims), func(c queue.Claim) bool { return m.dead[c.Session] })
	want := live.Show(m.name, 1, m.ends)
	if len(want.Claims) != len(is.Claims) || len(want.Claims) > 0 && want.Spec != is.Spec {
		t.Fatalf("server %+v\nmodel  %+v", is, want)
	}
	for i, x := range want.Claims {
		y := is.Claims[i]
		if y.ID != x.ID || y.Owner != x.Owner || y.Weight != x.Weight || y.Session != x.Session || y.Label != x.Label || (y.Token != 0) != (x.Token != 0) {
			t.Fatalf("server %+v\nmodel  %+v", is, want)
		}
		if (y.Held >= 0) != (x.Held >= 0) || y.Held > y.Age+time.Second || y.Left > x.Left || y.Left < x.Left-time.Minute {
			t.Fatalf("times: server %+v\nmodel  %+v", is, want)
		}
		for j := range i { // tokens grow and are shared alike
			if (x.Token < want.Claims[j].Token) != (y.Token < is.Claims[j].Token) || (x.Token == want.Claims[j].Token) != (y.Token == is.Claims[j].Token) {
				t.Fatalf("order of tokens: server %+v\nmodel  %+v", is, want)
			}
		}
	}
}

var specs = []engine.Spec{
	{Kind: engine.KindLock, Capacity: engine.LockCapacity},
	{Kind: engine.KindSemaphore, Capacity: 3},
	{Kind: engine.KindLock, Capacity: engine.LockCapacity, Barging: true},
	{Kind: engine.KindSemaphore, Capacity: 3, Barging: true},
}

func (m *model) any(t *rapid.T) engine.Session {
	return m.sessions[rapid.IntRange(0, len(m.sessions)-1).Draw(t, "session")]
}

func (m *model) spec(t *rapid.T) engine.Spec {
	spec := rapid.SampledFrom(specs).Draw(t, "spec")
	if m.alone {
		spec.Kind, spec.Capacity = engine.KindSemaphore, 4
	}
	return spec
}

func (m *model) enter(t *rapid.T, spec engine.Spec) {
	s := m.any(t)
	m.next++
	r := queue.Request{Op: queue.Enter, Spec: spec, Wait: rapid.Bool().Draw(t, "wait")}
	if rapid.IntRange(0, 19).Draw(t, "other spec") == 0 {
		r.Spec = rapid.SampledFrom(specs).Draw(t, "spec")
	}
	id := fmt.Sprintf("%s.%d", s.ID(), m.next)
	owners := append([]string{id, id, id, "p", "q"}, m.ids...) // also the id of another claim, whose owner is then the same
	if m.alone {
		owners = owners[:1]
	}
	r.Claim = queue.Claim{
		ID: id, Session: s.ID(), Label: "l", Owner: rapid.SampledFrom(owners).Draw(t, "owner"),
		Weight: rapid.SampledFrom([]int64{1, 1, min(2, r.Spec.Capacity), r.Spec.Capacity}).Draw(t, "weight"),
	}
	m.ids = append(m.ids, id)
	m.step(t, s, r)
	if rapid.IntRange(0, 4).Draw(t, "again") == 0 {
		r.Wait = rapid.Bool().Draw(t, "wait again")
		m.step(t, s, r)
	}
}

func (m *model) run(t *rapid.T) {
	for i := range 3 {
		s, err := m.Open(m.ctx, engine.SessionOptions{TTL: time.Duration(i+1) * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		m.sessions = append(m.sessions, s)
	}
	defer func() {
		for _, s := range m.sessions {
			if err := s.Close(m.ctx); err != nil {
				t.Fatal(err)
			}
		}
	}()
	spec := m.spec(t)
	of := func(t *rapid.T, op queue.Op, ids []string) {
		if len(ids) == 0 {
			t.Skip()
		}
		id, s := rapid.SampledFrom(ids).Draw(t, "id"), m.any(t)
		if op == queue.Poll { // nobody looks for another
			s = m.sessions[slices.IndexFunc(m.sessions, func(s engine.Session) bool { return strings.HasPrefix(id, s.ID()) })]
		}
		m.step(t, s, queue.Request{Op: op, Claim: queue.Claim{ID: id}})
	}
	there := func() (ids []string) {
		for _, c := range m.state.Claims {
			ids = append(ids, c.ID)
		}
		return ids
	}
	t.Repeat(map[string]func(*rapid.T){
		"enter":               func(t *rapid.T) { m.enter(t, spec) },
		"leave":               func(t *rapid.T) { of(t, queue.Leave, m.ids) },
		"leave what is there": func(t *rapid.T) { of(t, queue.Leave, there()) },
		"poll":                func(t *rapid.T) { of(t, queue.Poll, m.ids) },
		"poll what is there":  func(t *rapid.T) { of(t, queue.Poll, there()) },
		"resize": func(t *rapid.T) {
			to := engine.Spec{Kind: engine.KindSemaphore, Capacity: rapid.Int64Range(1, 6).Draw(t, "capacity")}
			m.step(t, m.any(t), queue.Request{Op: queue.Resize, Spec: to})
			if spec.Kind == to.Kind && rapid.IntRange(0, 3).Draw(t, "known") > 0 { // to newcomers
				spec.Capacity = to.Capacity
			}
		},
		"look": func(t *rapid.T) { m.step(t, m.any(t), queue.Request{Op: queue.Poll}) },
		"kill": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
				t.Skip()
			}
			s := m.any(t).ID()
			if err := m.kill(s); err != nil {
				t.Fatal(err)
			}
			m.dead[s] = true
		},
	})
}

// server is one whose routines are checked.
type server struct {
	engine.Engine
	db   *sql.DB
	kill string // the statement

	embedded bool
	alone    bool
}

func postgres(t *testing.T, schema string) server {
	pool, err := pgxpool.New(t.Context(), testservers.PostgresURL(testservers.SharedPostgres(t).Addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { db.Close() })
	e, err := pgengine.New(t.Context(), pool, &pgengine.Options{Schema: schema, Unlogged: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return server{e, db, `UPDATE ` + schema + `.sessions SET ends = 0 WHERE id = $1`, false, false}
}

func mariadb(t *testing.T, prefix string) server {
	db, err := sql.Open("mysql", testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr).FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	e, err := mysqlengine.New(t.Context(), db, &mysqlengine.Options{Prefix: prefix + "_"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return server{e, db, `UPDATE ` + prefix + `_sessions SET ends = 0 WHERE id = ?`, false, false}
}

func sqlite(t *testing.T, _ string) server {
	path := filepath.Join(t.TempDir(), "model.db")
	e, err := sqliteengine.New(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	db, err := sql.Open("sqlite3", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return server{e, db, `UPDATE pawl_sessions SET ends = 0 WHERE id = ?`, true, false}
}

// TestTransactionsDoAsTheQueue: a step that loads the beginning of a line decides as if it had
// loaded all.
func TestTransactionsDoAsTheQueue(t *testing.T) {
	for _, window := range []int{1, 2, 8} {
		sqlengine.SetWindow(t, window)
		compare(t, sqlite(t, ""))
	}
}

// TestRoutinesDoAsTheQueue: also where what all hold together is noted from the first holder on.
func TestRoutinesDoAsTheQueue(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) server{"PostgreSQL": postgres, "MariaDB": mariadb} {
		t.Run(name, func(t *testing.T) {
			compare(t, start(t, "model"))
		})
		t.Run(name+" with sums", func(t *testing.T) {
			sqlengine.SetMany(t, 1)
			s := start(t, "sums")
			compare(t, s)
			s.alone = true
			compare(t, s)
		})
	}
}

// TestDeadWaiters: a step that hands on passes over the dead wherever they wait, and grants
// them nothing.
func TestDeadWaiters(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) server{"PostgreSQL": postgres, "MariaDB": mariadb, "SQLite": sqlite} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "waiters")
			live := sessiontest.Open(t, s, time.Hour) // nobody renews meanwhile
			for _, line := range []struct {
				waiters string // readers, writers, and dead ones
				want    []string
			}{
				{"r +w r", []string{"1", "3"}},
				{"r +w +r r w", []string{"1", "4"}},
				{"r +r w", []string{"1"}},
				{"+w r +w r", []string{"2", "4"}},
			} {
				dying := sessiontest.Open(t, s, time.Hour)
				enter := func(s engine.Session, id string, weight int64) *engine.Claim {
					c := sessiontest.Claim(t, specs[0], weight, "")
					c.Resource, c.ID, c.Owner = "dead waiters: "+line.waiters, id, id
					sessiontest.Enter(t, s, c)
					return c
				}
				holder := enter(live, "holder", engine.LockCapacity)
				for i, waiter := range strings.Fields(line.waiters) {
					of, weight := live, int64(1)
					if waiter[0] == '+' {
						of = dying
					}
					if strings.HasSuffix(waiter, "w") {
						weight = engine.LockCapacity
					}
					enter(of, fmt.Sprint(i+1), weight)
				}
				if _, err := s.db.Exec(s.kill, dying.ID()); err != nil {
					t.Fatal(err)
				}
				if err := live.Leave(t.Context(), holder.Resource, holder.ID); err != nil {
					t.Fatal(err)
				}
				r, err := s.Show(t.Context(), holder.Resource)
				if err != nil {
					t.Fatal(err)
				}
				var holds []string
				for _, c := range r.Claims {
					if c.Token != 0 {
						holds = append(holds, c.ID)
					}
				}
				if !slices.Equal(holds, line.want) {
					t.Errorf("%s: %v hold, want %v", line.waiters, holds, line.want)
				}
			}
		})
	}
}

func compare(t *testing.T, s server) {
	cases := 0
	rapid.Check(t, func(t *rapid.T) {
		cases++
		m := &model{Engine: s, ctx: context.Background(), name: fmt.Sprintf("model %d %s", cases, strings.Repeat("x", cases%400)), dead: map[string]bool{}}
		m.kill, m.embedded = func(id string) error { _, err := s.db.Exec(s.kill, id); return err }, s.embedded
		m.alone = s.alone
		m.run(t)
	})
}
