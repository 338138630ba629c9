package grpclb_test

import (
	"context"
	"fmt"
	"iter"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/grpclb"
)

// TestMain sets a proxy that does not answer, because net/http reads the environment once.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"HTTPS_PROXY": "http://127.0.0.1:1", "https_proxy": "", "NO_PROXY": "books,x", "no_proxy": ""} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(testservers.Main(m))
}

// server is a gRPC server of the health service. The service "wait" waits, and other services are up.
type server struct {
	grpc_health_v1.UnimplementedHealthServer
	*grpc.Server
	addr   string
	goOn   chan struct{}
	broken atomic.Bool
}

// Check implements the health service.
func (s *server) Check(ctx context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if s.broken.Load() {
		return nil, status.Error(codes.Unavailable, "the disk is full")
	}
	if r.GetService() == "wait" {
		select {
		case <-s.goOn:
		case <-ctx.Done():
		}
	}
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// start serves at the address of the server.
func (s *server) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	s.addr, s.Server = l.Addr().String(), grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s.Server, s)
	go s.Serve(l) //nolint:errcheck // it was stopped
}

// servers are a, b and so on, with these weights.
func servers(t testing.TB, weights ...int) (all []*server, nodes []lb.Node) {
	t.Helper()
	for i, w := range weights {
		s := &server{addr: "127.0.0.1:0", goOn: make(chan struct{})}
		s.start(t)
		t.Cleanup(func() { s.Stop() })
		all, nodes = append(all, s), append(nodes, lb.Node{ID: string(rune('a' + i)), Addr: s.addr, Weight: w})
	}
	return all, nodes
}

// source yields sets of nodes as the test sends them.
type source chan []lb.Node

