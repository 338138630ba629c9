package redisengine

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// owned is a claim of an owner that is no claim.
func owned(s *session, id, owner string, weight int64) *engine.Claim {
	c := plainClaim(s, "job", id)
	c.Owner, c.Weight = owner, weight
	return c
}

// rewinds runs a test on a server and on a cluster. The function that save returns brings the data of that moment back, with a grace.
func rewinds(t *testing.T, test func(t *testing.T, e *Engine, save func() (restore func()))) {
	t.Run("server", func(t *testing.T) {
		server := testservers.Redis(t)
		e := onServer(t, server, 0)
		isNew(t, e)
		test(t, e, func() func() {
			does(t, e, "SAVE")
			return func() {
				server.Kill()
				server.Restart()
			}
		})
	})
	t.Run("cluster", func(t *testing.T) {
		c := newCluster(t)
		e := New(c.client, &Options{Grace: 100 * time.Millisecond})
		awaitGrace(t, e)
		test(t, e, func() func() {
			restore, grace := c.snapshot("job"), e.keys("job", "")[4]
			return func() {
				restore()
				node, _ := c.node(grace)
				if err := c.ask(node, "SET", grace, "1", "PX", "60000").Error(); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
}

// graced enters, and meets the grace.
func graced(t *testing.T, s *session, c *engine.Claim, wait bool) {
	t.Helper()
	err := again(t, func() error { _, err := s.Enter(sessiontest.Soon(t), c, wait); return err })
	if !errors.Is(err, engine.ErrGrace) {
		t.Fatalf("enter %s: %v; want the grace", c.ID, err)
	}
}

// shares enters, and holds.
func shares(t *testing.T, s *session, c *engine.Claim) fence.Token {
	t.Helper()
	var g engine.Grant
	err := again(t, func() (err error) { g, err = s.Enter(sessiontest.Soon(t), c, true); return err })
	if err != nil || !g.Held() {
		t.Fatalf("enter %s: %v, %v; want a grant", c.ID, g, err)
	}
	return g.Token
}

func opens(t *testing.T, e *Engine) *session { return sessiontest.Open(t, e, time.Minute).(*session) }

// TestGraceSharesNoReleasedGrant: a grant that was released came back with old data, and a later holder still believes in
// its own grant. A new claim of the owner does not share what came back. Nor does a claim of another client.
func TestGraceSharesNoReleasedGrant(t *testing.T) {
	rewinds(t, func(t *testing.T, e *Engine, save func() func()) {
		a, b := opens(t, e), opens(t, e)
		stale, reads := owned(a, "stale", "o", all), owned(a, "reads", "o", 1)
		sessiontest.Hold(t, a, stale)
		sessiontest.Hold(t, a, reads)
		restore := save()
		sessiontest.Leave(t, a, stale)
		reader := plainClaim(b, "job", "reader")
		reader.Weight = 1
		sessiontest.Hold(t, b, reader)
		restore()
		for _, wait := range []bool{false, true} {
			graced(t, a, owned(a, "writes", "o", all), wait)
			graced(t, b, owned(b, "reads", "o", 1), wait)
		}
		shares(t, a, owned(a, "again", "o", 1)) // the client believes in as much
		sessiontest.Leave(t, a, reads)
		shares(t, a, owned(a, "once more", "o", 1))
	})
}

// TestGraceSharesWhatIsBelieved: re-entry goes on in a grace, with the token of the grant. Of an owner whose claims have ended
// by release, by an eviction or otherwise, nothing is shared.
func TestGraceSharesWhatIsBelieved(t *testing.T) {
	rewinds(t, func(t *testing.T, e *Engine, save func() func()) {
		a := opens(t, e)
		outer, waits := plainClaim(a, "job", "outer"), owned(a, "waited", "p", all)
		token := sessiontest.Hold(t, a, outer)
		sessiontest.Wait(t, a, waits)
		restore := save()
		restore()
		inner := owned(a, "inner", outer.ID, all)
		if got := shares(t, a, inner); got != token {
			t.Errorf("token %v, want that of the outer claim, %v", got, token)
		}
		sessiontest.Leave(t, a, outer)
		if got := shares(t, a, owned(a, "inner 2", outer.ID, all)); got != token {
			t.Errorf("token %v, want that of the inner claim, %v", got, token)
		}
		sessiontest.Evict(t, e, inner)
		if gone, err := a.Renew(t.Context(), []*engine.Claim{inner}); err != nil || len(gone) != 1 {
			t.Errorf("gone %v, %v", gone, err)
		}
		sessiontest.Leave(t, a, owned(a, "inner 2", outer.ID, all))
		graced(t, a, owned(a, "inner 3", outer.ID, all), false)
	})
}

// TestGraceAfterALostRelease: the answer to a release was lost, and the claim is back.
func TestGraceAfterALostRelease(t *testing.T) {
	server := testservers.Redis(t)
	raw := onServer(t, server, 0)
	isNew(t, raw)
	var lost atomic.Bool
	a := opens(t, NewOn(losing{onRueidis{dialOne(t, server.Addr)}, &lost}, nil))
	held := owned(a, "held", "o", all)
	sessiontest.Hold(t, a, held)
	does(t, raw, "SAVE")
	lost.Store(true)
	if err := a.Leave(t.Context(), held.Resource, held.ID); !errors.Is(err, engine.ErrUnavailable) {
		t.Fatal(err)
	}
	lost.Store(false)
	server.Kill()
	server.Restart()
	graced(t, a, owned(a, "next", "o", all), true)
}

// TestGraceSharesAWaitedGrant: what a client got after a wait, the client believes as well.
func TestGraceSharesAWaitedGrant(t *testing.T) {
	rewinds(t, func(t *testing.T, e *Engine, save func() func()) {
		a, b := opens(t, e), opens(t, e)
		first, next := plainClaim(a, "job", "first"), owned(b, "next", "o", all)
		sessiontest.Hold(t, a, first)
		sessiontest.Wait(t, b, next)
		sessiontest.Leave(t, a, first)
		token := sessiontest.Await(t, b, next)
		save()()
		if got := shares(t, b, owned(b, "inner", "o", all)); got != token {
			t.Errorf("token %v, want %v", got, token)
		}
		graced(t, a, owned(a, "theirs", "o", all), false)
	})
}
