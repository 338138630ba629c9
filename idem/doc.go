// Package idem makes an operation take effect once, whatever is retried.
//
// # In the caller's transaction
//
// [Do] is for effects in a SQL database. The caller begins a transaction, and package sqlidem or pgxidem makes
// it a [Tx]. Do claims the [Key] in that transaction, runs a function in it, and keeps the function's
// result in it. One commit has all of them. A repeat gets the kept result:
//
//	payment, replayed, err := idem.Do(ctx, store.In(tx), key, fingerprint, func(ctx context.Context) (Payment, error) {
//		return pay(ctx, tx, order)
//	})
//
// This is the only mode without a gap between the effect and the note that it happened. Effects outside of
// the database, such as a mail, are not in the transaction. They happen again when the transaction is repeated.
package idem