func (s source) follow(ctx context.Context, name string) iter.Seq2[[]lb.Node, error] {
	return func(yield func([]lb.Node, error) bool) {
		for {
			select {
			case nodes := <-s:
				if name != "books" {
					yield(nil, fmt.Errorf("no group %q", name))
				}
				if !yield(nodes, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// client is a client of the nodes, and knows their IDs by address.
type client struct {
	grpc_health_v1.HealthClient
	from  source
	names map[string]string
}

const retries = `, "methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.1s",
	"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]`

func dial(t testing.TB, config, more string, nodes []lb.Node) *client {
	t.Helper()
	c := &client{from: make(source), names: make(map[string]string)}
	conn, err := grpc.NewClient("fleet:///books", grpc.WithResolvers(grpclb.NewResolver("fleet", c.from.follow)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"pawl": `+config+`}]`+more+`}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the test is over
	c.HealthClient = grpc_health_v1.NewHealthClient(conn)
	for _, n := range nodes {
		c.names[n.Addr] = n.ID
	}
	conn.Connect()
	c.from <- nodes
	return c
}

// call returns the ID of the node that answered.
func (c *client) call(ctx context.Context, service string) (string, error) {
	var at peer.Peer
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true), grpc.Peer(&at))
	if err != nil {
		return "", err
	}
	return c.names[at.Addr.String()], nil
}

// use calls until each of the nodes has answered, because connections are made one after another.
func (c *client) use(t testing.TB, ids string) {
	t.Helper()
	for missing := ids; missing != ""; {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		id, err := c.call(metadata.AppendToOutgoingContext(ctx, "user", fmt.Sprint(time.Now().UnixNano())), "")
		cancel()
		if err != nil {
			t.Fatalf("%v, and %s did not answer", err, missing)
		}
		missing = strings.Replace(missing, id, "", 1)
	}
}

// count is how many of n calls each node answered.
func (c *client) count(t testing.TB, n int) map[string]int {
	t.Helper()
	all := make(map[string]int)
	for range n {
		id, err := c.call(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		all[id]++
	}
	return all
}

// TestPolicies: the service config chooses the policy, and weights are those of the source. With each policy all nodes get calls.
func TestPolicies(t *testing.T) {
	_, nodes := servers(t, 5, 1, 1)
	for config, want := range map[string]string{
		`{"policy": "round-robin"}`:                "map[a:70 b:70 c:70]",
		`{"policy": "weighted-round-robin"}`:       "map[a:150 b:30 c:30]",
		`{"policy": "least-connections"}`:          "map[a:70 b:70 c:70]",
		`{"policy": "weighted-least-connections"}`: "map[a:150 b:30 c:30]",
		`{"policy": "random"}`:                     "",
		`{"policy": "weighted-random"}`:            "",
		`{"policy": "power-of-two"}`:               "",
		`{"policy": "peak-ewma", "tau": "1s"}`:     "",
	} {
		c := dial(t, config, "", nodes)
		c.use(t, "abc")
		if got := c.count(t, 210); want != "" && fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", config, got, want)
		}
	}
}

// TestSlowStart: the first nodes share the calls at once, however their connections are made. A later node rises.
func TestSlowStart(t *testing.T) {
	_, nodes := servers(t, 1, 1, 1, 1)
	c := dial(t, `{"policy": "weighted-round-robin", "slowStart": "1h"}`, "", nodes[:3])
	c.names[nodes[3].Addr] = "d"
	c.use(t, "abc")
	if got := fmt.Sprint(c.count(t, 300)); got != "map[a:100 b:100 c:100]" {
		t.Errorf("at first: %v", got)
	}
	c.from <- nodes
	c.use(t, "d")
	if got := fmt.Sprint(c.count(t, 310)); got != "map[a:100 b:100 c:100 d:10]" {
		t.Errorf("with a later node: %v", got)
	}
}

// TestHashHeader: calls with one value go to one node. Calls without a value go to all nodes.
func TestHashHeader(t *testing.T) {
	_, nodes := servers(t, 1, 1, 1)
	c := dial(t, `{"policy": "source-hash", "hashHeader": "user"}`, "", nodes)
	c.use(t, "abc")
	at := make(map[string]string)
	for i := range 60 {
		user := fmt.Sprint("user ", i%20)
		id, err := c.call(metadata.AppendToOutgoingContext(t.Context(), "user", user), "")
		if was := at[user]; err != nil || was != "" && was != id {
			t.Errorf("%s was at %s, and is at %s: %v", user, was, id, err)
		}
		at[user] = id
	}
	if got := c.count(t, 100); len(got) != 3 {
		t.Errorf("without a header: %v", got)
	}
}

// TestLoad: a node with a call in flight gets no other, until that call ends.
func TestLoad(t *testing.T) {
	all, nodes := servers(t, 1, 1)
	c := dial(t, `{"policy": "least-connections"}`, "", nodes)
	c.use(t, "ab")
	var waiting sync.WaitGroup
	at := make(chan string, 1)
	waiting.Go(func() {
		id, err := c.call(t.Context(), "wait")
		if err != nil {
			t.Error(err)
		}
		at <- id
	})
	for end := time.Now().Add(time.Minute); len(c.count(t, 4)) != 1; {
		if time.Now().After(end) {
			t.Fatal("the node with a call gets others")
		}
	}
	free := c.count(t, 20)
	close(all[0].goOn)
	close(all[1].goOn)
	waiting.Wait()
	if id := <-at; len(free) != 1 || free[id] != 0 {
		t.Errorf("%s had a call, and got others: %v", id, free)
	}
	if got := c.count(t, 20); got["a"] != 10 || got["b"] != 10 {
		t.Errorf("after the call: %v", got)
	}
}

// TestChanges: nodes that come get calls, and nodes that are gone get none. Without nodes a call fails at once.
func TestChanges(t *testing.T) {
	_, nodes := servers(t, 1, 1, 1)
	c := dial(t, `{"policy": "round-robin"}`, "", nodes)
	c.use(t, "abc")
	c.from <- nodes[1:]
	for end := time.Now().Add(time.Minute); c.count(t, 30)["a"] > 0; {
		if time.Now().After(end) {
			t.Fatal("a node that is gone gets calls")
		}
	}
	c.from <- nil
	for end := time.Now().Add(time.Minute); ; {
		_, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), lb.ErrNoNode.Error()) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("without nodes: %v", err)
		}
	}
	c.from <- nodes
	c.use(t, "abc")
}

// TestEmptyGroup: a group without members is no trouble of the source. A call fails at once, because there is no node.
func TestEmptyGroup(t *testing.T) {
	_, nodes := servers(t, 1)
	c := dial(t, `{"policy": "round-robin"}`, "", nil)
	c.names[nodes[0].Addr] = "a"
	for range 2 { // the balancer has what the resolver said of the one before
		c.from <- nil
	}
	_, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if is := status.Convert(err); is.Code() != codes.Unavailable || is.Message() != lb.ErrNoNode.Error() {
		t.Errorf("without nodes: %v", err)
	}
	c.from <- nodes
	c.use(t, "a")
}

