package redisengine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// clusterUnderTest is a cluster with a client of each node besides that of all.
type clusterUnderTest struct {
	t      *testing.T
	nodes  []*testservers.Server
	single []rueidis.Client
	ids    []string
	client rueidis.Client
}

func newCluster(t *testing.T) *clusterUnderTest { return clusterOf(t, testservers.RedisCluster(t)) }

func clusterOf(t *testing.T, nodes []*testservers.Server) *clusterUnderTest {
	c := &clusterUnderTest{t: t, nodes: nodes}
	for _, node := range c.nodes {
		raw := dialOne(t, node.Addr)
		c.single = append(c.single, raw)
		id, err := raw.Do(t.Context(), raw.B().ClusterMyid().Build()).ToString()
		if err != nil {
			t.Fatal(err)
		}
		c.ids = append(c.ids, id)
	}
	c.client = dial(t, c.nodes[0].Addr)
	return c
}

// node returns which node has a key, and its slot.
func (c *clusterUnderTest) node(key string) (node int, slot int64) {
	c.t.Helper()
	slot, err := c.client.Do(c.t.Context(), c.client.B().ClusterKeyslot().Key(key).Build()).AsInt64()
	if err != nil {
		c.t.Fatal(err)
	}
	return int((slot*3 + 2) / 16384), slot // as testservers distributes them
}

// on returns a name that a node has.
func (c *clusterUnderTest) on(node int) string {
	for i := 0; ; i++ {
		name := "on " + strconv.Itoa(i)
		if is, _ := c.node("pawl:{" + name + "}"); is == node {
			return name
		}
	}
}

// session opens one with its home on a node.
func (c *clusterUnderTest) session(e *Engine, ttl time.Duration, node int) *session {
	c.t.Helper()
	for {
		opened, err := e.Open(c.t.Context(), engine.SessionOptions{TTL: ttl})
		if e.wait > 0 && errors.Is(err, engine.ErrUnavailable) {
			continue // where its home would be there are no replicas
		}
		if err != nil {
			c.t.Fatal(err)
		}
		s := opened.(*session)
		c.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			s.Close(ctx) //nolint:errcheck // some nodes may be away
		})
		if is, _ := c.node(s.key); is == node {
			return s
		}
	}
}

// ask sends a command to one node.
func (c *clusterUnderTest) ask(node int, words ...any) rueidis.RedisResult {
	c.t.Helper()
	text := make([]string, len(words))
	for i, word := range words {
		text[i] = fmt.Sprint(word)
	}
	raw := c.single[node]
	result := raw.Do(c.t.Context(), raw.B().Arbitrary(text...).Build())
	if err := result.Error(); err != nil {
		c.t.Fatalf("%v: %v", text, err)
	}
	return result
}

// move moves some keys to another node.
func (c *clusterUnderTest) move(from, to int, keys []string) {
	c.t.Helper()
	host, port, _ := net.SplitHostPort(c.nodes[to].Addr)
	words := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
	for _, key := range keys {
		words = append(words, key)
	}
	c.ask(from, words...)
}

func plainClaim(s *session, name, id string) *engine.Claim {
	c := exclusive(s, id)
	c.Resource = name
	return c
}

// waited is what a waiter got.
type waited struct {
	engine.Grant
	err error
}

// wait enters a claim that has to wait.
func (c *clusterUnderTest) wait(s *session, claim *engine.Claim) <-chan waited {
	c.t.Helper()
	if g, err := s.Enter(c.t.Context(), claim, true); err != nil || g.Held() {
		c.t.Fatal(g, err)
	}
	got := make(chan waited, 1)
	go func() {
		g, err := s.Await(c.t.Context(), claim)
		got <- waited{g, err}
	}()
	return got
}

// renews expects that a session and what it holds live, or another outcome.
func (c *clusterUnderTest) renews(when string, s *session, held []*engine.Claim, want error) {
	c.t.Helper()
	if gone, err := s.Renew(c.t.Context(), held); !errors.Is(err, want) || len(gone) > 0 {
		c.t.Fatalf("%s: gone %v, %v, want %v", when, gone, err, want)
	}
}

