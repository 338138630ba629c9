package zkengine

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// awaiting awaits in the background, and returns when the node that the claim
// waits for and its own are watched.
func awaiting(t testing.TB, s *session, c *engine.Claim) <-chan sessiontest.Answer {
	t.Helper()
	got := sessiontest.Awaiting(t, s, c)
	s.mu.Lock()
	p := s.places[c.ID]
	own, ahead := p.path, p.ahead()
	s.mu.Unlock()
	sessiontest.Until(t, "both watches are set", func() bool {
		s.link.mu.Lock()
		defer s.link.mu.Unlock()
		isSet := func(path string) bool { w := s.link.watches[path]; return w != nil && w.set }
		return isSet(own) && (ahead == "" || isSet(ahead))
	})
	return got
}

// counting counts the requests, but not the pings of the client.
type counting struct {
	net.Conn
	sent *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	const ping = 12
	if len(p) != ping {
		c.sent.Add(1)
	}
	return c.Conn.Write(p)
}

// TestRoundTrips: one to enter, one to leave, and the event alone hands the resource to a waiter.
func TestRoundTrips(t *testing.T) {
	var sent atomic.Int64
	addr := testservers.SharedZooKeeper(t).Addr
	e := New([]string{addr}, &Options{Tick: tick, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return counting{conn, &sent}, err
	}})
	a, b := open(t, shared(t), time.Minute), open(t, e, time.Minute)
	trips := func(what string, want int64, do func()) {
		t.Helper()
		before := sent.Load()
		do()
		if n := sent.Load() - before; n != want {
			t.Errorf("%s takes %d requests, want %d", what, n, want)
		}
	}
	for _, owner := range []string{"", "owner"} {
		c := sessiontest.Claim(t, fair, fair.Capacity, owner)
		sessiontest.Hold(t, b, c) // makes the folder
		sessiontest.Leave(t, b, c)
		c = sessiontest.Claim(t, fair, fair.Capacity, owner)
		for again := range 3 { // the server may have removed the empty folder
			before := sent.Load()
			sessiontest.Hold(t, b, c)
			if n := sent.Load() - before; n == 1 {
				break
			} else if n != 3 || again == 2 {
				t.Errorf("enter takes %d requests, want 1", n)
				break
			}
			sessiontest.Leave(t, b, c)
			c = sessiontest.Claim(t, fair, fair.Capacity, owner)
		}
		trips("leave", 1, func() { sessiontest.Leave(t, b, c) })
		held, waits := sessiontest.Whole(t, fair), sessiontest.Claim(t, fair, fair.Capacity, owner)
		sessiontest.Hold(t, a, held)
		sessiontest.Wait(t, b, waits)
		got := awaiting(t, b, waits)
		trips("handoff", 0, func() { sessiontest.Leave(t, a, held); sessiontest.Granted(t, got) })
		trips("leave", 1, func() { sessiontest.Leave(t, b, waits) })
	}
}

// TestHandsOverToOneOwner: two readers of one owner that wait behind a writer share a token.
func TestHandsOverToOneOwner(t *testing.T) {
	e := shared(t)
	a, b := open(t, e, time.Minute), open(t, e, time.Minute)
	writes := sessiontest.Whole(t, fair)
	first := sessiontest.Claim(t, fair, 1, "owner")
	second := sessiontest.Claim(t, fair, 1, "owner")
	second.Resource = first.Resource
	writes.Resource = first.Resource
	sessiontest.Hold(t, a, writes)
	sessiontest.Wait(t, b, first)
	sessiontest.Wait(t, b, second)
	one, two := awaiting(t, b, first), awaiting(t, b, second)
	sessiontest.Leave(t, a, writes)
	if x, y := sessiontest.Granted(t, one).Token, sessiontest.Granted(t, two).Token; x != y {
		t.Errorf("tokens %v and %v", x, y)
	}
}

