package rivals

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kratos/kratos/v2/registry"
	"github.com/go-kratos/kratos/v2/selector"
	"github.com/go-kratos/kratos/v2/selector/p2c"
	"github.com/go-kratos/kratos/v2/selector/random"
	"github.com/go-kratos/kratos/v2/selector/wrr"
	"github.com/vulcand/oxy/v2/roundrobin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	_ "google.golang.org/grpc/balancer/leastrequest" // registers itself
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/pawl-go/pawl/lb"
	_ "github.com/pawl-go/pawl/lb/grpclb" // registers itself
)

func weight(i int) int { return 1 + i%7 }

// picks returns a pick of pawl and its end.
func picks(p lb.Policy, n int) func() {
	var nodes []lb.Node
	for i := range n {
		nodes = append(nodes, lb.Node{Addr: fmt.Sprintf("10.0.%d.%d:80", i>>8, i&255), Weight: weight(i)})
	}
	b := must(lb.New(must(lb.NewSet(nil, nodes...)), p, nil))
	return func() {
		pick := must(b.Pick(lb.Request{}))
		pick.Done(lb.Succeeded)
	}
}

// turns is a pick of a round robin without its end, which is the work of the floor.
func turns(n int) maker {
	var nodes []lb.Node
	for i := range n {
		nodes = append(nodes, lb.Node{Addr: fmt.Sprint(i)})
	}
	b := must(lb.New(must(lb.NewSet(nil, nodes...)), lb.RoundRobin, nil))
	return maker{name: fmt.Sprintf("pawl round-robin without Done, n=%d", n), ids: 200_000, each: 1, bare: true, call: func() { b.Pick(lb.Request{}) }} //nolint:errcheck // there are nodes
}

// kratos returns a pick of go-kratos and its end.
func kratos(s selector.Selector, n int) func() {
	var nodes []selector.Node
	for i := range n {
		addr := fmt.Sprintf("10.0.%d.%d:80", i>>8, i&255)
		nodes = append(nodes, selector.NewNode("http", addr, &registry.ServiceInstance{ID: addr, Metadata: map[string]string{"weight": strconv.Itoa(weight(i))}}))
	}
	s.Apply(nodes)
	return func() {
		_, done, err := s.Select(ctx)
		if err != nil {
			panic(err)
		}
		done(ctx, selector.DoneInfo{BytesSent: true, BytesReceived: true})
	}
}

// oxy is a pick of vulcand/oxy, which is not told of the end.
func oxy(n int) maker {
	rr := must(roundrobin.New(http.NotFoundHandler()))
	for i := range n {
		to := &url.URL{Scheme: "http", Host: fmt.Sprintf("10.0.%d.%d:80", i>>8, i&255)}
		if err := rr.UpsertServer(to, roundrobin.Weight(weight(i))); err != nil {
			panic(err)
		}
	}
	return maker{name: "vulcand/oxy roundrobin", ids: 20_000, each: 1, call: func() { must(rr.NextServer()) }, behind: true}
}

// BenchmarkPolicies is a pick and its end, beside go-kratos and vulcand/oxy. The floor of a round robin is an atomic addition, a remainder and an index.
func BenchmarkPolicies(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		all := make([]*lb.Node, n)
		for i := range all {
			all[i] = &lb.Node{Weight: 1}
		}
		var next, sum atomic.Uint64
		floor := func() {
			if all[next.Add(1)%uint64(len(all))].Weight == 0 {
				sum.Add(1)
			}
		}
		of := func(p lb.Policy) maker {
			return maker{name: fmt.Sprintf("pawl %v, n=%d", p, n), ids: 200_000, each: 1, call: picks(p, n), bare: true}
		}
		theirs := func(name string, s selector.Selector) maker {
			return maker{name: "go-kratos " + name, ids: 200_000 / n * 10, each: 1, call: kratos(s, n), behind: true}
		}
		for name, makers := range map[string][]maker{
			"RoundRobin":         {turns(n), of(lb.RoundRobin), {name: "an atomic addition and an index", ids: 200_000, each: 1, call: floor}},
			"WeightedRoundRobin": {of(lb.WeightedRoundRobin), theirs("wrr", wrr.New()), oxy(n)},
			"Random":             {of(lb.Random), theirs("random", random.New())},
			"PeakEWMA":           {of(lb.PeakEWMA), theirs("p2c", p2c.New())},
		} {
			b.Run(fmt.Sprintf("%s/n=%d", name, n), func(b *testing.B) { beside(b, makers...) })
		}
	}
}

