package readable

import (
	"fmt"
	"strings"
)

// system is a check system of ISO/IEC 7064.
type system interface {
	// of returns the check characters of a text.
	of(text string) string
	// size is how many characters of the alphabet a text may have.
	size() int
}

// mod97 is MOD 97-10, a pure system: text and check digits are a number that is 1 modulo 97. A mod97
// finds each wrong digit and each two neighbours that are swapped. The reason is that the prime 97
// divides neither a difference of digits nor nine times that difference.
type mod97 struct{}

func (mod97) size() int { return 10 }

func (mod97) of(text string) string {
	rest := 0
	for _, r := range text + "00" {
		rest = (10*rest + int(r-'0')) % 97
	}
	return fmt.Sprintf("%02d", 98-rest)
}

// hybrid is MOD 11,10 or MOD 37,36, by the size of its alphabet. A hybrid finds each wrong
// character, and most swaps of neighbours.
type hybrid int

func (h hybrid) size() int { return int(h) }

func (h hybrid) of(text string) string {
	m := int(h)
	p := m
	for _, r := range text {
		s := (p + strings.IndexRune(alphabet, r)) % m
		if s == 0 {
			s = m
		}
		p = 2 * s % (m + 1)
	}
	i := (m + 1 - p) % m
	return alphabet[i : i+1]
}
