package idem

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
)

// TxOptions are the settings of [Do] and [Run].
type TxOptions struct {
	// Expiry is how long a key is kept after its claim, by the clock of the database. After that
	// time the operation runs again. At least a second; fractions of a second are rounded up.
	// Default 24 hours.
	Expiry time.Duration
	// NoWait makes Do fail with [ErrInFlight] while another transaction works on the key. By
	// default Do waits until that transaction ends, or until the database gives up the wait. SQLite
	// waits for its busy_timeout in both cases, because a transaction locks the whole file.
	NoWait bool
	// NoSavepoint saves the savepoint before the function, which is a round trip with
	// database/sql on a server. The caller then has to roll back after every error, because
	// only the claim is removed: a commit would keep the writes of the function.
	NoSavepoint bool
	// MaxResult is the largest length of an encoded result in bytes, 1 to 16,000,000. Default 1 MiB.
	MaxResult int
	// Codec encodes results. Default [JSON].
	Codec Codec
}

const mostResult = 16_000_000

// merge returns the options with the fields that more sets.
func (o TxOptions) merge(more TxOptions) TxOptions {
	return TxOptions{
		Expiry: cmp.Or(more.Expiry, o.Expiry), NoWait: more.NoWait || o.NoWait,
		NoSavepoint: more.NoSavepoint || o.NoSavepoint, MaxResult: cmp.Or(more.MaxResult, o.MaxResult),
		Codec: cmp.Or(more.Codec, o.Codec),
	}
}

// Validate returns an error that matches [pawl.ErrInvalid] and names the field, unless all
// fields are zero or in their range.
func (o TxOptions) Validate() error {
	switch {
	case o.Expiry != 0 && o.Expiry < time.Second:
		return fmt.Errorf("%w: TxOptions.Expiry is %v: a second is the least", pawl.ErrInvalid, o.Expiry)
	case o.MaxResult < 0 || o.MaxResult > mostResult:
		return fmt.Errorf("%w: TxOptions.MaxResult is %d: 1 to %d are allowed", pawl.ErrInvalid, o.MaxResult, mostResult)
	}
	return nil
}

// Codec turns results into bytes and back. A Codec has to be safe for concurrent use. A kept result
// may be read by a later version of the program.
type Codec interface {
	// Encode returns the bytes of a result.
	Encode(result any) ([]byte, error)
	// Decode sets the result that a pointer points to.
	Decode(data []byte, result any) error
}

// JSON is the [Codec] that [Do] uses by default.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

func (jsonCodec) Encode(result any) ([]byte, error)    { return json.Marshal(result) }
func (jsonCodec) Decode(data []byte, result any) error { return json.Unmarshal(data, result) }

// Tx is a transaction of the caller in which keys are claimed. The In method of a store makes it: see
// package sqlidem. As its transaction, a Tx is for one goroutine at a time.
type Tx struct {
	keys TxKeys
	opts TxOptions
}

// NewTx returns a transaction of a store. NewTx is for packages that implement TxKeys.
func NewTx(keys TxKeys, opts TxOptions) Tx { return Tx{keys, opts} }

// With returns the same transaction with more options: a field that is zero leaves the option
// that was set before.
func (tx Tx) With(opts TxOptions) Tx { return Tx{tx.keys, tx.opts.merge(opts)} }

// TxKeys is a table of keys as one transaction sees it. Package sqlidem implements
// it. The methods never begin, commit or roll back the transaction.
type TxKeys interface {
	// Claim inserts a claim by one arbitrated write, also in place of a key that has expired.
	// Claim returns the state TxClaimed then, and sets a savepoint if the claim asks for one. Else it
	// returns the row that is there. The error of Claim matches [ErrInFlight] if another transaction has the row.
	Claim(ctx context.Context, c TxClaim) (TxRow, error)
	// Keep writes the result to a claim of this owner that has none. The error of Keep matches
	// [ErrTakenOver] if there is no such claim.
	Keep(ctx context.Context, c TxClaim, result []byte) error
	// Remove goes back to the savepoint, if the claim asked for one, and then deletes the claim of
	// this owner. The error of Remove matches [ErrTakenOver] if there is no such claim.
	Remove(ctx context.Context, c TxClaim) error
}

// TxClaim is a claim of a key.
type TxClaim struct {
	Name        string // of the key, see [Key.Name]
	Fingerprint Fingerprint
	Owner       int64 // a random number above 0, which no other claim has
	Result      bool  // a result will be kept; else the claim itself counts as done
	Expiry      time.Duration
	NoWait      bool
	Savepoint   bool
	Depth       int // how many claims of the same ctx stand around this claim
}

// TxState is the state of a row of a table of keys.
type TxState int

const (
	// TxUnfinished is a claim whose result is missing.
	TxUnfinished TxState = iota
	// TxDone is an operation that was done and has no result.
	TxDone
	// TxKept is an operation that was done and has a result.
	TxKept
	// TxClaimed is no stored state: the caller has claimed the key just now.
	TxClaimed
)

// TxRow is a row of a table of keys.
type TxRow struct {
	State       TxState
	Fingerprint Fingerprint
	Result      []byte // in the state TxKept
}
