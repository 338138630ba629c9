package goredis_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/engine/redisengine/goredis"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

const long = 2 * time.Minute // a TTL in which nobody looks by itself

// soon is for a cluster, whose nodes are not told that they are new.
var soon = &redisengine.Options{Grace: 100 * time.Millisecond}

// opened returns a session of a server whose grace is over.
func opened(t *testing.T, eng engine.Engine) engine.Session {
	t.Helper()
	if err := eng.(*redisengine.Engine).Init(t.Context()); err != nil && !errors.Is(err, engine.ErrUsed) && !errors.Is(err, engine.ErrUnsupported) {
		t.Fatal(err)
	}
	s := sessiontest.Open(t, eng, long)
	sessiontest.Until(t, "the server gives something out", func() bool {
		c := sessiontest.Whole(t, sessiontest.Fair)
		c.Resource += "/first"
		grant, err := s.Enter(t.Context(), c, false)
		return err == nil && s.Leave(t.Context(), c.Resource, c.ID) == nil && grant.Held()
	})
	return s
}

func throughRueidis(t *testing.T, addr string, opts *redisengine.Options) engine.Engine {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return redisengine.New(client, opts)
}

// TestBothLibraries: a holder through one library is waited for through the other. The holder's message is
// understood there, long before a waiter looks.
func TestBothLibraries(t *testing.T) {
	addr, nodes := testservers.Redis(t).Addr, testservers.RedisCluster(t)
	for kind, engines := range map[string][]engine.Engine{
		"server":  {single(t, addr, nil), throughRueidis(t, addr, nil)},
		"cluster": {clustered(t, nodes, nil), throughRueidis(t, nodes[0].Addr, soon)},
	} {
		t.Run(kind, func(t *testing.T) {
			sessions := []engine.Session{opened(t, engines[0]), opened(t, engines[1])}
			held := sessiontest.Whole(t, sessiontest.Fair)
			token := sessiontest.Hold(t, sessions[0], held)
			for i := range 6 {
				holder, waiter := sessions[i%2], sessions[(i+1)%2]
				next := sessiontest.Whole(t, sessiontest.Fair)
				sessiontest.Wait(t, waiter, next)
				got := sessiontest.Awaiting(t, waiter, next)
				sessiontest.Leave(t, holder, held)
				g := sessiontest.Granted(t, got)
				if g.Token <= token {
					t.Fatalf("%v after %v", g.Token, token)
				}
				held, token = next, g.Token
			}
		})
	}
}

// TestNothingIsDoneTwice: go-redis asks again when an answer was lost, and would find
// that what it has done itself has been done.
func TestNothingIsDoneTwice(t *testing.T) {
	addr, nodes := testservers.Redis(t).Addr, testservers.RedisCluster(t)
	t.Run("server", func(t *testing.T) {
		eng, trouble := troubled(t, addr, nil)
		nothingIsDoneTwice(t, eng, trouble, single(t, addr, nil))
	})
	t.Run("cluster", func(t *testing.T) {
		eng, trouble := troubledCluster(t, nodes)
		nothingIsDoneTwice(t, eng, trouble, clustered(t, nodes, nil))
	})
}

func nothingIsDoneTwice(t *testing.T, eng engine.Engine, trouble enginetest.Network, sees engine.Engine) {
	s, c := opened(t, eng), sessiontest.Whole(t, sessiontest.Fair)
	// lost does something, and loses the answer when it was seen to be done.
	lost := func(what string, do func(context.Context) error, done func() bool) {
		t.Helper()
		failed := make(chan error, 1)
		trouble.FreezeReplies()
		go func() { failed <- do(sessiontest.Soon(t)) }()
		sessiontest.Until(t, what, done)
		trouble.Heal()
		if err := <-failed; !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("%s, and is told: %v", what, err)
		}
	}
	sessiontest.Hold(t, s, c)
	sessiontest.Leave(t, s, c) // the server knows the script
	sessiontest.Hold(t, s, c)
	lost("it leaves", func(ctx context.Context) error { return s.Leave(ctx, c.Resource, c.ID) }, func() bool {
		r, err := sees.Show(t.Context(), c.Resource)
		return err == nil && len(r.Claims) == 0
	})
	version, err := eng.(engine.Values).Put(sessiontest.Soon(t), t.Name(), []byte("first"), 0)
	if err != nil {
		t.Fatal(err)
	}
	lost("it writes", func(ctx context.Context) error {
		_, err := eng.(engine.Values).Put(ctx, t.Name(), []byte("second"), version)
		return err
	}, func() bool {
		v, err := sees.(engine.Values).Get(t.Context(), t.Name())
		return err == nil && v.Version > version
	})
}

