package open_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/enginetest/proxy"
)

func TestRedlockURLs(t *testing.T) {
	for url, want := range map[string]string{
		"redlock:a:1,b:2":               "at least 3",
		"redlock://a:1,b:2,c:3,d:4":     "an even number",
		"redlock://a:1,b:2,a:1":         "twice",
		"redlock://a:1,b:2,c:3/1":       "path",
		"redlock:a,b,c?tokens=some":     "on or off",
		"redlock:a,b,c?wait=1":          "unknown parameter",
		"redlock:":                      "host is missing",
		"redlock://a:1,b:2,c:notaport/": "",
	} {
		_, err := open.Open(t.Context(), url)
		if !errors.Is(err, open.ErrURL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}

// TestRedlockGrace: nodes that know nothing grant nothing for the grace of the URL, which may be longer than the TTL
// of the client. A client with a longer TTL is refused.
func TestRedlockGrace(t *testing.T) {
	_, addrs := redlockServers(t, 3)
	url := redlockURL(addrs) + "?grace=1m"
	for _, ttl := range []time.Duration{5 * time.Second, time.Minute} {
		c := clientOf(t, connect(t, url), ttl)
		var err error
		eventually(t, "the nodes answer in time, also on a busy machine", func() bool {
			_, err = c.Mutex("x").TryLock(t.Context())
			return !errors.Is(err, pawl.ErrUnavailable)
		})
		if grace := new(engine.GraceError); !errors.As(err, &grace) || grace.Left < 10*time.Second {
			t.Errorf("on new nodes a try with a TTL of %v returned %v", ttl, err)
		}
	}
	c, err := pawl.New(t.Context(), connect(t, url), &pawl.Options{TTL: time.Minute, LockDelay: 30 * time.Second})
	if err != nil {
		t.Fatal("with a lock-delay, which does not count:", err)
	}
	defer c.Close(t.Context()) //nolint:errcheck // as the test ends
	if _, err := pawl.New(t.Context(), connect(t, url), &pawl.Options{TTL: 2 * time.Minute}); !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("with a longer TTL: %v", err)
	}
}

func TestRedlockWithoutAMajority(t *testing.T) {
	servers, addrs := redlockServers(t, 3)
	servers[0].Kill()
	eng := connect(t, "redlock:"+strings.Join(addrs, ","))
	c := clientOf(t, eng, 5*time.Second)
	l := mustLock(t, c.Mutex("majority"))
	servers[1].Kill()
	<-l.Context().Done()
	if err := l.Err(); !errors.Is(err, pawl.ErrLost) {
		t.Error(err)
	}
	if _, err := open.Open(t.Context(), redlockURL(addrs)); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("opened with one of three: %v", err)
	}
}

// restarted is three nodes. Client a, which is cut off from the last node, holds the first two.
// Then the second node restarts without its data, and client b comes. enforced says whether the
// grace of that node is left alone. restarted returns until when a trusts its lock and when b was
// granted.
func restarted(t *testing.T, enforced bool, ttl time.Duration) (believes, granted time.Time) {
	servers, addrs := redlockServers(t, 3)
	link := proxy.New(t, addrs[2])
	holder, other := connect(t, redlockURL([]string{addrs[0], addrs[1], link.Addr})), connect(t, redlockURL(addrs))
	spec := engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}
	enter := func(s engine.Session) engine.Grant {
		c := &engine.Claim{Spec: spec, Resource: "restart", ID: s.ID() + ".1", Owner: s.ID() + ".1", Weight: spec.Capacity}
		g, err := s.Enter(t.Context(), c, true)
		if err == nil && !g.Held() {
			ctx, cancel := context.WithCancel(t.Context())
			var beat sync.WaitGroup
			beat.Go(func() {
				for ctx.Err() == nil {
					s.Renew(ctx, nil) //nolint:errcheck // it is repeated soon
					time.Sleep(ttl / 10)
				}
			})
			g, err = s.Await(t.Context(), c)
			cancel()
			beat.Wait()
		}
		if err != nil || !g.Held() {
			t.Fatal(g, err)
		}
		return g
	}
	session := func(eng engine.Engine) engine.Session {
		var s engine.Session
		eventually(t, "the nodes answer in time, also on a busy machine", func() bool {
			var err error
			believes = time.Now().Add(ttl) // less by the margin of the root
			if s, err = eng.Open(t.Context(), engine.SessionOptions{TTL: ttl}); err != nil && !errors.Is(err, engine.ErrUnavailable) {
				t.Fatal(err)
			}
			return err == nil
		})
		t.Cleanup(func() { s.Close(context.Background()) }) //nolint:errcheck // a node may be away
		return s
	}
	first := session(other) // waits for the end of the grace of new servers
	enter(first)
	if err := first.Leave(t.Context(), "restart", first.ID()+".1"); err != nil {
		t.Fatal(err)
	}
	link.Cut()
	a := session(holder)
	until := believes
	one := enter(a)
	servers[1].Kill()
	servers[1].Restart()
	if !enforced {
		defer ignoreGrace(t, addrs[1])()
	}
	b := session(connect(t, redlockURL(addrs)))
	two := enter(b)
	if two.Token <= one.Token {
		t.Errorf("token %v after %v", two.Token, one.Token)
	}
	return until, time.Now()
}

