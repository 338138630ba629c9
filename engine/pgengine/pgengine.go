// Package pgengine keeps claims in PostgreSQL 12 or later, in one of two modes.
//
// In lease mode ([New], [NewDB]) claims and sessions are rows, and a session
// lives by its heartbeat. It carries all of pawl, needs a few connections
// however many locks are held or waited for, and works behind a pooler.
package pgengine