// TestSlotMoves: a name whose slot goes to another node keeps its holder and its waiters, at each
// step of that. A client that enters meanwhile learns within a third of its TTL that the store is
// unavailable. A minimum hold of that client makes that no later.
func TestSlotMoves(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, &Options{Grace: 100 * time.Millisecond})
	awaitGrace(t, eng)
	a, b := c.session(eng, 20*time.Second, 1), c.session(eng, 20*time.Second, 1)
	other := New(c.client, &Options{Grace: 100 * time.Millisecond})
	keeps, err := other.Open(t.Context(), engine.SessionOptions{TTL: time.Hour, Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer keeps.Close(context.Background()) //nolint:errcheck // checked elsewhere
	late := c.session(other, 3*time.Second, 1)
	name := c.on(0)
	held, next, last := plainClaim(a, name, "held"), plainClaim(b, name, "next"), plainClaim(a, name, "last")
	first := sessiontest.Hold(t, a, held)
	second, third := c.wait(b, next), c.wait(a, last)
	c.moveSlot(name, func(when string, want error) {
		t.Helper()
		c.renews(when, a, []*engine.Claim{held}, want)
		c.renews(when, b, nil, want)
		if want == nil {
			return
		}
		if g, err := late.Enter(sessiontest.Soon(t), plainClaim(late, name, "late"), false); !errors.Is(err, want) {
			t.Errorf("%s: %v, %v", when, g, err)
		}
	})
	if again := sessiontest.Hold(t, a, held); again != first {
		t.Errorf("asked again: %v, was %v", again, first)
	}
	sessiontest.Leave(t, a, held)
	g := <-second
	if g.err != nil || g.Token <= first {
		t.Fatalf("the next: %v after %v", g, first)
	}
	sessiontest.Leave(t, b, next)
	if l := <-third; l.err != nil || l.Token <= g.Token {
		t.Fatalf("the last: %v after %v", l, g)
	}
	sessiontest.Leave(t, a, last)
}

// moveSlot moves that of a name from node 0 to node 2, and looks at each step.
func (c *clusterUnderTest) moveSlot(name string, look func(when string, want error)) {
	c.t.Helper()
	_, slot := c.node("pawl:{" + name + "}")
	look("before", nil)
	c.ask(2, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[0])
	c.ask(0, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[2])
	look("while nothing has moved", nil)
	keys, err := c.ask(0, "CLUSTER", "GETKEYSINSLOT", slot, 100).AsStrSlice()
	if err != nil || len(keys) < 4 {
		c.t.Fatal(keys, err)
	}
	sessions := "pawl:{" + name + "}:s"
	c.move(0, 2, []string{sessions})
	look("while a part has moved", engine.ErrUnavailable)
	c.move(0, 2, slices.DeleteFunc(keys, func(key string) bool { return key == sessions }))
	look("when all has moved", nil)
	for _, node := range []int{2, 0, 1} {
		c.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[2])
	}
	look("after", nil)
}

// TestNodeForgets: a node that comes back without its data gives no name out for one TTL. The
// claims of a session elsewhere stay, and it uses the names of that node again.
func TestNodeForgets(t *testing.T) {
	c := newCluster(t)
	const ttl = 5 * time.Second
	eng := New(c.client, &Options{Grace: time.Millisecond})
	awaitGrace(t, eng)
	a, b := c.session(eng, ttl, 0), c.session(New(c.client, nil), ttl, 0)
	lost, stays := plainClaim(a, c.on(2), "lost"), plainClaim(a, c.on(0), "stays")
	for _, claim := range []*engine.Claim{lost, stays} {
		sessiontest.Hold(t, a, claim)
	}
	killed := time.Now()
	c.nodes[2].Kill()
	c.nodes[2].Restart()
	testservers.AwaitRedisCluster(t, c.nodes)
	gone, err := a.Renew(t.Context(), []*engine.Claim{lost, stays})
	for errors.Is(err, engine.ErrUnavailable) { // a connection that broke
		gone, err = a.Renew(t.Context(), []*engine.Claim{lost, stays})
	}
	if err != nil || len(gone) != 1 || gone[0] != lost {
		t.Fatalf("gone %v, %v", gone, err)
	}
	next := plainClaim(b, lost.Resource, "next")
	if g, err := b.Enter(t.Context(), next, false); !errors.Is(err, engine.ErrGrace) {
		t.Fatalf("a node that forgot gives out %v, %v", g, err)
	}
	g, err := b.Enter(t.Context(), next, true)
	for beat := time.NewTicker(ttl / 5); err == nil && !g.Held(); <-beat.C {
		if _, err := a.Renew(t.Context(), []*engine.Claim{stays}); err != nil {
			t.Fatal(err)
		}
		if _, err = b.Renew(t.Context(), nil); err == nil {
			short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if g, err = b.Await(short, next); errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			cancel()
		}
	}
	if after := time.Since(killed); err != nil || after < ttl {
		t.Errorf("%v after %v, %v", g, after, err)
	}
	sessiontest.Leave(t, b, next)
	again := plainClaim(a, lost.Resource, "again")
	if g, err := a.Enter(t.Context(), again, false); err != nil || !g.Held() {
		t.Errorf("the session there again: %v, %v", g, err)
	}
	if gone, err := a.Renew(t.Context(), []*engine.Claim{stays, again}); err != nil || len(gone) > 0 {
		t.Errorf("gone %v, %v", gone, err)
	}
}

