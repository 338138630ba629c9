package redisengine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// permits returns claims of one permit each, of a resource of the test.
func permits(t *testing.T, n int) (claims []*engine.Claim) {
	for range n {
		claims = append(claims, sessiontest.Claim(t, engine.Spec{Kind: engine.KindSemaphore, Capacity: int64(n)}, 1, ""))
	}
	return claims
}

// TestLostClaimsWedgeNothing: the hash of a semaphore is gone, by hand. The holders find out, and
// the next client gets a permit.
func TestLostClaimsWedgeNothing(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	for _, wait := range []bool{false, true} {
		t.Run(fmt.Sprint("wait ", wait), func(t *testing.T) {
			a, b := sessiontest.Open(t, e, time.Minute), sessiontest.Open(t, e, time.Minute)
			all := permits(t, 3)
			for _, c := range all[:2] {
				sessiontest.Hold(t, a, c)
			}
			waits := *all[2]
			waits.ID, waits.Owner, waits.Weight = waits.ID+"waits", waits.ID+"waits", 3
			if wait {
				sessiontest.Wait(t, a, &waits)
			}
			does(t, e, "DEL", e.keys(all[0].Resource, "")[1])
			if gone, err := a.Renew(t.Context(), all[:2]); err != nil || len(gone) != 2 {
				t.Fatalf("gone %v, %v", gone, err)
			}
			g, err := b.Enter(t.Context(), all[2], true)
			if err == nil && !g.Held() {
				g, err = b.Await(sessiontest.Soon(t), all[2])
			}
			if err != nil || !g.Held() {
				t.Fatalf("all permits are free: %v, %v", g, err)
			}
		})
	}
}

// TestLostLineIsMadeAnew: the set of the waiters is gone: they are granted all the same.
func TestLostLineIsMadeAnew(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	s := sessiontest.Open(t, e, time.Second)
	stop := renewing(s)
	defer stop()
	all := permits(t, 3)
	for _, c := range all {
		c.Weight = 2
	}
	sessiontest.Hold(t, s, all[0])
	sessiontest.Wait(t, s, all[1])
	sessiontest.Wait(t, s, all[2])
	does(t, e, "DEL", e.keys(all[0].Resource, "")[2])
	second, third := sessiontest.Awaiting(t, s, all[1]), sessiontest.Awaiting(t, s, all[2])
	sessiontest.Leave(t, s, all[0])
	sessiontest.Granted(t, second)
	sessiontest.Leave(t, s, all[1])
	sessiontest.Granted(t, third)
}

// renewing keeps a session alive.
func renewing(s engine.Session) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			s.Renew(ctx, nil) //nolint:errcheck // who waits finds out
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return func() { cancel(); <-done }
}

// TestAlienNameIsOneClaim: somebody put a key of another type where a lock was. That lock is
// gone, and no other of the session.
func TestAlienNameIsOneClaim(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	s := sessiontest.Open(t, e, time.Minute)
	var held []*engine.Claim
	for i := range 3 {
		c := sessiontest.Whole(t, sessiontest.Fair)
		c.Resource = fmt.Sprint("job", i)
		sessiontest.Hold(t, s, c)
		held = append(held, c)
	}
	does(t, e, "DEL", "pawl:{job0}")
	does(t, e, "LPUSH", "pawl:{job0}", "oops")
	if gone, err := s.Renew(t.Context(), held); err != nil || len(gone) != 1 || gone[0] != held[0] {
		t.Errorf("gone %v, %v", gone, err)
	}
	if gone, err := s.(*session).missing(t.Context(), held); err != nil || len(gone) != 1 || gone[0] != held[0] {
		t.Errorf("as in a cluster: gone %v, %v", gone, err)
	}
}

// TestForgottenIsNotEvicted: a waiter may enter again where all keys are gone, which the error
// says. An evicted waiter may not, and that is another error.
func TestForgottenIsNotEvicted(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	a, b := visit(t, e, time.Minute, "forgotten"), visit(t, e, time.Second, "forgotten")
	stop := renewing(b.session)
	defer stop()
	a.holds(all)
	b.waits(all)
	keys := e.keys("forgotten", "")
	does(t, e, "DEL", keys[0], keys[1], keys[2])
	if g, err := b.Await(sessiontest.Soon(t), b.claim(all)); !errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrGone) {
		t.Errorf("forgotten: %v, %v", g, err)
	}
	b.holds(all)
	a.waits(all)
	got := sessiontest.Awaiting(t, a.session, a.claim(all))
	sessiontest.Leave(t, b.session, a.claim(all))
	if g := <-got; !errors.Is(g.Err, engine.ErrGone) {
		t.Errorf("taken out: %v, %v", g.Grant, g.Err)
	}
}