// ignoreGrace ends the grace of a server whenever the server has one, until the returned function
// is called.
func ignoreGrace(t *testing.T, addr string) (stop func()) {
	t.Helper()
	raw := oneRedis(t, addr)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			raw.Do(ctx, raw.B().Del().Key("pawl:grace").Build())
		}
	}()
	return func() { cancel(); <-done }
}

// TestRedlockRestartedNode: a node that restarts empty has no vote for one TTL. With a vote, two
// clients would hold.
func TestRedlockRestartedNode(t *testing.T) {
	t.Run("enforced", func(t *testing.T) {
		believes, granted := restarted(t, true, 2*time.Second)
		t.Logf("the next had it %v after the holder's belief ended", granted.Sub(believes).Round(time.Millisecond))
		if granted.Before(believes) {
			t.Errorf("two hold for %v", believes.Sub(granted))
		}
	})
	t.Run("not enforced", func(t *testing.T) {
		for ttl := 2 * time.Second; ; ttl *= 2 { // a busy machine takes some time to start the node
			believes, granted := restarted(t, false, ttl)
			if granted.Before(believes) {
				t.Logf("two hold for %v", believes.Sub(granted).Round(time.Millisecond))
				return
			}
			if ttl > 10*time.Second {
				t.Fatal("a node that voted twice gave no second grant: this test shows nothing")
			}
		}
	})
}

// TestRedlockOldSnapshot: a node restarted from a snapshot has a claim again that its client had
// left. The node loses that claim although its client lives on.
func TestRedlockOldSnapshot(t *testing.T) {
	const ttl = 2 * time.Second
	servers, addrs := redlockServers(t, 3)
	c := clientOf(t, connect(t, redlockURL(addrs)), ttl)
	l := mustLock(t, c.Mutex("job"))
	node := connect(t, redisURL(addrs[0]))
	claims := func() int {
		r, err := node.Show(t.Context(), "job")
		if err != nil {
			return -1
		}
		return len(r.Claims)
	}
	until := func(what string, n int) {
		t.Helper()
		for deadline := time.Now().Add(10 * ttl); claims() != n; time.Sleep(ttl / 40) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the node has %d claims", what, claims())
			}
		}
	}
	until("held", 1)
	raw := oneRedis(t, addrs[0])
	if err := raw.Do(t.Context(), raw.B().Save().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, l)
	servers[0].Kill()
	servers[0].Restart()
	until("restarted", 0)
	mustUnlock(t, mustLock(t, c.Mutex("job")))
}

// TestRedlockRollingRestart: a lock outlives the restart of each node, one after the other, all of
// them empty.
func TestRedlockRollingRestart(t *testing.T) {
	const ttl = 3 * time.Second // the lease has to live while a busy machine starts a node
	servers, addrs := redlockServers(t, 3)
	eng := connect(t, redlockURL(addrs))
	c := clientOf(t, eng, ttl)
	l := mustLock(t, c.Mutex("rolling"))
	votes := func(addr string) int {
		r, err := connect(t, redisURL(addr)).Show(t.Context(), "rolling")
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Claims) == 0 || r.Claims[0].Token == 0 {
			return 0
		}
		return 1
	}
	for i := range 2 * len(servers) { // first every node must vote, after the grace of new servers
		if i -= len(servers); i >= 0 {
			servers[i].Kill()
			servers[i].Restart()
		} else {
			i += len(servers)
		}
		for deadline := time.Now().Add(20 * ttl); votes(addrs[i]) == 0; time.Sleep(ttl / 20) {
			if time.Now().After(deadline) || l.Err() != nil {
				t.Fatalf("node %d does not vote again: lease %v", i, l.Err())
			}
		}
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
