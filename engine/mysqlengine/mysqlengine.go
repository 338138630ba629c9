// Package mysqlengine keeps claims in MariaDB 10.6 or later, or MySQL 8.0.29 or
// later, in one of two modes. It is tested on MariaDB 10.11; for MySQL it is
// written by the manual, and was not run there.
//
// In lease mode ([New]) claims and sessions are rows, and a session lives by
// its heartbeat. It carries all of pawl, and needs a few connections however
// many locks are held or waited for.
//
// In row mode ([NewRow]) a lock is a row that an open transaction has locked,
// with SELECT ... FOR UPDATE, on a connection of its own: it is free at the moment
// when that connection ends. It carries exclusive locks, in no order.
package mysqlengine
