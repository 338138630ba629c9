// Package fence holds the fencing token and the rules of all guards. By the number of its token
// a protected resource recognises a holder that is too late.
//
// A lock service cannot stop a frozen client from writing after its lease
// ended. The resource can: it remembers the largest token it has seen and
// refuses a smaller one. See Kleppmann, "How to do distributed locking"
// (2016), and the sequencer of Burrows, "The Chubby lock service" (OSDI 2006),
// section 2.4.
//
// A [Guard] compares tokens. [Memory] is a guard for the writes of a single process;
// packages sqlfence, redisfence, etcdfence and httpfence have others.
package fence

import (
	"fmt"
	"strconv"
)

// Token is the fencing token of one grant. For one resource a later grant has a larger token,
// also after release, crash and restart. The engine states in its capabilities how strong that
// is. The zero Token is no token: no grant has it. Tokens stay below 2^53, so they survive JSON
// and Lua numbers.
type Token uint64

// String returns the token as a decimal number.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// MaxToken is the largest token: 2^53 - 1. A guard that took a larger token, sent
// by mistake, would refuse every later holder.
const MaxToken Token = 1<<53 - 1

// Validate returns an error that matches [ErrInvalid] unless the token is 1 to
// [MaxToken].
func (t Token) Validate() error {
	if t == 0 || t > MaxToken {
		return fmt.Errorf("%w fencing token %d: it has to be 1 to 2^53-1", ErrInvalid, t)
	}
	return nil
}

// ParseToken reads the result of [Token.String], as found in the PAWL_TOKEN
// variable of a command that `pawl run` started.
func ParseToken(s string) (Token, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	return Token(n), err
}
