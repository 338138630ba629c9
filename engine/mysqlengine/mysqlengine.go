// Package mysqlengine keeps claims in MariaDB 10.6 or later, or MySQL 8.0.29 or
// later, in one of two modes. The package is tested on MariaDB 10.11; for MySQL it
// follows the manual, and was not run there.
//
// In lease mode ([New]) claims and sessions are rows, and a session lives by
// its heartbeat. Lease mode supports all of pawl, and needs a few connections however
// many locks are held or waited for.
//
// A step is one call of a procedure, in a transaction that locks one of 1,024
// rows, by the hash of the name. Waiters are not told, because these servers have
// no messages: each process asks every 50 ms for all its waiters at once. The
// next waiter in the same process has the lock at once.
//
// The procedures run with the rights of their creator, so that a user of
// locks can forge none. Once somebody has run pawl store init or used [New], that
// user needs:
//
//	GRANT EXECUTE, SELECT ON pawl.* TO app
//
// where pawl is the database. A row of each lock remembers the last token, which is as durable as
// the server is. The token is durable always with innodb_flush_log_at_trx_commit at 1 as by default, and
// sync_binlog at 1 where there is a binary log. With other settings a crash can take back grants.
// So the server grants nothing after each restart for the longest belief of a holder, and tokens go
// on from the time of day. Each client notes these settings when it opens a session: a change counts
// from the next session on. A server that is read_only grants and renews nothing. Replication has to
// be by row or mixed, and one server takes all writes, also in a Galera cluster. A promoted replica that lags may not know the last grants.
//
// In row mode ([NewRow]) a lock is a row that an open transaction has locked,
// with SELECT ... FOR UPDATE, on a connection of its own: it is free at the moment
// when that connection ends. Row mode has exclusive locks only, in no order.
package mysqlengine