// TestOneIsWoken: nobody watches what need not go first.
func TestOneIsWoken(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := newEngine(t, server.Addr)
	a := open(t, e, time.Minute)
	sessiontest.Hold(t, a, sessiontest.Whole(t, fair))
	var gots []<-chan sessiontest.Answer
	for range 10 {
		s, c := open(t, e, time.Minute), sessiontest.Whole(t, fair)
		sessiontest.Wait(t, s, c)
		gots = append(gots, awaiting(t, s, c))
	}
	text, err := testservers.ZooKeeperSays(server.Addr, "wchp")
	if err != nil {
		t.Fatal(err)
	}
	watchers := make(map[string]int)
	path := ""
	for line := range strings.Lines(text) {
		switch line = strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(line, "/"):
			path = line
		case line != "":
			watchers[path]++
		}
	}
	delete(watchers, "/") // the anchor of each session
	ones := 0
	for path, n := range watchers {
		if n > 2 { // its own, and the next one's
			t.Errorf("%d watch %s", n, path)
		}
		if n == 1 {
			ones++
		}
	}
	if len(watchers) != 11 || ones != 2 {
		t.Errorf("watches: %v; want one of the holder and of the last, two of the others", watchers)
	}
	for i := range gots {
		select {
		case r := <-gots[i]:
			t.Errorf("waiter %d: %v, %v", i, r.Grant, r.Err)
		default:
		}
	}
}

// TestEvictedIsNotHandedOver: a claim that was evicted just before its turn does not take the
// handing over for its own.
func TestEvictedIsNotHandedOver(t *testing.T) {
	e := shared(t)
	a, b, c := open(t, e, time.Minute), open(t, e, time.Minute), open(t, e, time.Minute)
	for range 50 {
		held, evicted, next := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
		sessiontest.Hold(t, a, held)
		sessiontest.Wait(t, b, evicted)
		out := awaiting(t, b, evicted)
		sessiontest.Wait(t, c, next)
		in := awaiting(t, c, next)
		sessiontest.Leave(t, a, evicted) // one connection: in this order
		sessiontest.Leave(t, a, held)
		if r := <-out; !errors.Is(r.Err, engine.ErrGone) {
			t.Fatalf("evicted: %v, %v", r.Grant, r.Err)
		}
		sessiontest.Granted(t, in)
		sessiontest.Leave(t, c, next)
	}
}

// TestReentryIsNotPassed: a claim shares a grant by an owner of two sessions. Nobody overtakes it
// when the first claim hands over, nor when a waiter goes that others wait for.
func TestReentryIsNotPassed(t *testing.T) {
	e := shared(t)
	a, b, c, d := open(t, e, time.Minute), open(t, e, time.Minute), open(t, e, time.Minute), open(t, e, time.Minute)
	held, quits, waits := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	token := sessiontest.Hold(t, a, held)
	sessiontest.Wait(t, d, quits)
	sessiontest.Wait(t, b, waits)
	got := awaiting(t, b, waits)
	again := sessiontest.Claim(t, fair, fair.Capacity, held.Owner)
	if is := sessiontest.Hold(t, c, again); is != token {
		t.Fatalf("re-entry has %v, want %v", is, token)
	}
	blockedBy := func(path string) func() bool {
		return func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return strings.Contains(b.places[waits.ID].ahead(), path)
		}
	}
	sessiontest.Leave(t, d, quits)
	sessiontest.Until(t, "it waits for the holder", blockedBy(hash(held.ID)))
	sessiontest.Leave(t, a, held)
	sessiontest.Until(t, "it waits for who re-entered", blockedBy(hash(again.ID)))
	select {
	case r := <-got:
		t.Fatalf("beside the owner: %v, %v", r.Grant, r.Err)
	default:
	}
	sessiontest.Refuse(t, a, sessiontest.Whole(t, fair), false, engine.ErrBusy)
	sessiontest.Leave(t, c, again)
	if g := sessiontest.Granted(t, got); g.Token <= token {
		t.Errorf("token %v after %v", g.Token, token)
	}
}

