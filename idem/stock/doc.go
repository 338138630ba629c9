// Package stock keeps a number that many transactions lower at once, such as the units of an
// item on sale. All of them would wait for one hot row. So the number of a name is split over
// several rows, its parts, in a table of PostgreSQL, MySQL, MariaDB or SQLite. Package
// redisstock does the same over the slots of a Redis Cluster.
//
//	stocks, err := stock.New(dialect.PostgreSQL, &stock.Options{Parts: 16})
//	...
//	err = stocks.Take(ctx, tx, "sku-7", 2) // in the transaction that writes the order
//	if errors.Is(err, stock.ErrSoldOut) {
//		...
//	}
//
// # What is promised
//
//   - Units are taken and put in the caller's transaction, which may be a pgx.Tx by package pgxtx. A rollback, or the death of the
//     caller before the commit, gives them back: nothing is stranded.
//   - The stock is never oversold. A part is lowered by one UPDATE that asks for enough units.
//   - No units are forgotten. A caller is told [ErrSoldOut] only after one sweep that has locked
//     all parts and found less than wanted. The sweep waits for transactions that may still
//     roll back. A caller whose units lie in several parts gets them from all of these.
//   - A sweep that finds enough spreads the rest evenly. So few callers need a sweep.
//
// A repeated Take takes again. So take in the transaction that records the key of the request
// (package idem) or moves the state of the order (package idem/state).
//
// # Deadlocks
//
// The parts of all names have one order: by name, then by number. A Take locks one part, and a
// sweep locks all parts of the name in order. So a transaction waits for parts behind its own
// only, and transactions cannot wait in a circle. That holds if
//
//   - a transaction calls Take, Put or Rebalance once for each name, so add up units of
//     one name first, and
//   - it calls them in the order of the names.
//
// There is an exception: a Take that waited for a part which then has too little. No database
// releases that lock before the transaction ends. Two such transactions may wait for each other in
// their sweeps. The database ends one of them with an error that matches Again in package
// dialect, and the caller repeats the transaction. That is rare. A process remembers what a part
// had when it looked last, and a request that is large beside that sweeps at once, in order.
//
// Take late in the transaction: others wait for the part, and after a sweep for all parts, until
// the transaction ends. From REPEATABLE READ on, PostgreSQL answers waiting callers with a
// serialization failure. READ COMMITTED is the level for hot rows.
//
// # How many parts
//
// A request for more than an eighth of what a part has left sweeps, and locks all parts. So a
// small stock wants few parts: fewer than its units divided by eight usual requests.
//
// Parts bring nothing where the database is not the row's bottleneck: SQLite has one writer at a
// time, so one part is right there. A server with a slow disk gains most, because commits of
// one row queue up and those of several rows share a flush. bench/README.md has the ratios.
package stock
