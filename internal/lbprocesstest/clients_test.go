package lbprocesstest

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/grpclb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// The balancers that send requests.
const (
	usual  = "power of two, as it comes"
	strict = "round robin, without ejection" // so that a request to a dead server is seen
	calls  = "least connections of gRPC"
	naive  = "a list that stays, without repeats"
	slow   = "a list that is two TTLs late, or later until that is found"
)

// follower watches a group.
type follower struct {
	mu    sync.Mutex
	view  group.View
	stale int // how often the view became stale
}

func (f *follower) note(v group.View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.Stale && !f.view.Stale {
		f.stale++
	}
	f.view = v
}

// has reports whether exactly these servers are seen, and whether the view is stale.
func (f *follower) has(ids map[string]bool) (same, stale bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	same = len(f.view.Members) == len(ids)
	for _, m := range f.view.Members {
		same = same && ids[m.ID]
	}
	return same, f.view.Stale
}

// ids are the servers that are seen.
func (f *follower) ids() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.view.Members {
		all = append(all, m.ID)
	}
	return all
}

func nodesOf(v group.View) (all []lb.Node) {
	for _, m := range v.Members {
		all = append(all, lb.Node{ID: m.ID, Addr: m.Addr, Weight: m.Weight})
	}
	return all
}

// follow yields the nodes of a group, and notes its views.
func follow(ctx context.Context, t *testing.T, g *group.Group, f *follower) iter.Seq2[[]lb.Node, error] {
	return func(yield func([]lb.Node, error) bool) {
		for view, err := range g.Watch(ctx) {
			if err != nil {
				t.Error(err)
				return
			}
			f.note(view)
			if !yield(nodesOf(view), nil) {
				return
			}
		}
	}
}

// balancer sends requests of HTTP.
type balancer struct {
	name   string
	set    *lb.Set
	client *http.Client
}

func newBalancer(t *testing.T, b *books, name string, p lb.Policy, of *lb.SetOptions, opts httplb.Options) *balancer {
	t.Helper()
	set, err := lb.NewSet(of)
	if err != nil {
		t.Fatal(err)
	}
	picks, err := lb.New(set, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	opts.Observe = func(is httplb.Try) { b.sent(name, is.Node.ID, time.Now().Add(-is.Took)) }
	through, err := httplb.NewTransport(picks, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.CloseIdleConnections)
	return &balancer{name, set, &http.Client{Transport: through}}
}

// get needs a whole response.
func (h *balancer) get(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, "GET", "http://books/", nil)
	if err != nil {
		return err
	}
	res, err := h.client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	if _, err = io.ReadAll(res.Body); err == nil && res.StatusCode != 200 {
		err = errors.New(res.Status)
	}
	return err
}

// inFlight is how many requests the balancer counts.
func (h *balancer) inFlight() (n int) {
	for _, is := range h.set.Nodes() {
		n += is.InFlight
	}
	return n
}

// caller sends calls of gRPC. The books have each attempt, also to connect.
type caller struct {
	grpc_health_v1.HealthClient
	books *books
	mu    sync.Mutex
	ids   map[string]string // by address
}