// TestNoAddressYet: the resolver dns asks again only after an error, or for a client that lost a node. So the balancer refuses
// an answer without an address.
func TestNoAddressYet(t *testing.T) {
	_, nodes := servers(t, 1)
	books := resolver.State{Addresses: []resolver.Address{{Addr: nodes[0].Addr}}}
	told, asked := make(chan error, 10), make(chan struct{}, 1)
	from := manual.NewBuilderWithScheme("manual")
	from.UpdateStateCallback = func(err error) { told <- err }
	from.ResolveNowCallback = func(resolver.ResolveNowOptions) {
		select {
		case asked <- struct{}{}:
		default:
		}
	}
	from.InitialState(resolver.State{})
	conn, err := grpc.NewClient("manual:///books", grpc.WithResolvers(from), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"pawl": {"policy": "round-robin"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the test is over
	var all sync.WaitGroup
	defer all.Wait()
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call := func(what string) {
		t.Helper()
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(soon, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	all.Go(func() { // as the resolver dns does
		if err := <-told; err == nil {
			select {
			case <-asked:
			case <-soon.Done():
				return
			}
		}
		from.UpdateState(books)
	})
	call("after an answer without an address")
	from.UpdateState(resolver.State{})
	from.UpdateState(books)
	for _, want := range []error{nil, balancer.ErrBadResolverState, nil} {
		if got := <-told; got != want {
			t.Errorf("the resolver is told %v, want %v", got, want)
		}
	}
	call("after all nodes had gone")
}

// TestEjected: a node that answers UNAVAILABLE is taken out, though it is connected.
func TestEjected(t *testing.T) {
	all, nodes := servers(t, 1, 1, 1)
	c := dial(t, `{"policy": "round-robin", "ejectAfter": 3, "ejectFor": "1h"}`, "", nodes)
	c.use(t, "abc")
	all[1].broken.Store(true)
	failed := 0
	for range 60 {
		if _, err := c.call(t.Context(), ""); err != nil {
			failed++
		}
	}
	if failed != 3 {
		t.Errorf("%d calls failed, want 3", failed)
	}
}

// TestWaitsForEjected: a call that waits until the client is ready goes on when the only node returns from its ejection.
func TestWaitsForEjected(t *testing.T) {
	all, nodes := servers(t, 1)
	c := dial(t, `{"policy": "round-robin", "ejectAfter": 1, "ejectFor": "100ms", "panic": -1}`, "", nodes)
	c.use(t, "a")
	all[0].broken.Store(true)
	if _, err := c.call(t.Context(), ""); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	all[0].broken.Store(false)
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.call(soon, ""); err != nil {
		t.Error(err)
	}
}

// TestKilled: servers are killed and started under load. No call fails, and each server gets calls again.
func TestKilled(t *testing.T) {
	all, nodes := servers(t, 1, 1, 1)
	c := dial(t, `{"policy": "peak-ewma", "ejectFor": "100ms"}`, retries, nodes)
	c.use(t, "abc")
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var done atomic.Int64
	for range 4 {
		load.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.call(t.Context(), ""); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}
		})
	}
	for i, s := range all {
		for at := done.Load(); done.Load() < at+50; {
			time.Sleep(time.Millisecond)
		}
		s.Stop()
		for at := done.Load(); done.Load() < at+50; {
			time.Sleep(time.Millisecond)
		}
		s.start(t)
		c.use(t, nodes[i].ID)
	}
	stop()
	load.Wait()
	t.Logf("%d calls", done.Load())
}

// TestConfig: a mistake in the service config fails when the client is made, and names the field.
func TestConfig(t *testing.T) {
	for config, want := range map[string]string{
		`{}`:                                        "policy",
		`{"policy": "fastest"}`:                     "peak-ewma",
		`{"policy": "source-hash"}`:                 "hashHeader",
		`{"policy": "random", "tua": "1s"}`:         "tua",
		`{"policy": "random", "tau": 1}`:            "duration",
		`{"policy": "random", "tau": "1x"}`:         "duration",
		`{"policy": "random", "tau": "1ns"}`:        "Tau",
		`{"policy": "random", "panic": 2}`:          "Panic",
		`{"policy": "random", "ejectAfter": -2}`:    "EjectAfter",
		`{"policy": "source-hash", "bound": "lot"}`: "bound",
	} {
		_, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"pawl": `+config+`}]}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
}
