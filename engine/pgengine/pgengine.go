// Package pgengine keeps claims in PostgreSQL 12 or later, in one of two modes.
//
// In lease mode ([New], [NewDB]) claims and sessions are rows, and a session
// lives by its heartbeat. Lease mode supports all of pawl, needs a few connections
// however many locks are held or waited for, and works behind a pooler.
//
// A step is one call of a function, in which names are kept apart by advisory
// locks of the server. A release hands on in that call, and notifies the next
// waiter's client of the grant. Clients listen on one connection each, besides those of
// the pool.
//
// The functions run with the rights of their creator, so that a user of locks
// can forge none. Once somebody has run pawl store init or used [New], that user needs:
//
//	GRANT USAGE ON SCHEMA pawl TO app;
//	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pawl TO app;
//	GRANT SELECT ON ALL TABLES IN SCHEMA pawl TO app;
//
// Tokens and versions come from a sequence. After a restart or a promotion it goes on from the time
// of day, because a lagging replica may not know the last grants.
//
// Messages go by a channel whose name only the client and the owner of the schema know. So no other
// user can tell a waiter that it holds.
//
// In row mode ([NewRow], [NewRowDB]) a lock is a row that an open transaction has locked,
// with SELECT ... FOR UPDATE, on a connection of its own: it is free at the moment
// when that connection ends. Row mode has exclusive locks only, in no order.
package pgengine