// tap is a balancer of gRPC whose pickers are seen.
type tap struct {
	name  string // of the balancer
	mu    sync.Mutex
	last  balancer.Picker
	ready func(balancer.Picker)
}

// Name implements [balancer.Builder].
func (t *tap) Name() string { return "tap_" + t.name }

// Build implements [balancer.Builder].
func (t *tap) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	inner := balancer.Get(t.name)
	return &tapped{inner.Build(&seen{cc, t}, opts), inner}
}

type tapped struct {
	balancer.Balancer
	of balancer.Builder
}

// UpdateClientConnState gives the balancer its own config.
func (t *tapped) UpdateClientConnState(s balancer.ClientConnState) error {
	if parser, ok := t.of.(balancer.ConfigParser); ok {
		s.BalancerConfig = must(parser.ParseConfig([]byte(configs[t.of.Name()].(string)))) //nolint:errcheck // all are texts
	}
	return t.Balancer.UpdateClientConnState(s)
}

// configs are the configs of balancers, by name.
var configs = map[string]any{"pawl": `{"policy": "round-robin"}`, "least_request_experimental": `{}`, "round_robin": `{}`}

type seen struct {
	balancer.ClientConn
	t *tap
}

// UpdateState implements [balancer.ClientConn].
func (s *seen) UpdateState(is balancer.State) {
	if is.ConnectivityState == connectivity.Ready {
		s.t.mu.Lock()
		s.t.last = is.Picker
		s.t.mu.Unlock()
	}
	s.ClientConn.UpdateState(is)
}

// grpcPicks returns a pick of a balancer of gRPC and its end, when all nodes are connected. The nodes are connections to one server.
func grpcPicks(b *testing.B, name, config string, n int) func() {
	b.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	server := grpc.NewServer()
	go server.Serve(l) //nolint:errcheck // it is stopped
	b.Cleanup(server.Stop)
	t := &tap{name: name}
	balancer.Register(t)
	configs[name] = config
	r := manual.NewBuilderWithScheme("nodes")
	var all []resolver.Address
	for i := range n {
		all = append(all, resolver.Address{Addr: fmt.Sprintf("node%d:80", i)})
	}
	r.InitialState(resolver.State{Addresses: all})
	conn := must(grpc.NewClient("nodes:///all", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"tap_`+name+`": {}}]}`)))
	b.Cleanup(func() { conn.Close() }) //nolint:errcheck // it is over
	conn.Connect()
	info := balancer.PickInfo{Ctx: ctx, FullMethodName: "/a/b"}
	for found := make(map[balancer.SubConn]bool); len(found) < n; {
		t.mu.Lock()
		p := t.last
		t.mu.Unlock()
		if p == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		if is, err := p.Pick(info); err == nil {
			found[is.SubConn] = true
			end(is)
		}
	}
	p := t.last
	return func() { end(must(p.Pick(info))) }
}

// end ends a call well.
func end(is balancer.PickResult) {
	if is.Done != nil {
		is.Done(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	}
}

// BenchmarkGRPC is a pick of a balancer of gRPC and its end. The balancers of grpc-go know no weights, and take no node out that fails.
func BenchmarkGRPC(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		for _, row := range [][3]string{
			{"round-robin", "round_robin", `{}`},
			{"power-of-two", "least_request_experimental", `{"choiceCount": 2}`},
		} {
			b.Run(fmt.Sprintf("%s/n=%d", row[0], n), func(b *testing.B) {
				beside(b,
					maker{name: fmt.Sprintf("pawl %s, n=%d", row[0], n), ids: 100_000, each: 1, call: grpcPicks(b, "pawl", `{"policy": "`+row[0]+`"}`, n)},
					maker{name: "grpc-go " + row[1], ids: 100_000, each: 1, call: grpcPicks(b, row[1], row[2], n)})
			})
		}
	}
}
