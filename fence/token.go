// Package fence holds the fencing token: the number by which a protected
// resource recognises a holder that is too late.
//
// A lock service cannot stop a frozen client from writing after its lease
// ended. The resource can: it remembers the largest token it has seen and
// refuses a smaller one. See Kleppmann, "How to do distributed locking"
// (2016), and the sequencer of Burrows, "The Chubby lock service" (OSDI 2006),
// section 2.4.
package fence

import "strconv"

// Token is the fencing token of one grant. For one resource a later grant has
// a larger token, also after release, crash and restart, to the strength that
// the engine states in its capabilities. The zero Token is no token: no grant
// has it. Tokens stay below 2^53, so they survive JSON and Lua numbers.
type Token uint64

// String returns the token as a decimal number.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// ParseToken reads what [Token.String] wrote, as found in the PAWL_TOKEN
// variable of a command that `pawl run` started.
func ParseToken(s string) (Token, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	return Token(n), err
}
