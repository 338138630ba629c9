package grpclb

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/pawl-go/pawl/lb"
)

// Name is the name of the balancer in a service config.
const Name = "pawl"

func init() { balancer.Register(builder{}) } // gRPC allows this in an init function only

type builder struct{}

// Name implements [balancer.Builder].
func (builder) Name() string { return Name }

// Build implements [balancer.Builder].
func (builder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &fleet{cc: cc, nodes: make(map[string]*node), state: connectivity.Connecting}
}

// fleet is the balancer of one client. gRPC calls its methods one at a time.
type fleet struct {
	cc     balancer.ClientConn
	config config
	set    *lb.Set
	picks  *lb.Balancer
	nodes  map[string]*node // by ID
	order  []string         // of the resolver
	full   bool             // each of the first nodes was connected, or failed
	count  balancer.ConnectivityStateEvaluator
	state  connectivity.State
	err    error // the last of a connection, or of the resolver

	telling sync.Mutex     // the nodes of a set return at any time
	told    balancer.State // the last that gRPC got; without a picker after Close
}

// node is a connection to a node.
type node struct {
	lb.Node
	conn  balancer.SubConn
	state connectivity.State
}

// UpdateClientConnState implements [balancer.Balancer].
func (f *fleet) UpdateClientConnState(s balancer.ClientConnState) error {
	c, ok := s.BalancerConfig.(*config)
	if !ok {
		return fmt.Errorf("read the config of balancer %q: it is of type %T", Name, s.BalancerConfig)
	}
	if f.set == nil || *c != f.config {
		set, picks, err := c.open(f.returned)
		if err != nil {
			return fmt.Errorf("change balancer %q: %w", Name, err)
		}
		f.config, f.set, f.picks = *c, set, picks
	}
	all, err := nodesOf(s.ResolverState)
	if err != nil {
		f.ResolverError(err) // some resolvers tell nobody, such as the resolver of gRPC for a proxy
		return err
	}
	f.order = f.order[:0]
	kept := make(map[string]bool)
	for _, a := range all {
		is := nodeOf(a)
		if kept[is.ID] {
			continue
		}
		kept[is.ID], f.order = true, append(f.order, is.ID)
		if old := f.nodes[is.ID]; old != nil && old.Addr == is.Addr {
			old.Node = is
			continue
		}
		f.drop(is.ID)
		if err := f.add(a, is); err != nil {
			return err
		}
	}
	for id := range f.nodes {
		if !kept[id] {
			f.drop(id)
		}
	}
	f.publish()
	if len(all) == 0 { // the resolver dns asks again only after an error, or for a client that lost a node
		return balancer.ErrBadResolverState
	}
	return nil
}

// nodesOf returns the addresses of a resolver, after a look at their weights and IDs.
func nodesOf(s resolver.State) ([]resolver.Address, error) {
	all := s.Addresses
	if len(all) == 0 {
		for _, e := range s.Endpoints {
			all = append(all, e.Addresses...)
		}
	}
	known := make(map[string]resolver.Address)
	for _, a := range all {
		n := nodeOf(a)
		before, twice := known[n.ID]
		alike := before.Addr == a.Addr && before.Attributes.Equal(a.Attributes)
		named := a.BalancerAttributes.Value(nodeKey{}) != nil
		switch {
		case !named && (twice && !alike || s.Attributes.Value(nodeKey{}) != nil):
			return nil, fmt.Errorf("without grpc.WithNoProxy() gRPC has put HTTPS_PROXY in place of the nodes, "+
				"or the resolver gives address %q twice with other attributes", a.Addr)
		case twice && !alike:
			return nil, fmt.Errorf("ID %q is of two nodes: each node has an ID of its own", n.ID)
		case n.Weight < 0 || n.Weight > lb.MaxWeight:
			return nil, fmt.Errorf("weight of node %q is %d: 0 (the same as 1) to %d are allowed", n.ID, n.Weight, lb.MaxWeight)
		}
		known[n.ID] = a
	}
	return all, nil
}

