package redisengine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// pair is a master and a replica, with a link between them that can be frozen.
type pair struct {
	t               *testing.T
	master, replica *testservers.Server
	link            *proxy.Proxy
	client          rueidis.Client
}

func newPair(t *testing.T) *pair {
	p := &pair{t: t, master: testservers.Redis(t)}
	p.link = proxy.New(t, p.master.Addr)
	p.replica = testservers.RedisReplica(t, p.link.Addr)
	p.client = dial(t, p.master.Addr)
	awaitGrace(t, New(p.client, nil))
	return p
}

// open opens a session on the master.
func (p *pair) open(wait int, ttl time.Duration) *session {
	p.t.Helper()
	s, err := New(p.client, &Options{Wait: wait}).Open(p.t.Context(), engine.SessionOptions{TTL: ttl})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()     // the store may be gone
		s.Close(ctx) //nolint:errcheck // see above
	})
	return s.(*session)
}

// failOver kills the master and makes the replica one, and returns an engine on it.
func (p *pair) failOver() *Engine {
	p.t.Helper()
	p.master.Kill()
	c := dial(p.t, p.replica.Addr)
	if err := c.Do(p.t.Context(), c.B().Replicaof().No().One().Build()).Error(); err != nil {
		p.t.Fatal(err)
	}
	return New(c, nil)
}

func exclusive(s *session, id string) *engine.Claim {
	id = s.id + "." + id
	return &engine.Claim{Spec: specs[0], Resource: "failover", ID: id, Owner: id, Weight: specs[0].Capacity}
}

func (p *pair) holders(e *Engine) (ids []string) {
	p.t.Helper()
	r, err := e.Show(p.t.Context(), "failover")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range r.Claims {
		if c.Token != 0 {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// caughtUp returns when the replica has all that the master has.
func (p *pair) caughtUp() {
	p.t.Helper()
	p.client.Do(p.t.Context(), p.client.B().Set().Key("mark").Value("x").Build())
	if n, err := p.client.Do(p.t.Context(), p.client.B().Wait().Numreplicas(1).Timeout(10_000).Build()).AsInt64(); err != nil || n != 1 {
		p.t.Fatal(n, err)
	}
}

// TestFailoverLoses is what the capabilities admit: a grant that no replica knew is gone with the
// master. Another client gets the lock while its holder has heard nothing.
func TestFailoverLoses(t *testing.T) {
	p := newPair(t)
	s := p.open(0, 10*time.Second) // the replica, once promoted, grants nothing for as long
	p.caughtUp()
	p.link.Freeze()
	c := exclusive(s, "lost")
	first, err := s.Enter(t.Context(), c, false)
	if err != nil || !first.Held() {
		t.Fatalf("%v, %v", first, err)
	}
	promoted := p.failOver()
	if ids := p.holders(promoted); len(ids) != 0 {
		t.Fatalf("the replica knew of %v", ids)
	}
	awaitGrace(t, promoted)
	other, err := promoted.Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context()) //nolint:errcheck // not the point
	if second, err := other.Enter(t.Context(), exclusive(other.(*session), "second"), false); err != nil || second.Token <= first.Token {
		t.Errorf("%v after %v, %v", second, first, err)
	}
}

// TestFailoverKeeps: with wait=1 such a grant is none, and a grant that was given stands after the
// failover.
func TestFailoverKeeps(t *testing.T) {
	p := newPair(t)
	s, waiter := p.open(1, time.Minute), p.open(1, time.Minute)
	held, refused, next := exclusive(s, "held"), exclusive(s, "refused"), exclusive(waiter, "next")
	refused.Resource = "refused"
	grant, err := s.Enter(t.Context(), held, false)
	if err != nil || !grant.Held() {
		t.Fatalf("with a replica: %v, %v", grant, err)
	}
	if again, err := s.Enter(t.Context(), held, false); again != grant || err != nil {
		t.Fatalf("asked again: %v, %v, was %v", again, err, grant)
	}
	sessiontest.Wait(t, waiter, next)
	p.caughtUp()
	p.link.Freeze()
	g, err := s.Enter(t.Context(), refused, true)
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Fatalf("without a replica: %v, %v", g, err)
	}
	if r, err := s.engine.Show(t.Context(), refused.Resource); err != nil || len(r.Claims) != 0 {
		t.Errorf("the grant was not given back: %v, %v", r.Claims, err)
	}
	if _, err := s.Renew(t.Context(), []*engine.Claim{held}); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("a renewal that no replica knows: %v", err)
	}
	if _, err := s.engine.Put(t.Context(), "value", []byte("x"), 0); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("a value that no replica knows: %v", err)
	}
	if _, err := s.engine.Open(t.Context(), engine.SessionOptions{TTL: time.Second}); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("a session that no replica knows: %v", err)
	}
	promoted := p.failOver()
	if ids := p.holders(promoted); len(ids) != 1 || ids[0] != held.ID {
		t.Fatalf("the replica knew of %v, not of %v", ids, held.ID)
	}
	if r, err := promoted.Show(t.Context(), "failover"); err != nil || r.Claims[0].Token != grant.Token {
		t.Errorf("%+v, %v, want token %v", r, err, grant.Token)
	}
}

