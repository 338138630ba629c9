// Package httplb balances requests of HTTP over the nodes of an [lb.Set]. [Transport] does so in a client,
// and [Proxy] between clients and nodes.
//
//	set, err := lb.NewSet(nil, lb.Node{Addr: "10.0.0.1:80"}, lb.Node{Addr: "10.0.0.2:80"})
//	balancer, err := lb.New(set, lb.PowerOfTwo, nil)
//	transport, err := httplb.NewTransport(balancer, nil)
//
//	client := &http.Client{Transport: transport}
//	res, err := client.Get("http://books/list") // the node gets Host: books
//
// The nodes may come from anywhere: their source calls [lb.Set.Update] when they change. The next try of any request sees
// the change. The address of a node is host:port.
//
// # Failures
//
// A node fails a request by an error of the connection, by a time-out, or by a response that Options.Failed names. A
// caller that gives up, a request that cannot be sent, and a body that cannot be read are no failures of the node. So many
// failures one after another take a node out, see [lb.SetOptions].
//
// # Repeats
//
// A request that failed goes to another node, up to Options.Tries, if that cannot do harm:
//
//   - The connection was refused or not made in time: any method, because the node got nothing. The time is that of Base for
//     the TCP connection, which must be shorter than Options.TryTimeout. That of [NewBase] is.
//   - Else the methods GET, HEAD, OPTIONS, TRACE, PUT and DELETE, and requests with the header Idempotency-Key.
//   - The body is absent, was not read yet, or can be had again by GetBody.
//   - The budget of repeats is not spent. So an outage of all nodes does not multiply the load.
//
// A response whose header has come to the caller is not repeated. Where no other node is left, the caller gets the last
// response or error.
package httplb