// TestSessionExpires: a session that is cut off ends in the store after its TTL, and its claims
// pass on. The session is told at once when it is back.
func TestSessionExpires(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	link := proxy.New(t, addr)
	far, near := newEngine(t, link.Addr), newEngine(t, addr)
	gone := make(chan string, 10)
	s, err := far.Open(sessiontest.Soon(t), engine.SessionOptions{TTL: 2 * time.Second, Gone: func(claim string) { gone <- claim }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(sessiontest.Soon(t)) })
	b := open(t, near, time.Minute)
	held, waits, next := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, held)
	sessiontest.Wait(t, s, waits)
	out := awaiting(t, s.(*session), waits)
	sessiontest.Wait(t, b, next)
	in := awaiting(t, b, next)
	if _, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{held}); err != nil {
		t.Fatal(err)
	}
	s.(*session).alarm.Stop() // the store ends it, not we
	link.Freeze()
	start := time.Now()
	sessiontest.Granted(t, in)
	if took := time.Since(start); took < time.Second || took > 4*time.Second {
		t.Errorf("passed on after %v, TTL 2s", took)
	}
	link.Heal()
	if claim := <-gone; claim != held.ID {
		t.Errorf("told that %s is gone", claim)
	}
	r := <-out
	if errors.Is(r.Err, engine.ErrUnavailable) { // it looked while it was cut off
		r.Grant, r.Err = s.Await(sessiontest.Soon(t), waits)
	}
	if !errors.Is(r.Err, engine.ErrGone) {
		t.Errorf("its waiter: %v, %v", r.Grant, r.Err)
	}
	for range 2 {
		if _, err := s.Renew(sessiontest.Soon(t), nil); !errors.Is(err, engine.ErrGone) {
			t.Errorf("renew: %v", err)
		}
	}
	if g, err := s.Enter(sessiontest.Soon(t), sessiontest.Whole(t, fair), true); !errors.Is(err, engine.ErrGone) {
		t.Errorf("enter: %v, %v", g, err)
	}
	sessiontest.Leave(t, b, next)
	if r, err := near.Show(sessiontest.Soon(t), next.Resource); err != nil || len(r.Claims) != 0 {
		t.Errorf("a new session has claims of the old one: %+v, %v", r, err)
	}
}

// TestLostReply: an Enter that was served and not answered is found again, and
// does not stay when it is given up.
func TestLostReply(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		for _, again := range []bool{true, false} {
			addr := testservers.SharedZooKeeper(t).Addr
			link := proxy.New(t, addr)
			near := newEngine(t, addr)
			s, c := open(t, newEngine(t, link.Addr), time.Minute), sessiontest.Whole(t, spec)
			sessiontest.Hold(t, s, c) // makes the folders
			sessiontest.Leave(t, s, c)
			c = sessiontest.Whole(t, spec)
			link.FreezeReplies()
			brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			if g, err := s.Enter(brief, c, true); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("enter: %v, %v", g, err)
			}
			cancel()
			link.Heal()
			sessiontest.Until(t, "connected again", func() bool { return s.link.sync(ctx) == nil })
			if again {
				token := sessiontest.Hold(t, s, c)
				if r, err := near.Show(sessiontest.Soon(t), c.Resource); err != nil || len(r.Claims) != 1 || r.Claims[0].Token != token {
					t.Errorf("%+v, %v; want token %v", r, err, token)
				}
			}
			if err := s.Leave(sessiontest.Soon(t), c.Resource, c.ID); err != nil && (again || !errors.Is(err, engine.ErrGone)) {
				t.Fatal(err)
			}
			if r, err := near.Show(sessiontest.Soon(t), c.Resource); err != nil || len(r.Claims) != 0 {
				t.Errorf("a zombie: %+v, %v", r, err)
			}
		}
	}
}

// TestNothingStays: of names that nobody uses, ZooKeeper removes the folders.
func TestNothingStays(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := newEngine(t, server.Addr)
	s := open(t, e, time.Minute)
	for i, spec := range []engine.Spec{fair, barging, five} {
		a, b, c := sessiontest.Claim(t, spec, 1, "owner"), sessiontest.Claim(t, spec, 1, "owner"), sessiontest.Whole(t, spec)
		for _, claim := range []*engine.Claim{a, b, c} {
			claim.Resource += string("abc"[i])
		}
		sessiontest.Hold(t, s, a)
		sessiontest.Hold(t, s, b)
		sessiontest.Wait(t, s, c)
		sessiontest.Leave(t, s, a)
		sessiontest.Leave(t, s, b)
		sessiontest.Await(t, s, c)
		sessiontest.Leave(t, s, c)
	}
	if n := len(s.places); n > 0 {
		t.Errorf("%d claims are remembered", n)
	}
	if _, err := s.Renew(sessiontest.Soon(t), nil); err != nil {
		t.Fatal(err)
	}
	if n := len(s.link.watches); n > 0 {
		t.Errorf("%d watches are remembered", n)
	}
	conn := raw(t, server.Addr)
	sessiontest.Until(t, "no folder is left", func() bool {
		names, _, err := conn.Children("/pawl/c")
		return err == nil && len(names) == 0
	})
}