// TestHandOverIsAcknowledged: the message that wakes a waiter carries its grant,
// which it does not believe before a replica knows it.
func TestHandOverIsAcknowledged(t *testing.T) {
	p := newPair(t)
	s, waiter := p.open(1, time.Minute), p.open(1, time.Minute)
	held, next, last := exclusive(s, "held"), exclusive(waiter, "next"), exclusive(waiter, "last")
	if g, err := s.Enter(t.Context(), held, false); !g.Held() || err != nil {
		t.Fatal(g, err)
	}
	for _, c := range []*engine.Claim{next, last} {
		sessiontest.Wait(t, waiter, c)
	}
	sessiontest.Leave(t, s, held)
	sessiontest.Await(t, waiter, next)
	p.caughtUp()
	p.link.Freeze()
	if err := waiter.Leave(t.Context(), next.Resource, next.ID); !errors.Is(err, engine.ErrUnavailable) {
		t.Fatalf("a release that no replica knows: %v", err)
	}
	if g, err := waiter.Await(t.Context(), last); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Fatalf("without a replica: %v, %v", g, err)
	}
	if ids := p.holders(s.engine); len(ids) != 0 {
		t.Errorf("the grant was not given back: %v", ids)
	}
	p.link.Heal() // the replica comes back by itself
	var g engine.Grant
	for err := error(engine.ErrUnavailable); errors.Is(err, engine.ErrUnavailable); {
		if g, err = waiter.Enter(t.Context(), last, true); err == nil && !g.Held() {
			t.Fatal("not granted")
		}
	}
	if ids := p.holders(s.engine); len(ids) != 1 || ids[0] != last.ID {
		t.Errorf("%v holds", ids)
	}
}

// TestRepeatedStepsWrite: WAIT waits for the last write of its connection, and of no other. So a step that is asked again,
// because replicas were late, writes something.
func TestRepeatedStepsWrite(t *testing.T) {
	p := newPair(t)
	s := p.open(0, time.Minute) // WAIT itself has the master write
	does(t, s.engine, "CONFIG", "SET", "repl-ping-replica-period", "3600")
	written := func() string {
		info, _ := does(t, s.engine, "INFO", "replication").Value.(string)
		_, offset, _ := strings.Cut(info, "master_repl_offset:")
		return strings.Fields(offset)[0]
	}
	held, other, left, lone := visitor{s, t, "permits"}.claim(1), visitor{s, t, "permits"}.claim(1), visitor{s, t, "permits"}.claim(1), visitor{s, t, "lone"}.claim(all)
	for i, c := range []*engine.Claim{held, other, left} {
		c.Spec, c.ID = sessiontest.Five, c.ID+fmt.Sprint(i)
		c.Owner = c.ID
		sessiontest.Hold(t, s, c)
	}
	sessiontest.Hold(t, s, lone)
	leaves := func(c *engine.Claim) func() {
		sessiontest.Leave(t, s, c)
		return func() {
			if err := s.Leave(t.Context(), c.Resource, c.ID); !errors.Is(err, engine.ErrGone) {
				t.Error(err)
			}
		}
	}
	for what, again := range map[string]func(){
		"enter":            func() { sessiontest.Hold(t, s, held) },
		"leave":            leaves(left),
		"leave a free one": leaves(lone),
		"resize": func() {
			if err := s.engine.Resize(t.Context(), "permits", sessiontest.Five.Capacity); err != nil {
				t.Error(err)
			}
		},
	} {
		again() // the first may change a form
		before := written()
		again()
		if written() == before {
			t.Errorf("%s: nothing is written", what)
		}
	}
}

// TestLookingIsNoNotice: a client only looks at a restarted server, without a session whose TTL
// would be the grace. The client does not use the notice of the restart up.
func TestLookingIsNoNotice(t *testing.T) {
	server := testservers.Redis(t)
	looker := New(dial(t, server.Addr), nil)
	if _, err := looker.Show(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	if _, err := looker.Put(t.Context(), "value", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	s, err := New(dial(t, server.Addr), nil).Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context()) //nolint:errcheck // not the point
	if g, err := s.Enter(t.Context(), exclusive(s.(*session), "early"), false); !errors.Is(err, engine.ErrGrace) {
		t.Errorf("granted by a server that may have forgotten: %v, %v", g, err)
	}
}

// TestManyNamesAreRenewedTogether: with replicas to wait for, some names are renewed at a time, and
// none after a failure.
func TestManyNamesAreRenewedTogether(t *testing.T) {
	const names, trip = 320, 3 * time.Millisecond
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			sent, now, most := 0, 0, 0
			s := sessionOn(answering{cluster: true, answer: func(_ context.Context, cmd Command) Reply {
				if cmd.Head[0] != "EVAL" {
					return Reply{Value: int64(1)}
				}
				mu.Lock()
				sent++
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(trip)
				mu.Lock()
				now--
				mu.Unlock()
				if fails {
					return Reply{Err: errors.New("the node is away")}
				}
				return Reply{Value: int64(1)}
			}}, &Options{Wait: 1}, time.Minute)
			for i := range names {
				s.claims(&engine.Claim{Resource: fmt.Sprint(i), ID: fmt.Sprint(i)})
			}
			start := time.Now()
			_, err := s.Renew(t.Context(), nil)
			if took := time.Since(start); (err != nil) != fails || took > names*trip/8 {
				t.Errorf("fails %t: renewed after %v: %v", fails, took, err)
			}
			if fails && sent > names/8 {
				t.Errorf("sent %d requests to a node that is away", sent)
			}
			if most > 16 {
				t.Errorf("%d requests at once", most)
			}
		})
	}
}
