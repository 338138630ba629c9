// Package idem makes an operation take effect once, whatever is retried.
//
// A client that got no answer sends its request again, a user clicks twice, a queue delivers a message twice. A
// process dies in the middle. All requests of one operation have one [Key], and the ways below let one of them take effect.
//
//	The effect is                          Take                What a crash in the middle leaves
//	in a SQL database                      Do, with sqlidem    nothing: effect and result are one commit
//	  and callers should wait in order     sqlupdate           nothing: the same, behind a lock
//	elsewhere, and records the key         Leases              the next caller repeats it; it is applied once
//	elsewhere, and does not                Leases              the next caller repeats it: at least once
//	one that may be missed, not repeated   Once                a used key: at most once
//
// # In the caller's transaction
//
// [Do] is for effects in a SQL database. The caller begins a transaction, and package sqlidem makes
// it a [Tx]. Do claims the [Key] in that transaction, runs a function in it, and keeps the function's
// result in it. One commit has all of them. A repeat gets the kept result:
//
//	payment, replayed, err := idem.Do(ctx, store.In(tx), key, fingerprint, func(ctx context.Context) (Payment, error) {
//		return pay(ctx, tx, order)
//	})
//
// This is the only mode without a gap between the effect and the note that it happened. Effects outside of
// the database, such as a mail, are not in the transaction. Such effects happen again when the transaction is repeated.
//
// # With a lease
//
// [Leases] are for effects anywhere. [Leases.Begin] claims a key in a store of pawl, which has to keep versioned
// values: every engine has, but Redlock and row mode. PostgreSQL, MySQL, MariaDB and SQLite are among them.
//
//	claim, err := leases.Begin(ctx, key, fingerprint, nil)
//	if err != nil { ... }
//	if result, kept := claim.Kept(); kept {
//		return result, nil
//	}
//	defer claim.Abort(ctx) // does nothing after Complete
//	result, err := charge(claim.Context(), card, claim.Key()) // the other side records the key
//	if err != nil { ... }
//	err = claim.Complete(ctx, result)
//
// A lock of the key gives waiting, a lease that the client renews, and a fencing token. The lock is not trusted. Each
// write of the record stands on the version that the worker wrote last. So the worker whose key was taken over
// completes nothing, and is told so: [ErrTakenOver].
//
// A worker that dies has its key taken over one TTL later. Nobody knows whether its effect has happened. So an outside effect is
// applied once only if the other side records the key. A repeat then gets the first answer. If the other side compares fencing tokens, no late worker writes over a newer one. But the
// effect is applied at least once after a crash. [Claim.Attempts] says that an earlier worker came to no end.
// A caller that must not repeat the effect then asks a person.
//
// Work of several steps records a recovery point after each: [Claim.Reach]. The next worker goes on from there. A call
// to another service in such a step takes a key of its own, made from the key and the name of the step.
//
// # Once
//
// [Once] checks a global id: one write, true for the first caller only. A caller that dies after it leaves the key used.
//
// # Keys and time
//
// A key is kept for 24 hours, or as long as the options say. A repeat after that is a new operation, so clients
// have to give up before. The store of leases tells no time. So expiry follows the clocks of the machines, which
// should agree to some minutes. Stores remove nothing by themselves: a program calls [Leases.Sweep] now and then.
//
// A store that loses confirmed writes forgets keys, too: Redis in a failover, or without a disk. The store's
// capabilities say so.
//
// Results and recovery points are in the store as they are given. Encrypt what operators of the store must not read.
package idem