// TestSlotMoves: the holder of a name, and its waiters, go where its slot goes, at each step of
// that. So does a value, which is one key.
func TestSlotMoves(t *testing.T) {
	nodes := testservers.RedisCluster(t)
	ask := func(node int, words ...any) any {
		t.Helper()
		c := redis.NewClient(&redis.Options{Addr: nodes[node].Addr})
		defer c.Close()
		reply, err := c.Do(t.Context(), words...).Result()
		if err != nil {
			t.Fatal(words, err)
		}
		return reply
	}
	eng := clustered(t, nodes, nil)
	a, b := opened(t, eng), opened(t, eng)
	held, next := sessiontest.Whole(t, sessiontest.Fair), sessiontest.Whole(t, sessiontest.Fair)
	token := sessiontest.Hold(t, a, held)
	sessiontest.Wait(t, b, next)
	version := uint64(0)
	look := func(when string) {
		t.Helper()
		gone, err := a.Renew(sessiontest.Soon(t), []*engine.Claim{held})
		_, also := b.Renew(sessiontest.Soon(t), nil)
		if err != nil || len(gone) > 0 || also != nil {
			t.Fatalf("%s: gone %v, %v, %v", when, gone, err, also)
		}
		v, err := eng.(engine.Values).Get(sessiontest.Soon(t), held.Resource) // in the slot of the name
		if err != nil || v.Version != version {
			t.Fatalf("%s: %v, %v, want version %d", when, v, err, version)
		}
		if version, err = eng.(engine.Values).Put(sessiontest.Soon(t), held.Resource, []byte("x"), version); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	look("before")
	slot := ask(0, "CLUSTER", "KEYSLOT", "pawl:{"+held.Resource+"}").(int64)
	from := int((slot*3 + 2) / 16384) // as testservers distributes them
	to := (from + 1) % 3
	ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ask(from, "CLUSTER", "MYID"))
	ask(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", ask(to, "CLUSTER", "MYID"))
	look("while nothing has moved")
	host, port, _ := net.SplitHostPort(nodes[to].Addr)
	ask(from, append([]any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}, ask(from, "CLUSTER", "GETKEYSINSLOT", slot, 100).([]any)...)...)
	look("when all has moved")
	for _, node := range []int{to, from, 3 - to - from} {
		ask(node, "CLUSTER", "SETSLOT", slot, "NODE", ask(to, "CLUSTER", "MYID"))
	}
	look("after")
	got := sessiontest.Awaiting(t, b, next)
	sessiontest.Leave(t, a, held)
	if g := sessiontest.Granted(t, got); g.Token <= token {
		t.Errorf("%v after %v", g.Token, token)
	}
}

// TestEndsWithContext: go-redis itself waits for an answer whatever becomes of a context.
func TestEndsWithContext(t *testing.T) {
	link := proxy.New(t, testservers.SharedRedis(t).Addr)
	eng := single(t, link.Addr, nil)
	s := sessiontest.Open(t, eng, long)
	link.Freeze()
	defer link.Heal() // so that all that is open can say goodbye
	for what, call := range map[string]func(context.Context) error{
		"open": func(ctx context.Context) error {
			_, err := eng.Open(ctx, engine.SessionOptions{TTL: long})
			return err
		},
		"renew": func(ctx context.Context) error { _, err := s.Renew(ctx, nil); return err },
		"leave": func(ctx context.Context) error { return s.Leave(ctx, "name", "claim") },
		"get":   func(ctx context.Context) error { _, err := eng.(engine.Values).Get(ctx, "value"); return err },
		"watch": func(ctx context.Context) error { _, err := eng.(engine.Values).Watch(ctx, "value", 0); return err },
		"list": func(ctx context.Context) (err error) {
			for _, err = range eng.List(ctx, "") {
			}
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Second {
			t.Errorf("%s: %v after %v", what, err, time.Since(began))
		}
		cancel()
	}
}

// TestSentinel: a client that asks Sentinels where the master is.
func TestSentinel(t *testing.T) {
	sentinel := testservers.RedisObserver(t, testservers.Redis(t).Addr)
	s := opened(t, on(t, redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: testservers.ObservedMaster, SentinelAddrs: []string{sentinel.Addr},
	}), nil))
	a, b := sessiontest.Whole(t, sessiontest.Fair), sessiontest.Whole(t, sessiontest.Fair)
	sessiontest.Hold(t, s, a)
	sessiontest.Wait(t, s, b)
	sessiontest.Leave(t, s, a)
	sessiontest.Await(t, s, b)
}

// TestRefused: clients by which two may get one lock.
func TestRefused(t *testing.T) {
	for why, client := range map[string]redis.UniversalClient{
		"do not know of one another": redis.NewRing(&redis.RingOptions{}),
		"reads from replicas":        redis.NewClusterClient(&redis.ClusterOptions{RouteByLatency: true}),
		"is told its slots":          redis.NewFailoverClusterClient(&redis.FailoverOptions{}),
		"<nil>":                      nil,
	} {
		if client != nil {
			defer client.Close()
		}
		if eng, err := goredis.New(client, nil); eng != nil || err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, %v", why, eng, err)
		}
	}
}