// TestFullServer: of a server that is full only new claims and new values are refused, with its reason. A
// holder renews, and leaves; a waiter is handed the lock; a session opens; a value changes.
func TestFullServer(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	a, b := visit(t, e, time.Minute, "plain"), visit(t, e, time.Minute, "plain")
	a.holds(all)
	b.waits(all)
	sem := permits(t, 2)
	for _, c := range sem {
		c.Weight = 2
	}
	sessiontest.Hold(t, a, sem[0])
	sessiontest.Wait(t, b, sem[1])
	readers := []visitor{visit(t, e, time.Minute, "readers"), visit(t, e, time.Minute, "readers")}
	for _, r := range readers {
		r.holds(some)
	}
	version, err := e.Put(t.Context(), "value", []byte("before"), 0)
	if err != nil {
		t.Fatal(err)
	}
	does(t, e, "CONFIG", "SET", "maxmemory", "1mb")
	if _, err := e.Put(t.Context(), "other", []byte("new"), 0); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "maxmemory") {
		t.Errorf("a new value: %v", err)
	}
	if version, err = e.Put(t.Context(), "value", []byte("after"), version); err != nil {
		t.Errorf("another value: %v", err)
	}
	if v, err := e.Get(t.Context(), "value"); err != nil || string(v.Data) != "after" || v.Version != version {
		t.Errorf("another value: %+v, %v", v, err)
	}
	for _, v := range []visitor{a, b} {
		if gone, err := v.Renew(t.Context(), nil); err != nil || len(gone) > 0 {
			t.Errorf("renewal: %v, %v", gone, err)
		}
	}
	if gone, err := a.Renew(t.Context(), []*engine.Claim{a.claim(all), sem[0]}); err != nil || len(gone) > 0 {
		t.Errorf("renewal: %v, %v", gone, err)
	}
	late := visit(t, e, time.Minute, "late")
	if g, err := late.Enter(t.Context(), late.claim(all), false); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "maxmemory") {
		t.Errorf("a new claim: %v, %v", g, err)
	}
	plain, weighty := sessiontest.Awaiting(t, b.session, b.claim(all)), sessiontest.Awaiting(t, b.session, sem[1])
	a.leaves()
	sessiontest.Leave(t, a.session, sem[0])
	sessiontest.Granted(t, plain)
	sessiontest.Granted(t, weighty)
	if err := e.Resize(t.Context(), sem[1].Resource, 3); err != nil {
		t.Errorf("resize: %v", err)
	}
	b.leaves()
	sessiontest.Leave(t, b.session, sem[1])
	for _, r := range readers {
		r.leaves()
	}
}

