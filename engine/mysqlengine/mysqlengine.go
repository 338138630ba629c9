// Package mysqlengine keeps claims in MariaDB 10.6 or later, or MySQL 8.0.29 or
// later, in one of two modes. It is tested on MariaDB 10.11; for MySQL it is
// written by the manual, and was not run there.
//
// In lease mode ([New]) claims and sessions are rows, and a session lives by
// its heartbeat. It carries all of pawl, and needs a few connections however
// many locks are held or waited for.
package mysqlengine