// add connects to a node.
func (f *fleet) add(a resolver.Address, is lb.Node) error {
	n := &node{Node: is, state: connectivity.Idle}
	conn, err := f.cc.NewSubConn([]resolver.Address{a}, balancer.NewSubConnOptions{
		StateListener: func(s balancer.SubConnState) { f.changed(n, s) },
	})
	if err != nil {
		return fmt.Errorf("connect to node %q: %w", is.ID, err)
	}
	n.conn, f.nodes[is.ID] = conn, n
	f.state = f.count.RecordTransition(connectivity.Shutdown, connectivity.Idle)
	conn.Connect()
	return nil
}

func (f *fleet) drop(id string) {
	n := f.nodes[id]
	if n == nil {
		return
	}
	delete(f.nodes, id)
	f.state = f.count.RecordTransition(n.state, connectivity.Shutdown)
	n.conn.Shutdown()
}

// changed notes the state of a connection. A node that failed counts as failed until it is connected, as in the balancers of gRPC.
func (f *fleet) changed(n *node, s balancer.SubConnState) {
	if f.nodes[n.ID] != n || s.ConnectivityState == connectivity.Shutdown {
		return
	}
	if s.ConnectivityState == connectivity.Idle {
		n.conn.Connect()
	}
	waits := s.ConnectivityState == connectivity.Connecting || s.ConnectivityState == connectivity.Idle
	if n.state == connectivity.TransientFailure && waits {
		return
	}
	was := n.state
	n.state = s.ConnectivityState
	f.state = f.count.RecordTransition(was, n.state)
	if n.state == connectivity.TransientFailure {
		f.err = s.ConnectionError
	}
	f.publish()
}

// publish gives the calls what they pick from.
func (f *fleet) publish() {
	settled := true
	for _, n := range f.nodes {
		settled = settled && (n.state == connectivity.Ready || n.state == connectivity.TransientFailure)
	}
	if !f.full && f.config.SlowStart > 0 { // all nodes of a new set have their full weight at once
		f.set, f.picks, _ = f.config.open(f.returned) //nolint:errcheck // the config was opened before
	}
	p := &picker{set: f.set, picks: f.picks, header: f.config.HashHeader, alike: f.config.alike(), conns: make(map[string]*connected, len(f.nodes))}
	var ready []lb.Node
	for _, id := range f.order {
		if n := f.nodes[id]; n != nil && n.state == connectivity.Ready {
			ready = append(ready, n.Node)
			p.conns[id] = &connected{conn: n.conn}
		}
	}
	if err := f.set.Update(ready...); err != nil {
		f.err, ready = err, nil
	}
	f.full = f.full || settled && len(ready) > 0
	is := balancer.State{ConnectivityState: f.state, Picker: p}
	switch {
	case len(ready) > 0:
		is.ConnectivityState = connectivity.Ready
	case len(f.nodes) == 0:
		is.ConnectivityState, is.Picker = connectivity.TransientFailure, failing{errors.Join(lb.ErrNoNode, f.err)}
	case f.state == connectivity.TransientFailure:
		is.Picker = failing{errors.Join(errors.New("no node is connected"), f.err)}
	default:
		is.ConnectivityState, is.Picker = connectivity.Connecting, failing{balancer.ErrNoSubConnAvailable}
	}
	f.tell(is)
}

// tell gives gRPC a state, which ends the wait of calls.
func (f *fleet) tell(is balancer.State) {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.told = is
	f.cc.UpdateState(is)
}

// returned lets calls that wait for a node pick again, because nodes that were ejected are back.
func (f *fleet) returned() {
	f.telling.Lock()
	defer f.telling.Unlock()
	if f.told.Picker != nil {
		f.cc.UpdateState(f.told)
	}
}

// ResolverError implements [balancer.Balancer]. The nodes that are known stay.
func (f *fleet) ResolverError(err error) {
	f.err = err
	if len(f.nodes) == 0 {
		f.tell(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: failing{errors.Join(lb.ErrNoNode, err)}})
	}
}

