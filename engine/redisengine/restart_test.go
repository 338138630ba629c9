package redisengine

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// onServer is an engine on one database of a server that has no grace any more.
func onServer(t testing.TB, server *testservers.Server, db int) *Engine {
	t.Helper()
	e := New(dialTo(t, rueidis.ClientOption{InitAddress: []string{server.Addr}, ForceSingleClient: true, SelectDB: db}), nil)
	t.Cleanup(func() { e.Close() })
	return e
}

func does(t testing.TB, e *Engine, words ...string) Reply {
	t.Helper()
	r := e.client.Do(sessiontest.Soon(t), Command{Head: words})
	if r.Err != nil {
		t.Fatal(words, r.Err)
	}
	return r
}

func isNew(t testing.TB, e *Engine) {
	t.Helper()
	if err := e.Init(sessiontest.Soon(t)); err != nil {
		t.Fatal(err)
	}
}

// again does a call that may meet the connection of a server that is no more.
func again(t testing.TB, do func() error) error {
	t.Helper()
	var err error
	sessiontest.Until(t, "the server answers", func() bool {
		err = do()
		return !errors.Is(err, engine.ErrUnavailable)
	})
	return err
}

// refused enters where somebody may hold, though the store knows of nobody.
func refused(t testing.TB, s engine.Session, name string) engine.Grace {
	t.Helper()
	c := sessiontest.Whole(t, sessiontest.Fair)
	c.Resource = name
	var grace *engine.GraceError
	err := again(t, func() error { _, err := s.Enter(sessiontest.Soon(t), c, false); return err })
	if !errors.As(err, &grace) || !errors.Is(err, engine.ErrGrace) || errors.Is(err, engine.ErrBusy) {
		t.Fatalf("entered %q: %v; want the grace", name, err)
	}
	return grace.Grace
}

