package grpclb_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/grpclb"
)

// TestThroughProxy: HTTPS_PROXY makes gRPC replace the address of each node by that of the proxy. Then all calls would go to one node, so a
// client without grpc.WithNoProxy() is refused, and told why. TestMain sets HTTPS_PROXY.
func TestThroughProxy(t *testing.T) {
	_, nodes := servers(t, 1, 1, 1)
	own := manual.NewBuilderWithScheme("fleet")
	state := resolver.State{}
	for _, n := range nodes {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: n.Addr})
	}
	own.InitialState(state)
	for name, from := range map[string]resolver.Builder{
		"a source": following(nodes), "a source of one node": following(nodes[:1]), "another resolver": own,
	} {
		t.Run(name, func(t *testing.T) {
			err := checkThrough(t, from)
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "grpc.WithNoProxy()") || !strings.Contains(err.Error(), "HTTPS_PROXY") {
				t.Errorf("through a proxy: %v", err)
			}
			if err := checkThrough(t, from, grpc.WithNoProxy()); err != nil {
				t.Errorf("without a proxy: %v", err)
			}
		})
	}
}

// TestOneIDTwice: two nodes of one ID are refused, as lb.Set refuses them. One address that is given twice is one node.
func TestOneIDTwice(t *testing.T) {
	_, nodes := servers(t, 1, 1)
	if err := checkThrough(t, following([]lb.Node{nodes[0], nodes[0]}), grpc.WithNoProxy()); err != nil {
		t.Errorf("one node twice: %v", err)
	}
	nodes[1].ID = nodes[0].ID
	if err := checkThrough(t, following(nodes), grpc.WithNoProxy()); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("two nodes of one ID: %v", err)
	}
}

// TestOneAddressTwice: a resolver that gives an address twice with other attributes is told so, because no proxy has done it.
func TestOneAddressTwice(t *testing.T) {
	_, nodes := servers(t, 1)
	own := manual.NewBuilderWithScheme("fleet")
	own.InitialState(resolver.State{Addresses: []resolver.Address{
		{Addr: nodes[0].Addr, Attributes: attributes.New("zone", "a")}, {Addr: nodes[0].Addr, Attributes: attributes.New("zone", "b")},
	}})
	want := fmt.Sprintf("address %q twice with other attributes", nodes[0].Addr)
	if err := checkThrough(t, own, grpc.WithNoProxy()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("one address twice: %v", err)
	}
}

// TestWeightOfAnotherResolver: a resolver that does not report what the balancer refuses, as that of a proxy, lets no call wait for ever.
func TestWeightOfAnotherResolver(t *testing.T) {
	own := manual.NewBuilderWithScheme("fleet")
	own.InitialState(resolver.State{Addresses: []resolver.Address{grpclb.WithNode(resolver.Address{Addr: "127.0.0.1:1"}, lb.Node{ID: "a", Weight: -1})}})
	if err := checkThrough(t, own, grpc.WithNoProxy()); err == nil || !strings.Contains(err.Error(), "weight") {
		t.Error(err)
	}
}

// following is a resolver of nodes that stay.
func following(nodes []lb.Node) resolver.Builder {
	return grpclb.NewResolver("fleet", func(ctx context.Context, _ string) iter.Seq2[[]lb.Node, error] {
		return func(yield func([]lb.Node, error) bool) {
			yield(nodes, nil)
			<-ctx.Done()
		}
	})
}

// checkThrough makes one call of a target for which the environment names a proxy.
func checkThrough(t *testing.T, from resolver.Builder, more ...grpc.DialOption) error {
	t.Helper()
	conn, err := grpc.NewClient("fleet:///behind.example", append(more, grpc.WithResolvers(from),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"pawl": {"policy": "round-robin"}}]}`))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the test is over
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(soon, &grpc_health_v1.HealthCheckRequest{})
	return err
}
