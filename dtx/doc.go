// Package dtx commits a transaction over several databases: on all of them, or on none. This is two-phase commit, as a
// library without a server.
//
//	log, err := dtx.NewLog(dialect.PostgreSQL, orders, nil)
//	bank, stock := dtx.PostgreSQL("bank", bankDB), dtx.MySQL("stock", stockDB)
//	c, err := dtx.New(ctx, log, []*dtx.Resource{bank, stock}, nil)
//	...
//	err = c.Run(ctx, func(ctx context.Context, tx *dtx.Tx) error {
//		if _, err := tx.On(bank).ExecContext(ctx, "UPDATE accounts ..."); err != nil {
//			return err
//		}
//		_, err := tx.On(stock).ExecContext(ctx, "UPDATE shelves ...")
//		return err
//	})
//
// A branch is a [dialect.DB], so outbox, idem and inbox work in a branch as in a *sql.Tx.
//
// # What is promised
//
//   - All branches are committed, or none, whichever process or server dies, and whichever message is lost.
//   - Nil means that all are committed. [ErrAborted] means that none is. [ErrPending] means that commit is decided, and that some
//     branches follow. [ErrInDoubt] means that the log gave no answer, or that its disk failed the COMMIT. Then recovery decides.
//   - Recovery needs no operator. Each [Coordinator] finishes the branches of dead coordinators of its log, and touches no others.
//   - A frozen coordinator that wakes decides nothing after recovery has fenced it. No clock is trusted for that.
//
// # How
//
// The [Log] is in any SQL database. Each coordinator has one row in the log. The decision to commit is one INSERT that takes
// effect only while that row is not fenced. A transaction that aborts leaves no record. Recovery lists the prepared branches,
// fences the rows of silent coordinators, reads the records, and finishes the branches.
//
// The database of the log may take part by [Log.Resource]: its branch is committed together with the decision, and so is not
// prepared. A transaction with one branch that writes is a plain commit.
//
// # Metrics
//
// [Coordinator.Status] sends no request, so a metrics library may call Status at each collection:
//
//	expvar.Publish("dtx", expvar.Func(func() any { return c.Status() }))
//
// An alarm belongs on Oldest, which is small while recovery works, on Unknown, and on Err. The same numbers of a log come from
// [Log.Transactions] and from "pawl tx ls --json", without a coordinator.
//
// # What is not promised
//
// The transaction is atomic, and no snapshot: a reader may see one database committed and another not yet. The rows of a prepared branch
// stay locked until it is finished, so a database that is away blocks the others' rows. The recipe docs/recipes/transactions.md of the
// repository compares this with an outbox, in a table. Where the second effect may follow later, package outbox is the better choice.
// Package threephase lets a majority of agents finish what one log would hold up.
//
// A prepared branch holds back VACUUM in its database of PostgreSQL, and in the catalogs that the databases of a server share. An old open
// transaction does the same. A replica of MariaDB holds the rows of a prepared branch too. A dump that MariaDB takes meanwhile does not have the branch, so it cannot start a replica.
//
// The log must keep each commit that its database has acknowledged. A failover to an asynchronous replica, or an older backup, loses
// decisions. Then delete all rows of the table with an id above 0 before any coordinator starts. Recovery thus takes no branch
// for aborted, and leaves each to an operator. A log whose rows, or whose identity, are gone is noticed without that.
//
// Each database that takes part must keep what it has acknowledged, too. A failover to an asynchronous replica, or an older backup, loses
// its half of transactions. Nothing notices that, because a branch that is gone counts as finished.
//
// With lib/pq an idle connection of the log that has died is found at the decision only. Then the coordinator
// fences its own row, so all its open transactions over several databases abort.
//
// A server of MySQL or MariaDB that becomes read-only at a switchover keeps its connections. Call SetConnMaxLifetime of your *sql.DB with 30 s or
// so: else a coordinator stays there, and each decision and each recovery fails.
//
// A copy of the log's database has the same identity. Two copies must not be used with the same databases.
package dtx
