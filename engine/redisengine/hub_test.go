package redisengine

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// connectionsOf counts those of all clients of a server but the asking one.
func connectionsOf(t *testing.T, e *Engine) int {
	t.Helper()
	list, _ := does(t, e, "CLIENT", "LIST").Value.(string)
	return strings.Count(list, "\n") - 1
}

// TestOneConnectionListens: sessions and watchers of an engine share one connection. So more of
// them than a pool has connections take nothing from each other, nor from a renewal.
func TestOneConnectionListens(t *testing.T) {
	const many = 1100 // a pool of rueidis has 1,024
	server := testservers.Redis(t)
	raw := onServer(t, server, 0)
	isNew(t, raw)
	before := connectionsOf(t, raw) // of the counting client, which may have one more to itself
	e := New(dialTo(t, rueidis.ClientOption{InitAddress: []string{server.Addr}, ForceSingleClient: true, PipelineMultiplex: -1}), nil)
	ctx, cancel := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer cancel()
	for i := range many {
		watchers.Go(func() { e.Watch(ctx, fmt.Sprint("value", i%10), 0) }) //nolint:errcheck // it is ended
	}
	var all []engine.Session
	for range many {
		all = append(all, sessiontest.Open(t, e, time.Minute))
	}
	if n := connectionsOf(t, raw) - before; n > 2 {
		t.Errorf("%d connections", n)
	}
	for _, s := range all[many-10:] {
		if _, err := s.Renew(sessiontest.Soon(t), nil); err != nil {
			t.Error(err)
		}
	}
	holder, waiter := visitor{all[0].(*session), t, "told"}, visitor{all[many-1].(*session), t, "told"}
	holder.holds(1 << 30)
	waiter.waits(1 << 30)
	got := sessiontest.Awaiting(t, waiter.session, waiter.claim(1<<30))
	holder.leaves()
	sessiontest.Granted(t, got)
}

// TestListenersSurvive: when the connection over which all are told breaks, each is told again. A
// channel to which nobody listens is not subscribed any more.
func TestListenersSurvive(t *testing.T) {
	server := testservers.Redis(t)
	raw := onServer(t, server, 0)
	isNew(t, raw)
	option := rueidis.ClientOption{InitAddress: []string{server.Addr}, ForceSingleClient: true}
	for name, opts := range map[string]*Options{"of the pool": nil, "of notices": {Notices: &option}} {
		t.Run(name, func(t *testing.T) {
			e := New(dialOne(t, server.Addr), opts)
			defer e.Close() //nolint:errcheck // it returns nil
			a, b := visit(t, e, time.Minute, name), visit(t, e, time.Minute, name)
			subscribed := func() int {
				list, _ := does(t, raw, "PUBSUB", "CHANNELS", "pawl:inbox:*").Value.([]any)
				return len(list)
			}
			if n := subscribed(); n != 2 {
				t.Fatalf("%d inboxes", n)
			}
			list, _ := does(t, raw, "CLIENT", "LIST").Value.(string)
			for line := range strings.Lines(list) {
				if strings.Contains(line, " sub=2 ") {
					id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
					does(t, raw, "CLIENT", "KILL", "ID", id)
				}
			}
			sessiontest.Until(t, "both listen again", func() bool { return subscribed() == 2 })
			a.holds(all)
			b.waits(all)
			got := sessiontest.Awaiting(t, b.session, b.claim(all))
			a.leaves()
			sessiontest.Granted(t, got)
			b.leaves()
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			sessiontest.Until(t, "one listens", func() bool { return subscribed() == 1 })
			if err := b.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			sessiontest.Until(t, "nobody listens", func() bool { return subscribed() == 0 })
		})
	}
}

// TestIdleWaiters: thousands that wait in one session, whose looks touch one name, keep
// neither it nor another session from renewing what it holds elsewhere.
func TestIdleWaiters(t *testing.T) {
	n := 500
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		n = 5000
	}
	server := testservers.Redis(t)
	e := onServer(t, server, 0)
	isNew(t, e)
	const ttl = 3 * time.Second
	busy, other := visit(t, e, ttl, "elsewhere"), visit(t, onServer(t, server, 0), ttl, "another's")
	busy.holds(all)
	other.holds(all)
	sem := engine.Spec{Kind: engine.KindSemaphore, Capacity: 2}
	for _, spec := range []engine.Spec{sessiontest.Fair, sem} {
		first := sessiontest.Whole(t, spec)
		first.Resource = string(spec.Kind)
		sessiontest.Hold(t, other.session, first)
		defer sessiontest.Leave(t, other.session, first)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	defer waiters.Wait()
	defer cancel()
	for i := range n {
		spec := sessiontest.Fair
		if i%2 == 0 {
			spec = sem
		}
		c := sessiontest.Claim(t, spec, spec.Capacity, "")
		c.Resource = string(spec.Kind)
		waiters.Go(func() {
			if _, err := busy.Enter(ctx, c, true); err != nil {
				t.Error(err)
			}
			if g, err := busy.Await(ctx, c); ctx.Err() == nil {
				t.Error(g, err)
			}
		})
	}
	for start, last := time.Now(), time.Now(); time.Since(start) < 3*ttl; {
		for _, v := range []visitor{busy, other} {
			if gone, err := v.Renew(sessiontest.Soon(t), []*engine.Claim{v.claim(all)}); err != nil || len(gone) > 0 {
				t.Fatalf("%v, %v", gone, err)
			}
		}
		if took := time.Since(last); took > ttl-ttl/10 {
			t.Fatalf("no renewal for %v", took)
		}
		last = time.Now()
		<-time.After(ttl / 3)
	}
}

// hanging is a client whose reads hang until it is let go.
type hanging struct {
	Client
	reading chan struct{}
	goOn    chan struct{}
}

func (h hanging) Do(ctx context.Context, cmd Command) Reply {
	if cmd.Reads {
		h.reading <- struct{}{}
		<-h.goOn
	}
	return h.Client.Do(ctx, cmd)
}

// TestRequestsStayBelowThePool: requests that hang leave a connection of the pool to
// renewals.
func TestRequestsStayBelowThePool(t *testing.T) {
	const pool, many = 4, 50
	server := testservers.Redis(t)
	h := hanging{onRueidis{dialOne(t, server.Addr)}, make(chan struct{}, many), make(chan struct{})}
	e := NewOn(h, &Options{Requests: pool - 1})
	s := sessiontest.Open(t, e, time.Minute)
	var readers sync.WaitGroup
	for range many {
		readers.Go(func() {
			if _, err := e.Get(context.Background(), "hangs"); err != nil {
				t.Error(err)
			}
		})
	}
	for range pool - 1 {
		<-h.reading
	}
	if _, err := s.Renew(sessiontest.Soon(t), nil); err != nil {
		t.Error(err)
	}
	if n := len(h.reading); n > 0 {
		t.Errorf("%d requests more than the pool bears", n)
	}
	close(h.goOn)
	readers.Wait()
}