func TestPassword(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	made := func(root, user, password string) *Engine {
		e := New([]string{addr}, &Options{Tick: tick, Root: root, User: user, Password: password})
		t.Cleanup(func() { e.Close() })
		return e
	}
	ours := made("/private/pawl", "app", "right")
	s := open(t, ours, time.Minute)
	c := sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, c)
	if _, err := ours.Put(sessiontest.Soon(t), "key", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	for _, other := range []*Engine{made("/private/pawl", "", ""), made("/private/pawl", "app", "wrong")} {
		if v, err := other.Get(sessiontest.Soon(t), "key"); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "not authenticated") {
			t.Errorf("get: %+v, %v", v, err)
		}
		if s, err := other.Open(sessiontest.Soon(t), engine.SessionOptions{TTL: time.Minute}); err == nil {
			if err := s.Leave(sessiontest.Soon(t), c.Resource, c.ID); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("evict: %v", err)
			}
			if g, err := s.Enter(sessiontest.Soon(t), sessiontest.Whole(t, fair), true); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("enter: %v, %v", g, err)
			}
			if err := s.Close(sessiontest.Soon(t)); err != nil {
				t.Error(err)
			}
		}
	}
	sessiontest.Leave(t, s, c)
}

func TestTLS(t *testing.T) {
	ca, other := testservers.NewCA(t), testservers.NewCA(t)
	_, addr := testservers.ZooKeeperTLS(t, ca)
	mine := ca.Issue("client")
	e := New([]string{addr}, &Options{Tick: tick, Dial: (&tls.Dialer{Config: ca.Client(mine)}).DialContext})
	defer e.Close()
	s, c := open(t, e, time.Minute), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, c)
	if r, err := e.Show(sessiontest.Soon(t), c.Resource); err != nil || len(r.Claims) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	sessiontest.Leave(t, s, c)
	strange := New([]string{addr}, &Options{Dial: (&tls.Dialer{Config: other.Client(mine)}).DialContext})
	defer strange.Close()
	if _, err := strange.Get(sessiontest.Soon(t), "x"); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a server of another authority: %v", err)
	}
}

// TestRefusesShortSessions: what servers or we cannot keep.
func TestRefusesShortSessions(t *testing.T) {
	e := New([]string{testservers.SharedZooKeeper(t).Addr}, nil)
	defer e.Close()
	for _, ttl := range []time.Duration{5 * time.Second, time.Hour} { // maxSessionTimeout is 5 min
		if _, err := e.Open(sessiontest.Soon(t), engine.SessionOptions{TTL: ttl}); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("TTL %v: %v", ttl, err)
		}
	}
}

// TestRace lets many do everything at once; what holds fits, and tokens grow.
func TestRace(t *testing.T) {
	e := shared(t)
	for _, spec := range []engine.Spec{fair, barging} {
		var inside, last, rounds atomic.Int64
		var wg sync.WaitGroup
		for i := range 4 {
			s := open(t, e, time.Minute)
			for j := range 2 {
				wg.Go(func() {
					for n := range 40 {
						owner := ""
						if j == 1 {
							owner = s.ID()
						}
						c := sessiontest.Claim(t, spec, spec.Capacity, owner)
						bound, cancel := sessiontest.Soon(t), context.CancelFunc(func() {})
						if (i+n)%5 == 0 { // gives up at a bad time
							bound, cancel = context.WithTimeout(ctx, time.Duration(n)*100*time.Microsecond)
						}
						g, err := s.Enter(bound, c, true)
						if err == nil && !g.Held() {
							g, err = s.Await(bound, c)
						}
						cancel()
						if err == nil && owner == "" {
							if inside.Add(1) != 1 || last.Swap(int64(g.Token)) >= int64(g.Token) {
								t.Errorf("%s: two hold, or token %v is old", c.ID, g.Token)
							}
							rounds.Add(1)
							inside.Add(-1)
						}
						if err := s.Leave(sessiontest.Soon(t), c.Resource, c.ID); err != nil && !errors.Is(err, engine.ErrGone) {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		if rounds.Load() < 50 {
			t.Errorf("only %d grants: nothing is shown", rounds.Load())
		}
		for name, err := range e.List(sessiontest.Soon(t), "test/"+t.Name()) {
			t.Errorf("%q stays, %v", name, err)
		}
	}
}
