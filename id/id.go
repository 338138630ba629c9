// Package id makes identifiers that are unique over processes, restarts, clocks and
// stores: the parts that all kinds of identifiers share. The kinds are packages of their
// own below this one.
//
// # What is promised
//
//   - An ID that a [Generator] returned is never returned again. That holds over processes, after a
//     crash, and after a request whose reply was lost. Numbers that were reserved and not used are
//     left out, so a row of IDs may have gaps.
//   - A [Mark] only rises, and is raised before what it covers is used. The next process
//     starts above the mark. Only the process that raised it last may lower it in the end, to the
//     last number in use, see [Settler].
//   - Every wait is bounded by the ctx of the caller. "The store is down" is an error that
//     matches [pawl.ErrUnavailable], never a number.
//
// These hold as long as the store keeps what it acknowledged. A store that may lose its last
// writes is refused, see [Values], unless the caller allows it.
//
// There is no state at the level of the package. All types are safe for concurrent use.
package id

import (
	"context"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
)

// Generator makes IDs that are unique in the space of the generator. The generator's package says which space
// that is, for example all processes that use one name in one store. A Generator is safe for concurrent use;
// every wait is bounded by ctx.
type Generator[T any] interface {
	// Next returns an ID.
	Next(ctx context.Context) (T, error)
	// NextN fills dst from the front, and returns how many IDs it put there. NextN returns less
	// than len(dst) only with an error: those n IDs are good, and the rest of dst means
	// nothing. An empty dst is 0 and no error.
	NextN(ctx context.Context, dst []T) (int, error)
}

// Mark is a durable number in a store that only rises: nothing at or below a mark is ever
// handed out again after a restart. A mark is raised before what it covers is used, by a write
// at the version that was read. A Mark is safe for concurrent use.
type Mark interface {
	// Load reads the mark. A mark that was never raised is the zero [Reading], and no error.
	Load(ctx context.Context) (Reading, error)
	// Raise writes the mark if the mark is still as it was read, and returns what it wrote.
	// [pawl.ErrConflict] says that the mark is at another version: somebody else raised it.
	// To must be larger than from.Value, else [pawl.ErrInvalid]. In both cases nothing was
	// written. After [pawl.ErrUnavailable] nobody knows whether the mark was raised: Load it,
	// and start above it.
	Raise(ctx context.Context, to int64, from Reading) (Reading, error)
}

// Settler is a [Mark] that its holder may lower when it stops. So the next holder goes on
// where this holder ended, and not where its reserve ended. That is safe by the version: Settle writes
// only if the mark is still as the holder raised it, so nobody has started above it. A
// request of the holder that comes late has an older version. The marks of [Values] and of package sqlmark are Settlers.
type Settler interface {
	// Settle writes to, which is 1 to from.Value, if the mark is still as it was read. The caller
	// hands out nothing any more and has handed out nothing above to. The errors are those of Raise.
	Settle(ctx context.Context, to int64, from Reading) error
}

// Reading is a [Mark] as of one time. The zero Reading says that no mark was raised yet.
type Reading struct {
	Value   int64
	Version uint64 // grows with every raise
}

// Counter counts on durably. A Counter is safe for concurrent use.
type Counter interface {
	// Add reserves n numbers, which are the caller's alone: last-n+1 to last. The first number
	// of a counter is 1. n must be 1 or more, else [pawl.ErrInvalid]; [ErrExhausted] says that
	// there are no n numbers left. After any other error the numbers are a gap, if they
	// were reserved at all.
	Add(ctx context.Context, n int64) (last int64, err error)
}

// Registers are the marks and counters of a store by name. A name has 1 to 200 bytes of
// UTF-8 without control characters; the first use of another name returns
// [pawl.ErrInvalid]. A mark and a counter of one name have nothing to do with each other.
type Registers interface {
	// Mark returns the mark of this name. No request is made.
	Mark(name string) Mark
	// Counter returns the counter of this name. No request is made.
	Counter(name string) Counter
}

// ErrExhausted says that there are no more numbers. A counter is at the end of int64, or an ID has
// no room for a larger number. Nothing was handed out.
var ErrExhausted = errors.New("no numbers left")

// MaxName is the largest length of the name of a mark or counter in bytes.
const MaxName = 200

// CheckName returns an error that matches [pawl.ErrInvalid] unless [Registers] take the name.
// CheckName is for authors of registers.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > MaxName:
		return fmt.Errorf("%w: the name has %d bytes: 1 to %d are allowed", pawl.ErrInvalid, len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: the name %q is not UTF-8", pawl.ErrInvalid, name)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: the name %q has a control character", pawl.ErrInvalid, name)
		}
	}
	return nil
}

// CheckRaise returns an error that matches [pawl.ErrInvalid] unless a mark that was read as
// from may be raised to this number. CheckRaise is for authors of marks.
func CheckRaise(to int64, from Reading) error {
	if to <= from.Value {
		return fmt.Errorf("%w: raise to %d: more than the %d that was read is needed", pawl.ErrInvalid, to, from.Value)
	}
	return nil
}

// CheckSettle returns an error that matches [pawl.ErrInvalid] unless a mark that was read as
// from may be lowered to this number. CheckSettle is for authors of marks.
func CheckSettle(to int64, from Reading) error {
	if to < 1 || to > from.Value {
		return fmt.Errorf("%w: settle at %d: 1 to the %d that was read are allowed", pawl.ErrInvalid, to, from.Value)
	}
	return nil
}

// CheckAdd returns an error that matches [pawl.ErrInvalid] unless n numbers can be asked of
// a counter. CheckAdd is for authors of counters.
func CheckAdd(n int64) error {
	if n < 1 {
		return fmt.Errorf("%w: add %d numbers: 1 or more are allowed", pawl.ErrInvalid, n)
	}
	return nil
}
