package pawl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// maxSlots is the largest number of slots: the tokens of so many fit into one value.
const maxSlots = 4096

// errOvertaken says that the free numbers have had later holders than the permit at hand.
var errOvertaken = errors.New("later holders have had the free numbers")

// slotTable has the last holder of each number, as it is stored. Takers look which permits have
// ended, and note what they saw, so that the next taker need not look.
type slotTable struct {
	seen fence.Token // permits up to this token had been granted before the last look
	last []lastHolder
}

// lastHolder is the last holder of a number. That holder may have left. The next holder of the number needs
// a larger token. A zero lastHolder is of a number that nobody has had.
type lastHolder struct {
	token fence.Token
	ended bool // a look has shown that the permit has ended; a token never returns
}

// of returns the number of the permit with this token.
func (s *slotTable) of(token fence.Token) (number int, ok bool) {
	for number, h := range s.last {
		if h.token == token {
			return number, true
		}
	}
	return 0, false
}

// look notes the permits that have ended. The client reads the table before the claims. Each permit with
// a number was granted before that read, so a token without a claim has ended.
func (s *slotTable) look(claims []engine.ClaimInfo) {
	held := make(map[fence.Token]bool, len(claims))
	for _, c := range claims {
		held[c.Token] = true
		s.seen = max(s.seen, c.Token)
	}
	for i := range s.last {
		s.last[i].ended = s.last[i].ended || !held[s.last[i].token]
	}
}

// choose returns a number that is free for a permit with this token: the preferred number, else the
// smallest.
func (s *slotTable) choose(token fence.Token, n, prefer int) (int, error) {
	overtaken := false
	usable := func(number int) bool {
		if number >= len(s.last) || s.last[number].token == 0 {
			return true
		}
		h := s.last[number]
		overtaken = overtaken || h.ended && h.token > token
		return h.ended && h.token < token
	}
	if prefer >= 0 && usable(prefer) {
		return prefer, nil
	}
	for number := range n {
		if usable(number) {
			return number, nil
		}
	}
	if overtaken {
		return 0, fmt.Errorf("%w: %w", ErrNotAcquired, errOvertaken)
	}
	return 0, fmt.Errorf("%w: %w: the store shows a holder of each number, beside the permit at hand", ErrNotAcquired, errAgain)
}

// give notes the holder of a number.
func (s *slotTable) give(number int, token fence.Token) {
	for len(s.last) <= number {
		s.last = append(s.last, lastHolder{})
	}
	s.last[number] = lastHolder{token: token}
}

// slotsFormat begins the stored table. Format 1 had the tokens alone.
const slotsFormat = 2

func (s *slotTable) data() []byte {
	data := binary.AppendUvarint([]byte{slotsFormat}, uint64(s.seen))
	for _, h := range s.last {
		ended := uint64(0)
		if h.ended {
			ended = 1
		}
		data = binary.AppendUvarint(data, uint64(h.token)<<1|ended)
	}
	return data
}

func parseSlots(is Snapshot) (table slotTable, err error) {
	if is.Number == 0 {
		return table, nil
	}
	wrong := fmt.Errorf("%w: the value in the store has no slots", ErrMismatch)
	if len(is.Data) == 0 {
		return table, wrong
	}
	format, first := is.Data[0], true
	if format == 0 || format > slotsFormat {
		return table, fmt.Errorf("%w of a format that this version of pawl knows: 1 to %d, not %d", wrong, slotsFormat, format)
	}
	for data := is.Data[1:]; len(data) > 0; {
		n, size := binary.Uvarint(data)
		if size <= 0 || len(table.last) == maxSlots {
			return table, wrong
		}
		data = data[size:]
		switch {
		case format == 1:
			table.last = append(table.last, lastHolder{token: fence.Token(n)})
		case first:
			table.seen = fence.Token(n)
		default:
			table.last = append(table.last, lastHolder{fence.Token(n >> 1), n&1 == 1})
		}
		first = false
	}
	return table, nil
}
