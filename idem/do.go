package idem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/pawl-go/pawl"
)

const (
	defaultExpiry    = 24 * time.Hour
	defaultMaxResult = 1 << 20
	removal          = 5 * time.Second // the time for the removal of a claim, also after the end of ctx
)

// Do runs fn once for the key, in the caller's transaction, and keeps its result there. The claim of
// the key, the writes of fn and the result are committed together or not at all. A repeat does
// not run fn: it returns the kept result, and replayed is true.
//
// The transaction is the caller's: Do neither begins nor ends it. The operation has happened when
// the caller's commit has succeeded. After a commit whose outcome is unknown, repeat the transaction
// with the same key: exactly one of both takes effect.
//
// An error of fn removes the claim, so that the next call runs fn again. The writes of fn are undone
// as well, even if the caller commits; see [TxOptions].NoSavepoint for the exception. A panic of fn does
// the same and goes on. A refusal that a repeat should see again, such as a declined payment, belongs
// in the result and is no error. Effects outside of the database are not undone and happen again.
//
// The function may call Do or Run for another key in the same transaction, with the ctx that the function was given. The error of
// the outer function undoes the inner calls, too.
//
// After an error of fn, or the end of ctx, Do takes up to 5 s more to remove the claim.
//
// Errors: [ErrReused] for another fingerprint, [ErrInFlight], [ErrUnfinished], [ErrTooLarge], the
// error of fn as it is, and errors of the database. Deadlocks and serialization failures are errors of the
// database, and the caller has to repeat the whole transaction; package dialect tells them by Again. After
// any error a rollback is right.
func Do[T any](ctx context.Context, tx Tx, key Key, fingerprint Fingerprint, fn func(context.Context) (T, error)) (result T, replayed bool, err error) {
	var zero T
	codec := tx.opts.Codec
	if codec == nil {
		codec = JSON
	}
	kept, replayed, err := tx.once(ctx, key, fingerprint, true, func(ctx context.Context) (data []byte, err error) {
		if result, err = fn(ctx); err != nil {
			return nil, err
		}
		if data, err = codec.Encode(result); err != nil {
			return nil, fmt.Errorf("idem: encode the result of %q: %w", key, err)
		}
		if most := cmp.Or(tx.opts.MaxResult, defaultMaxResult); len(data) > most {
			return nil, fmt.Errorf("idem: %w: that of %q has %d bytes, and %d are allowed", ErrTooLarge, key, len(data), most)
		}
		return data, nil
	})
	if err != nil {
		return zero, false, err
	}
	if replayed {
		if err := codec.Decode(kept, &result); err != nil {
			return zero, true, fmt.Errorf("idem: decode the kept result of %q: %w", key, err)
		}
	}
	return result, replayed, nil
}

// depth is the key of a context for the number of claims whose functions have the context.
type depth struct{}

// Run is [Do] for a function without a result: it sends one statement less. A repeat returns true and
// does not run fn. Run returns no [ErrUnfinished] for a key of Run: its claim counts as done. So fn must not commit the transaction.
func Run(ctx context.Context, tx Tx, key Key, fingerprint Fingerprint, fn func(context.Context) error) (replayed bool, err error) {
	_, replayed, err = tx.once(ctx, key, fingerprint, false, func(ctx context.Context) ([]byte, error) { return nil, fn(ctx) })
	return replayed, err
}

// once claims the key, runs fn and keeps its result, or returns the result that was kept.
func (tx Tx) once(ctx context.Context, key Key, fingerprint Fingerprint, result bool, fn func(context.Context) ([]byte, error)) (kept []byte, replayed bool, err error) {
	if tx.keys == nil {
		return nil, false, fmt.Errorf("%w: Tx is empty: the In method of a store makes it", pawl.ErrInvalid)
	}
	if err := errors.Join(key.Validate(), tx.opts.Validate()); err != nil {
		return nil, false, err
	}
	claim := TxClaim{
		Name: key.Name(), Fingerprint: fingerprint, Owner: 1 + rand.Int64N(math.MaxInt64), Result: result,
		Expiry: cmp.Or(tx.opts.Expiry, defaultExpiry), NoWait: tx.opts.NoWait, Savepoint: !tx.opts.NoSavepoint,
	}
	claim.Depth, _ = ctx.Value(depth{}).(int)
	row, err := tx.keys.Claim(ctx, claim)
	if err == nil && row.State != TxClaimed {
		err = row.answers(claim)
	}
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("idem: claim %q: %w", key, err)
	case row.State != TxClaimed:
		return row.Result, true, nil
	}
	returned := false
	defer func() {
		if !returned || err != nil { // fn has panicked, or failed
			err = tx.remove(ctx, claim, err)
		}
	}()
	kept, err = fn(context.WithValue(ctx, depth{}, claim.Depth+1))
	returned = true
	if err == nil && result {
		if err = tx.keys.Keep(ctx, claim, kept); err != nil {
			err = fmt.Errorf("idem: keep the result of %q: %w", key, err)
		}
	}
	return kept, false, err
}

// answers returns nil if the row, which is not the caller's, answers the claim. The fingerprint
// is compared before anything of the row is given out.
func (r TxRow) answers(c TxClaim) error {
	switch {
	case r.Fingerprint.Differs(c.Fingerprint):
		return ErrReused
	case r.State == TxUnfinished:
		return ErrUnfinished
	case c.Result && r.State != TxKept:
		return fmt.Errorf("%w: it was done without a result, by Run", ErrReused)
	}
	return nil
}

// remove removes the claim because of err, which it returns. The ctx of the caller may have ended, and
// the transaction may live on.
func (tx Tx) remove(ctx context.Context, claim TxClaim, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	if failed := tx.keys.Remove(ctx, claim); failed != nil {
		return errors.Join(err, fmt.Errorf("idem: remove the claim of %q; the transaction must be rolled back: %w", claim.Name, failed))
	}
	return err
}