const serviceConfig = `{"loadBalancingConfig": [{"pawl": {"policy": "least-connections"}}], "methodConfig": [{"name": [{}],
	"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.1s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

func newCaller(t *testing.T, client *pawl.Client, b *books, f *follower) *caller {
	t.Helper()
	c := &caller{books: b, ids: make(map[string]string)}
	source := func(ctx context.Context, name string) iter.Seq2[[]lb.Node, error] {
		return func(yield func([]lb.Node, error) bool) {
			for nodes, err := range follow(ctx, t, group.New(client, name), f) {
				c.mu.Lock()
				for _, n := range nodes {
					c.ids[n.Addr] = n.ID
				}
				c.mu.Unlock()
				if !yield(nodes, err) {
					return
				}
			}
		}
	}
	conn, err := grpc.NewClient("fleet:///"+rpc, grpc.WithResolvers(grpclb.NewResolver("fleet", source)), grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(c), grpc.WithContextDialer(c.dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the test is over
	c.HealthClient = grpc_health_v1.NewHealthClient(conn)
	conn.Connect()
	return c
}

func (c *caller) sent(addr string) {
	c.mu.Lock()
	id := c.ids[addr]
	c.mu.Unlock()
	c.books.sent(calls, id, time.Now())
}

func (c *caller) dial(ctx context.Context, addr string) (net.Conn, error) {
	c.sent(addr)
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// HandleRPC implements [stats.Handler].
func (c *caller) HandleRPC(_ context.Context, s stats.RPCStats) {
	if is, ok := s.(*stats.OutHeader); ok {
		c.sent(is.RemoteAddr.String())
	}
}

// TagRPC implements [stats.Handler].
func (c *caller) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements [stats.Handler].
func (c *caller) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler].
func (c *caller) HandleConn(context.Context, stats.ConnStats) {}

func (c *caller) get(ctx context.Context) error {
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	return err
}

// load sends requests one after another until stop is closed.
func load(running *sync.WaitGroup, stop <-chan struct{}, b *books, by string, get func(context.Context) error) {
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			excused := b.overdue(by)
			b.ended(by, excused, get(ctx))
			cancel()
		}
	})
}

// sweepers are the clients that take dead members off the list of a group.
func sweepers(ctx context.Context, client *pawl.Client, kind string) (labels []string, err error) {
	for _, turn := range []string{"/0", "/1", "/2"} {
		r, err := client.Show(ctx, client.Scope("group-sweep").Mutex(kind+turn).Name())
		if err != nil {
			return nil, err
		}
		for _, h := range r.Holders {
			labels = append(labels, h.Label)
		}
	}
	return labels, nil
}

// heldBy notes the servers whose sessions the store has, and the sweepers, until ctx ends.
func heldBy(ctx context.Context, client *pawl.Client, b *books) {
	for ctx.Err() == nil {
		if err := held(ctx, client, b); err != nil || client.Err() != nil {
			b.silent(watcher)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// held does what a sweeper does, a write and a list, and notes how long that took.
func held(ctx context.Context, client *pawl.Client, b *books) error {
	alive, began := make(map[string]bool), time.Now()
	write := func(pawl.Snapshot) ([]byte, error) { return []byte(began.String()), nil }
	if _, err := client.Scope("books").Value("probe").Update(ctx, write); err != nil {
		return err
	}
	for r, err := range client.List(ctx, client.Scope("group-member").Mutex("").Name()) {
		if err != nil {
			return err
		}
		for _, h := range r.Holders {
			alive[h.Label] = true
		}
	}
	b.alive(alive, time.Since(began))
	for _, kind := range []string{web, rpc} {
		by, err := sweepers(ctx, client, kind)
		if err != nil {
			return err
		}
		b.swept(kind, by)
	}
	return nil
}

// later hands each list on after a time, and not before the lateness was found once: a busy store may excuse more than that time.
func later(ctx context.Context, after time.Duration, found func() bool, lists <-chan []lb.Node, to *lb.Set) error {
	type late struct {
		nodes []lb.Node
		due   time.Time
	}
	var waiting []late
	for {
		var due <-chan time.Time
		if len(waiting) > 0 {
			due = time.After(time.Until(waiting[0].due))
		}
		select {
		case <-ctx.Done():
			return nil
		case nodes := <-lists:
			waiting = append(waiting, late{nodes, time.Now().Add(after)})
		case <-due:
			if !found() {
				waiting[0].due = time.Now().Add(100 * time.Millisecond)
				continue
			}
			if err := to.Update(waiting[0].nodes...); err != nil {
				return err
			}
			waiting = waiting[1:]
		}
	}
}
