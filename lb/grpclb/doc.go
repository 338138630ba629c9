// Package grpclb balances calls of gRPC by the policies of package lb. A program that imports grpclb chooses the policy in
// the service config of a client:
//
//	conn, err := grpc.NewClient("fleet:///books", grpc.WithNoProxy(),
//		grpc.WithResolvers(grpclb.NewResolver("fleet", source)),
//		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"pawl": {"policy": "peak-ewma"}}]}`))
//
// Any resolver does, such as dns. [NewResolver] makes a resolver of any source of nodes, with their IDs and weights. The client
// connects to all nodes, and balances each call. So a long-lived connection does not bind a client to one node.
//
// # A proxy in the environment
//
// Where HTTPS_PROXY names a proxy, gRPC replaces the address of each node by that of the proxy. All nodes would look like one node, so the
// calls of such a client fail with an error that names grpc.WithNoProxy(). Make the client with that option. NO_PROXY helps as well, if it lists
// the name in the target. The resolver dns asks nobody behind a proxy: without that option its client has one connection, and nothing is
// balanced.
//
// # The config
//
// These are the fields of the object "pawl", see [lb.Options] and [lb.SetOptions]. Durations are texts such as "10s". An
// unknown field is an error.
//
//   - policy: a name of [lb.Policy], such as "weighted-round-robin". There is no default.
//   - hashHeader: the metadata of a call that source-hash hashes. A call without it goes to any node.
//   - bound and tau: of the policy.
//   - ejectAfter, ejectFor, slowStart and panic: of the set. The first nodes of a client do not rise.
//
// The latency of peak-ewma is the duration of a call. Calls with streams have none, if the Go code of their service is generated and part of the
// program. Streams by other means count with their whole duration: take power-of-two there.
//
// # Failures
//
// A call fails its node by the status UNAVAILABLE or DEADLINE_EXCEEDED. A call that its caller canceled says nothing. Any other status is an answer. A node whose
// connection is lost gets no call until it is connected again, and then has a slow start.
//
// Without nodes a call fails by UNAVAILABLE, unless the call waits until the client is ready. Meanwhile the resolver dns asks again, with growing pauses.
//
// Repeats are those of gRPC: list UNAVAILABLE in a retryPolicy of the service config.
package grpclb