// TestMembersLive: a renewal proves that a session lives for every claim that it may
// have, and forgets the names where it has none.
func TestMembersLive(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, &Options{Grace: 100 * time.Millisecond})
	awaitGrace(t, eng)
	const ttl = time.Minute
	s, other := c.session(eng, ttl, 0), c.session(eng, ttl, 1)
	names := []string{c.on(0), c.on(1), c.on(2)} // held, waited for, left
	for i, name := range names {
		if i == 1 {
			sessiontest.Hold(t, other, plainClaim(other, name, "holds"))
		}
		if g, err := s.Enter(t.Context(), plainClaim(s, name, "claim"), true); err != nil || g.Held() != (i != 1) {
			t.Fatal(g, err)
		}
	}
	if err := s.Leave(t.Context(), names[2], s.id+".claim"); err != nil {
		t.Fatal(err)
	}
	const soon = 5 * time.Second
	ends := func(name, member string) time.Duration {
		ms, err := c.client.Do(t.Context(), c.client.B().Pttl().Key("pawl:{"+name+"}:s:"+member).Build()).AsInt64()
		score, scoreErr := c.client.Do(t.Context(), c.client.B().Zscore().Key("pawl:{"+name+"}:s").Member(member).Build()).AsFloat64()
		if err != nil || scoreErr != nil {
			t.Fatal(err, scoreErr)
		}
		return min(time.Duration(ms)*time.Millisecond, time.Until(time.UnixMilli(int64(score))))
	}
	var members []string
	for _, name := range names {
		id := s.as(name)
		members = append(members, id)
		key, set := "pawl:{"+name+"}:s:"+id, "pawl:{"+name+"}:s"
		for _, r := range c.client.DoMulti(t.Context(),
			c.client.B().Pexpire().Key(key).Milliseconds(soon.Milliseconds()).Build(),
			c.client.B().Zadd().Key(set).ScoreMember().ScoreMember(float64(time.Now().Add(soon).UnixMilli()), id).Build()) {
			if r.Error() != nil {
				t.Fatal(r.Error())
			}
		}
	}
	if _, err := s.Renew(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if left := ends(name, members[i]); (left > soon) != (i < 2) {
			t.Errorf("%q has %v left", name, left)
		}
	}
	if s.as(names[2]) != s.id || s.as(names[0]) != members[0] {
		t.Errorf("a member of %v", s.members.byName)
	}
	sessiontest.Hold(t, s, plainClaim(s, names[2], "again"))
	if id := s.as(names[2]); id == members[2] || ends(names[2], id) < ttl/2 {
		t.Errorf("a member again as %q with %v", id, ends(names[2], id))
	}
}

// TestRenewalMeetsJoin: a renewal that comes between a claim that joins a name and its reply counts
// for that claim as well. A renewal that comes before ends nothing.
func TestRenewalMeetsJoin(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, &Options{Grace: 100 * time.Millisecond})
	awaitGrace(t, eng)
	s := c.session(eng, time.Minute, 0)
	claim := plainClaim(s, c.on(1), "claim")
	m, joined := s.claims(claim) // as Enter notes it before it is sent
	if joined {
		t.Fatal("joined before it asked")
	}
	if _, err := s.Renew(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if s.as(claim.Resource) != m.id {
		t.Fatal("who is about to join is parted")
	}
	args := s.arguments([4]string{s.record(claim, m.id), "0", s.keep, form(claim)}, m.id, "1")
	if r := eng.run(t.Context(), enter, eng.keys(claim.Resource, m.id), args, 0); r.Err != nil { // the reply is on its way
		t.Fatal(r.Err)
	}
	key := eng.keys(claim.Resource, m.id)[5]
	if err := c.client.Do(t.Context(), c.client.B().Pexpire().Key(key).Milliseconds(5000).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Renew(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if ms, err := c.client.Do(t.Context(), c.client.B().Pttl().Key(key).Build()).AsInt64(); err != nil || ms < 30_000 {
		t.Errorf("it has %d ms left, %v", ms, err)
	}
	sessiontest.Hold(t, s, claim) // asked again
}

// TestClusterFailoverKeeps: with wait=1 a grant that was given stands when a replica
// has taken the place of its master, and its holder goes on there.
func TestClusterFailoverKeeps(t *testing.T) {
	c := newCluster(t)
	for range 2 { // so that the next one there has one, too
		c.nodes = append(c.nodes, testservers.RedisClusterReplica(t, c.nodes, c.nodes[0]))
	}
	awaitGrace(t, New(c.client, &Options{Grace: 100 * time.Millisecond}))
	eng := New(c.client, &Options{Wait: 1, Grace: 100 * time.Millisecond})
	s := c.session(eng, 20*time.Second, 0)
	held, alone := plainClaim(s, c.on(0), "held"), plainClaim(s, c.on(1), "alone")
	token := sessiontest.Hold(t, s, held)
	if g, err := s.Enter(t.Context(), alone, true); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("of a master without replicas: %v, %v", g, err)
	}
	if r, err := eng.Show(t.Context(), alone.Resource); err != nil || len(r.Claims) != 0 {
		t.Errorf("the grant was not given back: %v, %v", r.Claims, err)
	}
	c.nodes[0].Kill()
	gone, err := s.Renew(t.Context(), []*engine.Claim{held})
	for errors.Is(err, engine.ErrUnavailable) && t.Context().Err() == nil { // until the replica is master
		gone, err = s.Renew(t.Context(), []*engine.Claim{held})
	}
	if err != nil || len(gone) > 0 {
		t.Fatalf("gone %v, %v", gone, err)
	}
	if r, err := eng.Show(t.Context(), held.Resource); err != nil || len(r.Claims) != 1 || r.Claims[0].Token != token {
		t.Errorf("%+v, %v, want token %v", r, err, token)
	}
}
