// Package pgengine keeps claims in PostgreSQL 12 or later, in one of two modes.
//
// In lease mode ([New], [NewDB]) claims and sessions are rows, and a session
// lives by its heartbeat. It carries all of pawl, needs a few connections
// however many locks are held or waited for, and works behind a pooler.
//
// In row mode ([NewRow]) a lock is a row that an open transaction has locked,
// with SELECT ... FOR UPDATE, on a connection of its own: it is free at the moment
// when that connection ends. It carries exclusive locks, in no order.
package pgengine
