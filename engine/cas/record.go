package cas

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// The keys.
const (
	storeKey    = "store" // the format, and the life of the store
	resourceKey = "c/"    // plus a name: its claims
	sessionKey  = "s/"    // plus an id: its heartbeat
	valueKey    = "v/"    // plus a key: a versioned value
)

// tokensPerWrite is how far the tokens of one write and the next are apart. A write may grant more
// tokens than that. Later tokens are larger all the same, because the record keeps the last token
// as long as there is one.
const tokensPerWrite = 64

// record is a resource as it is stored. The tokens of grants in a write depend on the version that
// the write gets. So the store has only the order of these tokens.
type record struct {
	queue.State
	version uint64
	base    int64 // of the life of the store in which the writer was
}

// firstToken is the first token of a write.
func firstToken(last fence.Token, base int64, version uint64) fence.Token {
	return max(last+1, fence.Token(base+int64(version)*tokensPerWrite))
}

// encode returns the state for the store. This write granted the claims with a token of minted or
// more. Last is the last token before it.
func encode(s queue.State, last, minted fence.Token, base int64) []byte {
	w := writer{b: []byte{1}, known: make(map[string]uint64)} // the layout
	granted := uint64(0)
	if s.Last >= minted {
		granted = uint64(s.Last-minted) + 1
	}
	w.numbers(uint64(last), uint64(base), granted, uint64(s.Spec.Capacity), flag(s.Spec.Barging))
	w.text(string(s.Spec.Kind))
	for _, c := range s.Claims {
		isNew := c.Token >= minted
		token := c.Token
		if isNew {
			token -= minted
		}
		w.numbers(flag(isNew), uint64(token), uint64(c.Weight), uint64(c.Since), uint64(c.Granted))
		owner := c.Owner
		if owner == c.ID {
			owner = "" // the owner equals the id, and is long
		}
		for _, text := range []string{c.ID, owner, c.Session, c.Label} {
			w.text(text)
		}
	}
	return w.b
}

func flag(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

// decode reads what encode wrote.
func decode(item Item) (record, error) {
	r := record{version: item.Version}
	if item.Version == 0 {
		return r, nil
	}
	d := reader{b: string(item.Data)} // all texts are parts of this string
	layout := byte(d.number())
	last, base, granted := fence.Token(d.number()), int64(d.number()), d.number()
	first := firstToken(last, base, item.Version)
	r.Last, r.base = last, base
	if granted > 0 {
		r.Last = first + fence.Token(granted-1)
	}
	r.Spec = engine.Spec{Capacity: int64(d.number()), Barging: d.number() == 1, Kind: engine.Kind(d.text())}
	for len(d.b) > 0 && !d.bad {
		isNew := d.number() == 1
		c := queue.Claim{Token: fence.Token(d.number()), Weight: int64(d.number()), Since: int64(d.number()), Granted: int64(d.number())}
		if isNew {
			c.Token += first
		}
		c.ID, c.Owner, c.Session, c.Label = d.text(), d.text(), d.text(), d.text()
		if c.Owner == "" {
			c.Owner = c.ID
		}
		r.Claims = append(r.Claims, c)
	}
	if layout != 1 || d.bad {
		return record{}, fmt.Errorf("%w: the store has a record that this version of pawl cannot read", engine.ErrUnsupported)
	}
	if len(r.Claims) == 0 {
		r.Spec = engine.Spec{}
	}
	return r, nil
}

// find returns the claim, if the record has it.
func (r *record) find(id string) (queue.Claim, bool) {
	if i := slices.IndexFunc(r.Claims, func(c queue.Claim) bool { return c.ID == id }); i >= 0 {
		return r.Claims[i], true
	}
	return queue.Claim{}, false
}

// writer appends to b. A text that comes again, as a session does, becomes a number.
type writer struct {
	b     []byte
	known map[string]uint64
}

func (w *writer) numbers(all ...uint64) {
	for _, n := range all {
		w.b = binary.AppendUvarint(w.b, n)
	}
}

func (w *writer) text(text string) {
	if n, is := w.known[text]; is {
		w.numbers(n)
		return
	}
	w.known[text] = uint64(len(w.known)) + 1
	w.numbers(0, uint64(len(text)))
	w.b = append(w.b, text...)
}

// reader reads from b, and turns bad when b is too short.
type reader struct {
	b     string
	known []string
	bad   bool
}

func (d *reader) number() (n uint64) {
	for i := 0; i < len(d.b) && i < binary.MaxVarintLen64; i++ {
		n |= uint64(d.b[i]&0x7f) << (7 * i)
		if d.b[i] < 0x80 {
			d.b = d.b[i+1:]
			return n
		}
	}
	d.b, d.bad = "", true
	return 0
}

func (d *reader) text() string {
	n := d.number()
	if n > 0 {
		if n > uint64(len(d.known)) {
			d.b, d.bad = "", true
			return ""
		}
		return d.known[n-1]
	}
	if n = d.number(); n > uint64(len(d.b)) {
		d.b, d.bad = "", true
		return ""
	}
	text := d.b[:n]
	d.b, d.known = d.b[n:], append(d.known, text)
	return text
}

// heartbeat is a session as it is stored. A dead session stays dead, until it is removed.
type heartbeat struct {
	TTL   int64  `json:"ttl,omitempty"` // in µs
	Label string `json:"label,omitempty"`
	Beat  uint64 `json:"beat,omitempty"`
	Dead  bool   `json:"dead,omitempty"`
}

var deadMark = heartbeat{Dead: true}.encode()

func (h heartbeat) encode() []byte {
	data, err := json.Marshal(h)
	if err != nil {
		panic(err) // numbers and a string can be encoded
	}
	return data
}

func decodeHeartbeat(item Item) (h heartbeat, err error) {
	if err := json.Unmarshal(item.Data, &h); err != nil {
		return h, fmt.Errorf("%w: the store has a session that this version of pawl cannot read: %w", engine.ErrUnsupported, err)
	}
	return h, nil
}

// ttl is how long a session lives after a heartbeat, plus the difference between the rates of
// clocks.
func (h heartbeat) ttl() time.Duration {
	ttl := time.Duration(h.TTL) * time.Microsecond
	return ttl + ttl/100
}