// TestRestartSeenByEachDatabase: a server that came back from a snapshot was noticed in one
// database, whose clients taught it their scripts. Another database has its own mark.
func TestRestartSeenByEachDatabase(t *testing.T) {
	server := testservers.Redis(t)
	zero, ours := onServer(t, server, 0), onServer(t, server, 1)
	isNew(t, zero)
	isNew(t, ours)
	z := visit(t, zero, time.Minute, "zero")
	a, b := visit(t, ours, time.Minute, "job"), visit(t, onServer(t, server, 1), time.Minute, "job")
	z.holds(all)
	z.leaves()
	does(t, ours, "SAVE")
	a.holds(all)
	server.Kill()
	server.Restart()
	refused(t, z.session, "zero")
	if g := refused(t, b.session, "job"); g.Age < 0 || g.Age > time.Minute || g.Left <= 0 || g.Left > time.Minute {
		t.Errorf("the grace is %+v", g)
	}
	if err := again(t, func() error {
		r, err := ours.Show(t.Context(), "job")
		if err == nil && !r.Grace.On() {
			t.Errorf("shown: %+v", r)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestRestartShownBeforeTheFirstSession: an operator reads of the grace that the next session begins, and the look changes nothing.
func TestRestartShownBeforeTheFirstSession(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	if err := visit(t, e, time.Minute, "job").Close(t.Context()); err != nil { // a client of another machine goes on
		t.Fatal(err)
	}
	if r, err := e.Show(t.Context(), "job"); err != nil || r.Grace.On() {
		t.Errorf("before: %+v, %v", r, err)
	}
	does(t, e, "SAVE")
	server.Kill()
	server.Restart()
	operator := onServer(t, server, 0)
	var marks [2]any
	for i := range marks {
		if r, err := operator.Show(t.Context(), "job"); err != nil || r.Grace.Age >= 0 || r.Grace.Left != time.Minute {
			t.Errorf("after: %+v, %v", r, err)
		}
		marks[i] = does(t, operator, "GET", "pawl:boot").Value
	}
	if marks[0] != marks[1] || marks[0] == nil || does(t, operator, "EXISTS", "pawl:grace").Value != int64(0) {
		t.Errorf("the look has changed %q to %q, or began the grace", marks[0], marks[1])
	}
}

// switching is a client that goes to another server, as one of Sentinels does.
type switching struct {
	Client
	other Client
	now   *atomic.Bool
}

func (s switching) is() Client {
	if s.now.Load() {
		return s.other
	}
	return s.Client
}
func (s switching) Do(ctx context.Context, c Command) Reply           { return s.is().Do(ctx, c) }
func (s switching) Together(ctx context.Context, c []Command) []Reply { return s.is().Together(ctx, c) }
func (s switching) Pipeline(ctx context.Context, c []Command) []Reply { return s.is().Pipeline(ctx, c) }

// TestFailbackIsNoticed: a server that was master before, and knows the scripts of that
// life, is promoted again without the last grants of the master between.
func TestFailbackIsNoticed(t *testing.T) {
	for _, idle := range []bool{false, true} { // whether the client has missed the master between
		a := testservers.Redis(t)
		b := testservers.RedisReplica(t, a.Addr)
		ea, eb := onServer(t, a, 0), onServer(t, b, 0)
		isNew(t, ea)
		var now atomic.Bool
		mover := NewOn(switching{onRueidis{dialOne(t, b.Addr)}, onRueidis{dialOne(t, a.Addr)}, &now}, nil)
		now.Store(true)
		w := visit(t, mover, time.Minute, "job")
		w.holds(all) // its scripts are known to a
		w.leaves()
		linked(t, eb)
		does(t, eb, "REPLICAOF", "NO", "ONE")
		_, portB, _ := strings.Cut(b.Addr, ":")
		does(t, ea, "REPLICAOF", "127.0.0.1", portB)
		now.Store(false)
		h := visit(t, eb, time.Minute, "job") // which notices that b is another master
		if !idle {
			if _, err := w.Renew(sessiontest.Soon(t), nil); err != nil {
				t.Fatal(err)
			}
		}
		does(t, eb, "DEL", "pawl:grace")
		linked(t, ea)
		does(t, eb, "WAIT", "1", "5000")
		does(t, ea, "REPLICAOF", "127.0.0.1", "1") // it has lost its master, and keeps what it has
		h.holds(all)
		does(t, ea, "REPLICAOF", "NO", "ONE")
		now.Store(true)
		refused(t, w.session, "job")
	}
}

// TestFirstReplicaIsNoSwap: a master takes another id for its first replica, and has lost nothing.
func TestFirstReplicaIsNoSwap(t *testing.T) {
	a := testservers.Redis(t)
	ea := onServer(t, a, 0)
	isNew(t, ea)
	id := func() string {
		info, _ := does(t, ea, "INFO", "replication").Value.(string)
		_, id, _ := strings.Cut(info, "master_replid:")
		return strings.Fields(id)[0]
	}
	alone := id()
	testservers.RedisReplica(t, a.Addr)
	if id() == alone {
		t.Fatal("the master has the same id as before")
	}
	visit(t, onServer(t, a, 0), time.Minute, "job").holds(all) // no grace
}

// TestGraceIsTheLongest: the mark knows how long somebody may believe. The first client after a
// restart may be an operator, or have a shorter TTL, and waits as long.
func TestGraceIsTheLongest(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	visit(t, e, time.Minute, "job").holds(all)
	does(t, e, "SAVE")
	server.Kill()
	server.Restart()
	if err := again(t, func() error { return onServer(t, server, 0).Evict(t.Context(), "job", "nobody's") }); !errors.Is(err, engine.ErrGone) {
		t.Fatal(err)
	}
	short := visit(t, onServer(t, server, 0), time.Second, "job")
	if g := refused(t, short.session, "other"); g.Left < 50*time.Second {
		t.Errorf("it grants again in %v, and somebody believes for a minute", g.Left)
	}
}

// TestGraceOfWhoComesBack: a server lost everything, also for how long somebody may believe. A
// client that was there before says so when it is connected again.
func TestGraceOfWhoComesBack(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	visit(t, e, time.Minute, "job").holds(all)
	server.Kill()
	server.Restart()
	short := visit(t, onServer(t, server, 0), 10*time.Second, "job")
	sessiontest.Until(t, "the grace is that of the longest", func() bool { return refused(t, short.session, "job").Left > 50*time.Second })
}

// TestOperatorsNoteNothing: an operator who is the first on a server that lost everything
// does not use its notice up.
func TestOperatorsNoteNothing(t *testing.T) {
	server := testservers.Redis(t)
	s, err := onServer(t, server, 0).Open(t.Context(), engine.SessionOptions{TTL: time.Hour, Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context()) //nolint:errcheck // not the point
	if g := refused(t, visit(t, onServer(t, server, 0), time.Minute, "job").session, "job"); g.Left > time.Minute {
		t.Errorf("an operator's session makes the grace %v", g.Left)
	}
}

// finding is a session that is told of claims that its client does not know.
func finding(t *testing.T, e *Engine, ttl time.Duration) (*session, *[]string) {
	t.Helper()
	found := new([]string)
	s, err := e.Open(sessiontest.Soon(t), engine.SessionOptions{TTL: ttl, Found: func(name, claim string) { *found = append(*found, name+" "+claim) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(sessiontest.Soon(t)) }) //nolint:errcheck // its server may be away
	return s.(*session), found
}

// TestReleaseUndoneByRestart: the server comes back from a snapshot with claims that a live session
// left later. The session's next renewal finds them, held ones and waiting ones, and no other.
func TestReleaseUndoneByRestart(t *testing.T) {
	for _, many := range []int{0, 2 * maxKnown} { // also where it cannot remember all names
		server := testservers.Redis(t)
		e := onServer(t, server, 0)
		isNew(t, e)
		s, found := finding(t, e, time.Minute)
		other := visit(t, e, time.Minute, "waits")
		other.holds(all)
		mine := visitor{s, t, "job"}
		held, keeps, waits := mine.claim(all), visitor{s, t, "keeps"}.claim(all), visitor{s, t, "waits"}.claim(all)
		held.ID, waits.ID = s.id+".held", s.id+".waits"
		held.Owner, waits.Owner = held.ID, waits.ID
		for _, c := range []*engine.Claim{held, keeps} {
			sessiontest.Hold(t, s, c)
		}
		sessiontest.Wait(t, s, waits)
		does(t, e, "SAVE")
		sessiontest.Leave(t, s, held)
		sessiontest.Leave(t, s, waits)
		for i := range many {
			c := sessiontest.Whole(t, sessiontest.Fair)
			c.Resource += string(rune('a' + i))
			sessiontest.Hold(t, s, c)
			sessiontest.Leave(t, s, c)
		}
		server.Kill()
		server.Restart()
		err := again(t, func() error {
			gone, err := s.Renew(t.Context(), []*engine.Claim{keeps})
			if len(gone) > 0 {
				t.Errorf("gone: %v", gone)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(*found) != 2 || !strings.Contains(strings.Join(*found, ","), "job "+held.ID) || !strings.Contains(strings.Join(*found, ","), "waits "+waits.ID) {
			t.Errorf("found %q", *found)
		}
		*found = nil
		err = again(t, func() error { _, err := s.Renew(t.Context(), []*engine.Claim{keeps}); return err })
		if err != nil || len(*found) > 0 {
			t.Errorf("looked for them again: %q, %v", *found, err)
		}
	}
}

// TestReleaseUndoneByFailover: so is what the promoted replica has not heard of.
func TestReleaseUndoneByFailover(t *testing.T) {
	master := testservers.Redis(t)
	link := proxy.New(t, master.Addr)
	replica := testservers.RedisReplica(t, link.Addr)
	em, er := onServer(t, master, 0), onServer(t, replica, 0)
	isNew(t, em)
	var now atomic.Bool
	e := NewOn(switching{onRueidis{dialOne(t, master.Addr)}, onRueidis{dialOne(t, replica.Addr)}, &now}, nil)
	s, found := finding(t, e, time.Minute)
	c := visitor{s, t, "job"}.claim(all)
	sessiontest.Hold(t, s, c)
	does(t, em, "WAIT", "1", "5000")
	link.Freeze()
	sessiontest.Leave(t, s, c)
	master.Kill()
	does(t, er, "REPLICAOF", "NO", "ONE")
	now.Store(true)
	if err := again(t, func() error { _, err := s.Renew(t.Context(), nil); return err }); err != nil || len(*found) != 1 {
		t.Fatalf("found %q, %v", *found, err)
	}
}

// TestServerIsNew: a caller that knows that a server is new has no grace to wait for. Nobody can
// say so of a server that has a mark.
func TestServerIsNew(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	visit(t, onServer(t, server, 0), time.Minute, "at once").holds(all)
	for _, other := range []*Engine{e, onServer(t, server, 0)} {
		if err := other.Init(t.Context()); !errors.Is(err, engine.ErrUsed) {
			t.Errorf("said again: %v", err)
		}
	}
	visit(t, onServer(t, server, 1), time.Minute, "other database")
	if err := onServer(t, server, 1).Init(t.Context()); !errors.Is(err, engine.ErrUsed) {
		t.Errorf("said of a database in use: %v", err)
	}
}

// TestOtherFormatIsRefused: a store in use by another format refuses, with both named, and is not
// changed. Where no client of that format lives, this build goes on after a grace.
func TestOtherFormatIsRefused(t *testing.T) {
	for format, mark := range map[string]string{"1": strings.Repeat("ab", 20), "9": "9\x1fab\x1fcd\x1f15000\x1f1"} {
		server := testservers.Redis(t)
		e := onServer(t, server, 0)
		does(t, e, "SET", "pawl:boot", mark)
		does(t, e, "ZADD", "pawl:sessions", "1e15", "old")
		allRefused(t, e, format)
		if is := does(t, e, "GET", "pawl:boot"); is.Value != mark {
			t.Errorf("the mark became %q", is.Value)
		}
		does(t, e, "ZADD", "pawl:sessions", "1", "old")
		if _, err := e.Put(t.Context(), "value", []byte("x"), 0); err != nil {
			t.Errorf("put after the last client of format %s: %v", format, err)
		}
		refused(t, visit(t, e, time.Minute, "job").session, "job")
	}
}

// TestEvictionIsRefused: a server that deletes keys when it is full may delete locks.
func TestEvictionIsRefused(t *testing.T) {
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		server := testservers.Redis(t, "--maxmemory", "100mb", "--maxmemory-policy", policy)
		_, err := onServer(t, server, 0).Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), policy) {
			t.Errorf("opened on %s: %v", policy, err)
		}
	}
	unbounded := onServer(t, testservers.Redis(t, "--maxmemory-policy", "allkeys-lru"), 0)
	visit(t, unbounded, time.Minute, "never full")
	nodes := testservers.RedisCluster(t)
	one := dialOne(t, nodes[2].Addr)
	for _, set := range [][2]string{{"maxmemory", "100mb"}, {"maxmemory-policy", "volatile-lru"}} {
		if err := one.Do(t.Context(), one.B().ConfigSet().ParameterValue().ParameterValue(set[0], set[1]).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := New(dial(t, nodes[0].Addr), nil).Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
	if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "volatile-lru") {
		t.Errorf("opened on a cluster with one node that evicts: %v", err)
	}
}

// TestEvictionIsRefusedAgain: a server that was restarted with another policy is refused by an engine that knows its mark. So is
// another server, from which an open session gets nothing either.
func TestEvictionIsRefusedAgain(t *testing.T) {
	refuses := func(e *Engine) {
		t.Helper()
		for range 2 { // the first look has told the engine nothing
			err := again(t, func() error {
				_, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
				return err
			})
			if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "allkeys-lru") {
				t.Errorf("opened: %v", err)
			}
		}
	}
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	if err := visit(t, e, time.Minute, "job").Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	does(t, e, "SAVE")
	server.Kill()
	server.Restart()
	raw := onServer(t, server, 0)
	does(t, raw, "CONFIG", "SET", "maxmemory", "100mb")
	does(t, raw, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	refuses(e)

	first, evicting := testservers.Redis(t), testservers.Redis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	isNew(t, onServer(t, first, 0))
	var now atomic.Bool
	s := visit(t, NewOn(switching{onRueidis{dialOne(t, first.Addr)}, onRueidis{dialOne(t, evicting.Addr)}, &now}, nil), time.Minute, "job")
	now.Store(true)
	refuses(s.engine)
	if g, err := s.Enter(t.Context(), s.claim(all), false); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("entered: %v, %v", g, err)
	}
}

// TestUserWhoMayNotAsk: whether a server was restarted is told by INFO. A user who may not ask is
// refused at once.
func TestUserWhoMayNotAsk(t *testing.T) {
	server := testservers.RedisUser(t, "app", "s3cret", "~*", "&*", "+@all", "-info")
	e := New(dialTo(t, rueidis.ClientOption{InitAddress: []string{server.Addr}, ForceSingleClient: true, Username: "app", Password: "s3cret"}), nil)
	if _, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute}); err == nil || !strings.Contains(err.Error(), "may not ask INFO") {
		t.Errorf("opened without INFO: %v", err)
	}
}