// TestFullServerRestarted: so it is when the server has to be taught everything again.
func TestFullServerRestarted(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	a := visit(t, e, time.Minute, "plain")
	a.holds(all)
	does(t, e, "SAVE")
	server.Kill()
	server.Restart()
	sessiontest.Until(t, "the server is full", func() bool {
		return e.client.Do(t.Context(), command("CONFIG", "", "SET", "maxmemory", "1mb")).Err == nil
	})
	if err := again(t, func() error {
		gone, err := a.Renew(t.Context(), []*engine.Claim{a.claim(all)})
		if len(gone) > 0 {
			t.Error("gone")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	claim := a.claim(all)
	if err := again(t, func() error { return a.Leave(sessiontest.Soon(t), claim.Resource, claim.ID) }); err != nil { // an idle connection may be of the old server
		t.Error(err)
	}
}

// TestTriesLookAtSome: a try that fails takes the server no more commands on a semaphore with many
// holders. Tries find the dead holders together.
func TestTriesLookAtSome(t *testing.T) {
	e := onServer(t, testservers.Redis(t), 0)
	isNew(t, e)
	const n = 1000
	s, dead := sessiontest.Open(t, e, time.Minute), visit(t, e, time.Minute, "")
	all := permits(t, n)
	for i, c := range all {
		if i == n-1 {
			sessiontest.Hold(t, dead.session, c)
		} else {
			sessiontest.Hold(t, s, c)
		}
	}
	try := *all[0]
	try.ID, try.Owner = "try", "try"
	before := commands(t, e)
	sessiontest.Refuse(t, s, &try, false, engine.ErrBusy)
	if made := commands(t, e) - before; made > 20 {
		t.Errorf("a try on %d holders took %d commands", n, made)
	}
	if is := does(t, e, "INFO", "commandstats").Value.(string); strings.Contains(is, "cmdstat_hgetall") {
		t.Error("a try looked at all holders")
	}
	dead.dies()
	for i := range n {
		if g, err := s.Enter(t.Context(), &try, false); err == nil && g.Held() {
			t.Logf("found after %d tries", i+1)
			if i > n/MANY+2 {
				t.Errorf("a dead holder of %d was found after %d tries", n, i+1)
			}
			return
		}
	}
	t.Error("tries never found the dead one")
}

// MANY is as in queue.lua.
const MANY = 64

// commands is how many the server has done, those in scripts too.
func commands(t *testing.T, e *Engine) (n int) {
	t.Helper()
	text, _ := does(t, e, "INFO", "commandstats").Value.(string)
	for line := range strings.Lines(text) {
		var calls int
		if _, rest, found := strings.Cut(line, ":calls="); found {
			if _, err := fmt.Sscanf(rest, "%d", &calls); err != nil {
				t.Fatal(err)
			}
		}
		n += calls
	}
	return n
}

// TestShowIsInOrder: holders are shown in the order in which they came, though they are in a hash,
// with the times that the server knows.
func TestShowIsInOrder(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	s := sessiontest.Open(t, e, time.Minute)
	all := permits(t, 300)
	for _, c := range all {
		sessiontest.Hold(t, s, c)
	}
	r, err := e.Show(t.Context(), all[0].Resource)
	if err != nil || len(r.Claims) != len(all) {
		t.Fatal(len(r.Claims), err)
	}
	for i, c := range r.Claims {
		if c.ID != all[i].ID || c.Held < 0 || c.Held > c.Age || c.Left <= 0 || c.Left > time.Minute {
			t.Fatalf("claim %d is %+v, want %s", i, c, all[i].ID)
		}
	}
}

// TestShowKnowsWhenAsked: a holder that waited shows since when it was there, and since when it
// holds, and these differ.
func TestShowKnowsWhenAsked(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	a, b := visit(t, e, time.Minute, "asked"), visit(t, e, time.Minute, "asked")
	a.holds(all)
	b.waits(all)
	shown := func(i int) engine.ClaimInfo {
		r, err := e.Show(t.Context(), "asked")
		if err != nil || len(r.Claims) <= i {
			t.Fatal(r, err)
		}
		return r.Claims[i]
	}
	if c := shown(1); c.Held >= 0 {
		t.Errorf("one that waits: %+v", c)
	}
	sessiontest.Until(t, "it has waited a little", func() bool { return shown(1).Age > 50*time.Millisecond })
	a.leaves()
	if c := shown(0); c.ID != b.claim(all).ID || c.Age < 50*time.Millisecond || c.Held < 0 || c.Held > c.Age-50*time.Millisecond {
		t.Errorf("one that waited and holds: %+v", c)
	}
}

// TestLineIsInOrderOfArrival: also where the clock of the server was set back, and where several claims enter at
// one time, because one script enters them.
func TestLineIsInOrderOfArrival(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	holder, early := visit(t, e, time.Minute, "arrival"), visit(t, e, time.Minute, "arrival")
	holder.holds(all)
	early.waits(all)
	line := e.keys("arrival", "")[2]
	does(t, e, "ZADD", line, "XX", fmt.Sprint(time.Now().Add(time.Hour).UnixMicro()), early.record(early.claim(all), early.id))
	want := []string{early.claim(all).ID}
	late := visit(t, e, time.Minute, "arrival")
	steps := make([]*step, 3)
	for i := range steps {
		c := late.claim(all)
		c.ID = fmt.Sprint(late.id, ".", len(steps)-i) // the order of the text is another
		c.Owner, want = c.ID, append(want, c.ID)
		steps[i] = &step{enter, e.keys("arrival", late.key), [4]string{late.record(c, late.id), "1", late.keep, form(c)}, make(chan Reply, 1)}
	}
	late.batch.flying = 1
	late.fly(steps)
	for _, st := range steps {
		if r := <-st.done; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	r, err := e.Show(t.Context(), "arrival")
	if err != nil {
		t.Fatal(err)
	}
	var is []string
	for _, c := range r.Claims[1:] {
		is = append(is, c.ID)
	}
	if !slices.Equal(is, want) {
		t.Errorf("the line is %v, want %v", is, want)
	}
}
