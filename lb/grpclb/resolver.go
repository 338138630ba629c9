package grpclb

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/resolver"

	"github.com/pawl-go/pawl/lb"
)

// Source yields the nodes of a name, and then all nodes again after each change, until ctx ends. An error is
// shown to the calls of a client that has no node yet. A client calls its Source on a goroutine of its own, when the
// client begins, and again after each idle time. By default a client is idle after 30 minutes without calls.
type Source func(ctx context.Context, name string) iter.Seq2[[]lb.Node, error]

// NewResolver returns a resolver of the scheme. The option grpc.WithResolvers takes it. A client of the target scheme:///name asks the source for name.
// The ID and the weight of a node are those of the source. The address of a node is host:port. Where HTTPS_PROXY is set, the client needs
// grpc.WithNoProxy(), see the package.
func NewResolver(scheme string, from Source) resolver.Builder {
	return &resolverBuilder{scheme, from}
}

type resolverBuilder struct {
	scheme string
	from   Source
}

// Scheme implements [resolver.Builder].
func (b *resolverBuilder) Scheme() string { return b.scheme }

// Build implements [resolver.Builder].
func (b *resolverBuilder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &following{cancel: cancel}
	name := strings.TrimPrefix(target.Endpoint(), "/")
	r.running.Go(func() {
		for nodes, err := range b.from(ctx, name) {
			if err == nil {
				err = cc.UpdateState(resolver.State{Addresses: addresses(nodes), Attributes: named})
			}
			if errors.Is(err, balancer.ErrBadResolverState) { // an empty group is no trouble of the source
				continue
			}
			if err != nil && ctx.Err() == nil {
				cc.ReportError(fmt.Errorf("follow the nodes of %q: %w", name, err))
			}
		}
		if ctx.Err() == nil {
			cc.ReportError(fmt.Errorf("follow the nodes of %q: %w", name, errEnded))
		}
	})
	return r, nil
}

var errEnded = errors.New("the source has ended")

// following is a resolver that the source tells.
type following struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// ResolveNow implements [resolver.Resolver]. The source tells of changes by itself.
func (*following) ResolveNow(resolver.ResolveNowOptions) {}

// Close implements [resolver.Resolver].
func (r *following) Close() {
	r.cancel()
	r.running.Wait()
}

type nodeKey struct{}

// named says that each address has a node. With a proxy gRPC keeps this attribute of a state, and none of an address.
var named = attributes.New(nodeKey{}, true)

// nodeValue is compared by attributes.
type nodeValue struct{ lb.Node }

func addresses(nodes []lb.Node) []resolver.Address {
	all := make([]resolver.Address, len(nodes))
	for i, n := range nodes {
		all[i] = WithNode(resolver.Address{Addr: n.Addr}, n)
	}
	return all
}

// WithNode gives an address the ID and the weight of a node. Resolvers of the user's own call WithNode. Other addresses have
// the weight 1, and their address as ID.
func WithNode(a resolver.Address, n lb.Node) resolver.Address {
	a.BalancerAttributes = a.BalancerAttributes.WithValue(nodeKey{}, nodeValue{n})
	return a
}

// nodeOf returns the node of an address.
func nodeOf(a resolver.Address) lb.Node {
	is, _ := a.BalancerAttributes.Value(nodeKey{}).(nodeValue)
	n := is.Node
	if n.Addr = a.Addr; n.ID == "" {
		n.ID = a.Addr
	}
	return n
}
