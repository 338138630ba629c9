// Package group keeps lists of live members. Members are the servers of a service, and their clients balance over
// them. A [Group] stands in the store that the locks are in, and needs versioned values there, see
// [pawl.Value].
//
//	member, err := group.New(client, "api").Join(ctx, group.Member{Addr: "10.0.0.7:8080"})
//	...
//	defer member.Leave(ctx)
//
// A member keeps its place with the session of its client. The list has no heartbeat of its own. The client of a balancer watches the group:
//
//	for view, err := range group.New(client, "api").Watch(ctx) {
//		...
//		set.Update(nodes(view.Members))
//	}
//
// # Promises
//
//   - A member that joins or leaves is seen by all watchers at once.
//   - A member that dies is gone one TTL of its client and a second later. Another client must then have been
//     a member, or have watched, at least the time of its TTL. A group that nobody watches may list dead members, and [Group.Members] leaves them out.
//     Three clients sweep. If all three and the clients that follow them die within one TTL, dead members stay until a living client follows.
//   - A member that lost its session joins again by itself, as soon as the store answers.
//   - Of two members with one ID, or with one address, the newest counts: the one with the larger [Member].Token.
//   - A watcher goes on with the last members while the store is away, and says so.
//   - After an outage nobody is taken for dead for one TTL. So a list that is empty after an outage is not believed at once.
//
// A watcher learns late of a death, by the TTL. A caller that balances must try another member when a member does not answer.
//
// # Limits
//
// A group with a short name has room for 2,000 members of 200 bytes and for 500 members of 1 KiB. A larger group is several groups.
//
// # Cost
//
// Three clients of each group look for dead members, each up to four times a second. A look reads the head of the list, and the pages that changed.
// Three times a TTL a look reads all 16 pages. A look asks for the locks of members by name, at most 16 at once, with two requests each,
// and three on etcd. A lock is asked for again when the session of its holder may have ended, which is about once a TTL. With a TTL of 15 s, three clients
// send 2,000 requests a second for 5,000 members, and 40 for 100.
//
// NATS, ZooKeeper, and PostgreSQL and MariaDB in row mode do not tell how long a session has left. There each look asks for all members, and
// the next look follows half a second after that. So give a large group another store. [Group.Members] asks for all members on every store.
// A watcher reads the head after each change, and about once a second.
//
// The package is built on the exported API of package pawl only, as a service of your own would be.
package group
