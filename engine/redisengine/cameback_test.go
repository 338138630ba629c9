package redisengine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// gated is a client of a server that answers no question about all names or about one while the gate is shut.
type gated struct {
	Client
	shut  *atomic.Bool
	asked *atomic.Int64 // requests
}

func (g gated) ask(ctx context.Context, cmds []Command) error {
	g.asked.Add(int64(min(1, len(cmds))))
	looks := slices.ContainsFunc(cmds, func(c Command) bool {
		return c.Head[0] == "SCAN" || c.Head[0] == "GET" || slices.Contains(c.Head, mineLua)
	})
	for looks && g.shut.Load() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (g gated) Do(ctx context.Context, c Command) Reply {
	if err := g.ask(ctx, []Command{c}); err != nil {
		return Reply{Err: err}
	}
	return g.Client.Do(ctx, c)
}

func (g gated) Pipeline(ctx context.Context, cmds []Command) []Reply {
	if err := g.ask(ctx, cmds); err != nil {
		return slices.Repeat([]Reply{{Err: err}}, len(cmds))
	}
	return g.Client.Pipeline(ctx, cmds)
}

// undone is a session whose server came back with a claim that the session has left, and with many others.
type undone struct {
	*session
	held  *engine.Claim
	gate  gated
	mu    sync.Mutex
	found []string
}

func comeBack(t *testing.T, server *testservers.Server, ttl time.Duration, left, foreign int) *undone {
	t.Helper()
	raw := onServer(t, server, 0)
	isNew(t, raw)
	u := &undone{gate: gated{onRueidis{dialOne(t, server.Addr)}, new(atomic.Bool), new(atomic.Int64)}}
	s, err := NewOn(u.gate, nil).Open(t.Context(), engine.SessionOptions{TTL: ttl, Found: func(name, _ string) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.found = append(u.found, name)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(sessiontest.Soon(t)) }) //nolint:errcheck // not the point
	u.session = s.(*session)
	other := visit(t, raw, time.Hour, "foreign")
	others := make([]Command, foreign)
	for i := range others {
		other.name = fmt.Sprint("foreign", i)
		others[i] = command("SET", "pawl:{"+other.name+"}", "X"+other.record(other.claim(all), other.id)+us+"1795720000"+us+"1", "PX", "3600000")
	}
	for _, r := range raw.client.Pipeline(t.Context(), others) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	u.held = visitor{u.session, t, "held"}.claim(all)
	back := visitor{u.session, t, "back"}.claim(all)
	back.ID += "2"
	back.Owner = back.ID
	sessiontest.Hold(t, u, u.held)
	sessiontest.Hold(t, u, back)
	does(t, raw, "SAVE")
	sessiontest.Leave(t, u, back)
	for i := range left {
		c := visitor{u.session, t, fmt.Sprint("left", i)}.claim(all)
		sessiontest.Hold(t, u, c)
		sessiontest.Leave(t, u, c)
	}
	server.Kill()
	server.Restart()
	return u
}

// renews renews within the bound, and returns the names on which claims were found.
func (u *undone) renews(t *testing.T, within time.Duration) []string {
	t.Helper()
	var gone []*engine.Claim
	if err := again(t, func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		gone, err = u.Renew(ctx, []*engine.Claim{u.held})
		return err
	}); err != nil || len(gone) > 0 {
		t.Fatalf("renewed: %d gone, %v", len(gone), err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.found)
}

// TestSearchDecidesNoRenewal: a server came back, and does not tell what it has. The session is
// renewed all the same, and a later renewal finds the claim that came back.
func TestSearchDecidesNoRenewal(t *testing.T) {
	for _, left := range []int{0, 2 * maxKnown} { // also where the session cannot remember all names
		u := comeBack(t, testservers.Redis(t), 8*time.Second, left, 0)
		u.gate.shut.Store(true)
		for range 3 {
			if found := u.renews(t, 2*time.Second); len(found) > 0 {
				t.Fatalf("found %q", found)
			}
		}
		u.gate.shut.Store(false)
		sessiontest.Until(t, "the claim is found", func() bool { return len(u.renews(t, 2*time.Second)) > 0 })
		if found := u.renews(t, 2*time.Second); !slices.Equal(found, []string{"back"}) {
			t.Errorf("found %q", found)
		}
	}
}

// TestSearchTakesFewRequests: a session that has left more names than it remembers looks at all
// names of the server, many at once.
func TestSearchTakesFewRequests(t *testing.T) {
	const foreign = 20_000
	u := comeBack(t, testservers.Redis(t), time.Minute, 2*maxKnown, foreign)
	before := u.gate.asked.Load()
	sessiontest.Until(t, "the claim is found", func() bool { return len(u.renews(t, 10*time.Second)) > 0 })
	if n := u.gate.asked.Load() - before; n > foreign/50 {
		t.Errorf("%d requests for %d names", n, foreign)
	}
}

// TestSearchPassesOverOthersKeys: a key that somebody else wrote where a claim was left does not end the search.
func TestSearchPassesOverOthersKeys(t *testing.T) {
	u := comeBack(t, testservers.Redis(t), time.Minute, 3, 0)
	for _, key := range [][]string{{"RPUSH", "pawl:{left0}", "x"}, {"SET", "pawl:{left1}", "F"}, {"SET", "pawl:{left2}", "X" + u.id}} {
		if err := again(t, func() error {
			return engine.Unavailable("set", u.engine.client.Do(t.Context(), Command{Head: key}).Err)
		}); err != nil {
			t.Fatal(err)
		}
	}
	sessiontest.Until(t, "the claim is found", func() bool { return len(u.renews(t, 10*time.Second)) > 0 })
}

// TestSearchKnowsAllEnds: claims come back also where they ended otherwise than by a release: an evicted
// waiter, and a grant that was given back.
func TestSearchKnowsAllEnds(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	s, found := finding(t, e, time.Minute)
	visit(t, e, time.Minute, "waits").holds(all)
	waits, held := visitor{s, t, "waits"}.claim(all), visitor{s, t, "short of replicas"}.claim(all)
	waits.ID, held.ID = s.id+".waits", s.id+".held"
	waits.Owner, held.Owner = waits.ID, held.ID
	sessiontest.Wait(t, s, waits)
	sessiontest.Hold(t, s, held)
	does(t, e, "SAVE")
	if err := e.Evict(t.Context(), waits.Resource, waits.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Await(sessiontest.Soon(t), waits); !errors.Is(err, engine.ErrGone) {
		t.Fatal(err)
	}
	s.giveBack(t.Context(), held)
	server.Kill()
	server.Restart()
	sessiontest.Until(t, "both are found", func() bool {
		_, err := s.Renew(t.Context(), nil)
		return err == nil && slices.Contains(*found, waits.Resource+" "+waits.ID) && slices.Contains(*found, held.Resource+" "+held.ID)
	})
}

// TestHandOverUndoneByRestart: the server comes back from a snapshot in which a held claim still waits. The
// session reports that claim gone, and then finds the claim, to leave it.
func TestHandOverUndoneByRestart(t *testing.T) {
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	a := visit(t, e, time.Minute, "job")
	b, found := finding(t, e, time.Minute)
	next := visitor{b, t, "job"}.claim(all)
	a.holds(all)
	sessiontest.Wait(t, b, next)
	does(t, e, "SAVE")
	a.leaves()
	sessiontest.Await(t, b, next)
	server.Kill()
	server.Restart()
	var gone []*engine.Claim
	if err := again(t, func() (err error) {
		gone, err = b.Renew(sessiontest.Soon(t), []*engine.Claim{next})
		return err
	}); err != nil || len(gone) != 1 || gone[0] != next {
		t.Fatalf("gone %v, %v", gone, err)
	}
	sessiontest.Until(t, "the claim is found", func() bool {
		if _, err := b.Renew(sessiontest.Soon(t), nil); err != nil {
			t.Fatal(err)
		}
		return slices.Equal(*found, []string{"job " + next.ID})
	})
}