// UpdateSubConnState implements [balancer.Balancer]. Connections have listeners instead.
func (*fleet) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle implements [balancer.ExitIdler].
func (f *fleet) ExitIdle() {
	for _, n := range f.nodes {
		n.conn.Connect()
	}
}

// Close implements [balancer.Balancer].
func (f *fleet) Close() {
	f.telling.Lock()
	f.told = balancer.State{}
	f.telling.Unlock()
	for _, id := range slices.Clone(f.order) {
		f.drop(id)
	}
	if f.set != nil {
		f.set.Update() //nolint:errcheck // no node is no mistake
	}
}

// failing lets no call through.
type failing struct{ err error }

// Pick implements [balancer.Picker].
func (f failing) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{}, f.err
}

// picker is the connections of one moment. Requests in flight, latencies and failures are of the set, and stay.
type picker struct {
	set    *lb.Set
	picks  *lb.Balancer
	header string
	alike  bool // all picks of a node end alike
	conns  map[string]*connected
}

// connected is a connection that takes calls.
type connected struct {
	conn balancer.SubConn
	done atomic.Pointer[func(balancer.DoneInfo)] // the end of each pick, where all end alike
}

// Pick implements [balancer.Picker].
func (p *picker) Pick(call balancer.PickInfo) (balancer.PickResult, error) {
	ask := lb.Request{}
	if p.header != "" {
		ask.Key = p.key(call)
	}
	pick, err := p.picks.Pick(ask)
	if err != nil && len(p.set.Nodes()) == 0 {
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable // the next picker is on its way
	}
	if err != nil {
		return balancer.PickResult{}, fmt.Errorf("choose a node: %w", err) // all are ejected, and Panic is -1
	}
	to := p.conns[pick.Node().ID]
	if to == nil {
		pick.Done(lb.Canceled)
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable // the next picker is on its way
	}
	if p.picks.Policy() == lb.PeakEWMA && streams(call.FullMethodName) {
		pick = pick.Answered(0) // gRPC tells a balancer the end of a call only
	}
	if done := to.done.Load(); done != nil {
		return balancer.PickResult{SubConn: to.conn, Done: *done}, nil
	}
	return p.taken(pick, to), nil
}

// taken makes the end of a pick.
func (p *picker) taken(pick lb.Pick, to *connected) balancer.PickResult {
	done := func(is balancer.DoneInfo) { pick.Done(resultOf(is)) }
	if p.alike {
		kept := done // other policies need no variable on the heap
		to.done.Store(&kept)
	}
	return balancer.PickResult{SubConn: to.conn, Done: done}
}

// streams reports whether a method is known to have a stream in either direction.
func streams(method string) bool {
	i := strings.LastIndexByte(method, '/')
	if i < 1 {
		return false
	}
	found, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(method[1:i])) //nolint:errcheck // the service is unknown
	service, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return false
	}
	is := service.Methods().ByName(protoreflect.Name(method[i+1:]))
	return is != nil && (is.IsStreamingClient() || is.IsStreamingServer())
}

func (p *picker) key(call balancer.PickInfo) string {
	if md, ok := metadata.FromOutgoingContext(call.Ctx); ok {
		if values := md.Get(p.header); len(values) > 0 {
			return values[0]
		}
	}
	return strconv.FormatUint(rand.Uint64(), 36)
}

// resultOf tells how a call ended. gRPC ends a pick whose connection was lost meanwhile without error or bytes.
func resultOf(is balancer.DoneInfo) lb.Result {
	if is.Err == nil && is.BytesReceived {
		return lb.Succeeded
	}
	switch status.Code(is.Err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return lb.Failed
	case codes.Canceled:
		return lb.Canceled
	}
	if is.Err == nil && !is.BytesSent {
		return lb.Canceled
	}
	return lb.Succeeded
}
