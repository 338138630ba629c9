// Package redisstock keeps a number that many clients lower at once in Redis, such as the units
// of an item on sale. One Redis runs one command at a time, so there one key is as fast as many.
// In a Redis Cluster the number of a name is split over several slots, its parts. Package stock
// does the same in a database.
//
//	sku, err := redisstock.New(client, "sku-7", &redisstock.Options{Parts: 16})
//	...
//	err = sku.Reserve(ctx, "order-42", 2) // again and again, until it returns
//	... // write the order
//	err = sku.Confirm(ctx, "order-42") // or Cancel
//
// # What is promised, while Redis keeps its data
//
//   - A reservation has an id. A call that is repeated, because its reply was lost, does not
//     reserve again. The script that takes the units records the id with them.
//   - The stock is never oversold, and nothing is stranded. A reservation that is neither
//     confirmed nor cancelled in time gives its units back, by the clock of Redis.
//   - A Reserve that comes after Cancel, or after the reservation has expired, is refused. So a
//     late repeat takes nothing.
//   - No units are forgotten. Each id has one part. If that part has too little, units of
//     other parts move there, under a lock. A caller is told "sold out" only after a sweep of its process that
//     found too little. No units were in other parts or on their way then, and none has come to any part since.
//   - A call returns within 0.2 s of the end of its ctx. A later sweep ends the moves of that call.
//
// # How units move
//
// A script cannot touch two slots. So the part that gives units keeps a record of the loan, and
// the part that gets the units keeps a mark: open, then done. Units arrive only while the mark is
// open. A client that finds the loan of a dead client, under the lock, asks for the mark. If the
// mark is done, the loan ends. Else the mark is removed, so that the units cannot arrive any
// more, and they go back. A client that dies between the last two steps leaves a mark of some
// bytes. The lock of a dead client ends after 3 s, and until then others wait with their sweeps.
//
// # What is not promised
//
// Redis may forget acknowledged writes: in a restart without persistence, with an old snapshot,
// and in a failover to a replica that lags behind. Then units may be sold twice or be lost. Where that
// matters, take the units in a database, see package stock. A server with maxmemory needs the
// policy noeviction. The Redis user needs EVALSHA, EVAL, TIME, DEL, and the commands of strings,
// hashes and sorted sets. The client itself may need more, such as CLIENT TRACKING and CLUSTER SHARDS. Outcomes of ids are kept for Options.Keep: a later repeat is a new call.
package redisstock

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
)

var (
	// ErrEnded says that the reservation was cancelled, or has expired. The units are back.
	ErrEnded = errors.New("the reservation has ended")
	// ErrConfirmed says that the reservation was confirmed, and cannot be cancelled any more.
	ErrConfirmed = errors.New("the reservation is confirmed")
	// ErrUnknown says that there is no reservation of this id, or none any more.
	ErrUnknown = errors.New("no such reservation")
	// ErrOtherAmount says that the id was used for another number of units.
	ErrOtherAmount = errors.New("the id was used for another number of units")
)

// Options are the settings of [New].
type Options struct {
	// Prefix begins every key, and has no braces. Default "pawl:stock:".
	Prefix string
	// Parts is over how many slots the number is split: 1 to 1024. All programs use the same
	// number, and the number of a stock does not change. Default 16.
	Parts int
	// Hold is how long a reservation lasts: 1 ms to 30 days, in whole milliseconds. Default 10
	// minutes.
	Hold time.Duration
	// Keep is for how long the outcome of an id is known after that: 1 s to 365 days, in whole
	// milliseconds. Default 24 hours.
	Keep time.Duration
}

// MaxUnits is how many units one call may reserve or put.
const MaxUnits = 1 << 40 // Lua counts in floating point

const maxText = 200

// Stock is the stock of one name. A Stock is safe for concurrent use. Create it with [New].
type Stock struct {
	client     rueidis.Client
	name       string
	prefix     string
	parts      int
	hold, keep time.Duration

	mu   sync.Mutex
	sold []part // as a sweep found them last when all was sold out
}

// New returns the stock of a name: 1 to 200 bytes without braces. Nothing is asked. The client
// stays the caller's. Nil opts are the defaults. The error of New matches pawl.ErrInvalid.
func New(client rueidis.Client, name string, opts *Options) (*Stock, error) {
	s := &Stock{client: client, name: name, prefix: "pawl:stock:", parts: 16, hold: 10 * time.Minute, keep: 24 * time.Hour}
	if opts != nil {
		if opts.Prefix != "" {
			s.prefix = opts.Prefix
		}
		if opts.Parts != 0 {
			s.parts = opts.Parts
		}
		if opts.Hold != 0 {
			s.hold = opts.Hold
		}
		if opts.Keep != 0 {
			s.keep = opts.Keep
		}
	}
	const day = 24 * time.Hour
	switch {
	case client == nil:
		return nil, fmt.Errorf("%w: the client is nil", pawl.ErrInvalid)
	case name == "" || len(name) > maxText || strings.ContainsAny(name, "{}"):
		return nil, fmt.Errorf("%w: the name %.80q has %d bytes: 1 to %d bytes without braces are allowed", pawl.ErrInvalid, name, len(name), maxText)
	case len(s.prefix) > maxText || strings.ContainsAny(s.prefix, "{}"):
		return nil, fmt.Errorf("%w: Options.Prefix %.80q has %d bytes: 1 to %d bytes without braces are allowed", pawl.ErrInvalid, s.prefix, len(s.prefix), maxText)
	case s.parts < 1 || s.parts > 1024:
		return nil, fmt.Errorf("%w: Options.Parts is %d: 1 to 1024 are allowed", pawl.ErrInvalid, s.parts)
	case s.hold < time.Millisecond || s.hold > 30*day || s.hold%time.Millisecond != 0:
		return nil, fmt.Errorf("%w: Options.Hold is %v: whole milliseconds from 1 ms to 30 days are allowed", pawl.ErrInvalid, s.hold)
	case s.keep < time.Second || s.keep > 365*day || s.keep%time.Millisecond != 0:
		return nil, fmt.Errorf("%w: Options.Keep is %v: whole milliseconds from 1 s to 365 days are allowed", pawl.ErrInvalid, s.keep)
	}
	return s, nil
}

// Put adds n units, 1 to MaxUnits, spread evenly over the parts. The id, 1 to 200 bytes, makes a
// repeat safe: repeat a Put that failed with the same id, until it returns nil. An id with another
// number of units is [ErrOtherAmount].
func (s *Stock) Put(ctx context.Context, id string, n int64) error {
	err := check(id, n)
	each, more, first := n/int64(s.parts), int(n%int64(s.parts)), s.home(id)
	for i := 0; err == nil && i < s.parts; i++ {
		share := each
		if i < more {
			share++
		}
		part := (first + i) % s.parts
		err = s.answer(s.run(ctx, putScript, part, s.key(part, "put:"+id), text(n), text(share), millis(s.keep)))
	}
	return s.failed("put", id, err)
}

// Reserve reserves n units, 1 to MaxUnits, under an id of 1 to 200 bytes. A repeat returns nil as long
// as the reservation lasts or is confirmed. The common case is one script. The errors:
//
//   - stock.ErrSoldOut: too few units are free; errors.As finds a stock.SoldOutError. Reserved
//     units may still come back.
//   - stock.ErrNotFound: nothing was ever put.
//   - [ErrEnded]: the reservation of this id was cancelled or has expired.
//   - [ErrOtherAmount], pawl.ErrInvalid, and pawl.ErrMismatch for another number of parts.
//   - pawl.ErrUnavailable: nobody knows what became of the call: repeat it.
func (s *Stock) Reserve(ctx context.Context, id string, n int64) error {
	err := check(id, n)
	if err == nil {
		var few *tooFew
		if err = s.reserve(ctx, id, n); errors.As(err, &few) {
			err = s.soldOut(ctx, n)
			if errors.As(err, &few) {
				err = s.sweep(ctx, id, n)
			}
		}
	}
	return s.failed("reserve", id, err)
}

// Confirm makes a reservation final: its units are sold. A repeat returns nil. The errors match
// [ErrEnded] or [ErrUnknown], or pawl.ErrUnavailable, after which the call is to be repeated.
func (s *Stock) Confirm(ctx context.Context, id string) error {
	return s.failed("confirm", id, s.end(ctx, id, "C"))
}

// Cancel gives the units of a reservation back. A repeat returns nil, and so does an id that
// has expired or is not known. A Reserve of the id that comes late is then refused. A
// reservation that was confirmed is [ErrConfirmed].
func (s *Stock) Cancel(ctx context.Context, id string) error {
	return s.failed("cancel", id, s.end(ctx, id, "X"))
}

func (s *Stock) end(ctx context.Context, id, how string) error {
	if err := check(id, 1); err != nil {
		return err
	}
	part := s.home(id)
	return s.answer(s.run(ctx, endScript, part, s.key(part, "id:"+id), id, how, millis(s.keep)))
}

// tooFew says how many units the part of an id has.
type tooFew struct{ free int64 }

func (e *tooFew) Error() string { return "the part has too few units" }

// errMore says that the part has too few units, and reservations that have expired and were not ended yet.
var errMore = errors.New("more reservations have expired")

func (s *Stock) reserve(ctx context.Context, id string, n int64) error {
	part := s.home(id)
	for {
		err := s.answer(s.run(ctx, reserveScript, part, s.key(part, "id:"+id), id, text(n), millis(s.hold), millis(s.keep)))
		if !errors.Is(err, errMore) {
			return err
		}
	}
}

// answer makes an error of the word that a script returned, alone or with a number.
func (s *Stock) answer(m rueidis.RedisMessage, err error) error {
	if err != nil {
		return err
	}
	number := int64(0)
	if all, err := m.ToArray(); err == nil && len(all) == 2 {
		m = all[0]
		if number, err = all[1].AsInt64(); err != nil {
			return err
		}
	}
	word, err := m.ToString()
	switch word {
	case "ok":
		return nil
	case "few":
		return &tooFew{number}
	case "again":
		return errMore
	case "cancelled", "expired":
		return fmt.Errorf("%w: it is %s", ErrEnded, word)
	case "confirmed":
		return ErrConfirmed
	case "unknown":
		return ErrUnknown
	case "mismatch":
		return fmt.Errorf("%w: %d", ErrOtherAmount, number)
	}
	return errors.Join(fmt.Errorf("the script returned %.40q", word), err)
}

func check(id string, n int64) error {
	if id == "" || len(id) > maxText {
		return fmt.Errorf("%w: the id has %d bytes: 1 to %d are allowed", pawl.ErrInvalid, len(id), maxText)
	}
	if n < 1 || n > MaxUnits {
		return fmt.Errorf("%w: %d units: 1 to %d are allowed", pawl.ErrInvalid, n, int64(MaxUnits))
	}
	return nil
}

// home is the part of an id.
func (s *Stock) home(id string) int {
	h := fnv.New64a()
	h.Write([]byte(id)) //nolint:errcheck // it never fails
	return int(h.Sum64() % uint64(s.parts))
}

// key is a key of a part. The hash tag puts all keys of the part into one slot.
func (s *Stock) key(part int, rest string) string {
	return fmt.Sprintf("%s{%s/%d}:%s", s.prefix, s.name, part, rest)
}

func (s *Stock) failed(doing, id string, err error) error {
	if err != nil {
		return fmt.Errorf("stock %q: %s %.80q: %w", s.name, doing, id, err)
	}
	return nil
}

func text(n int64) string { return strconv.FormatInt(n, 10) }

func millis(d time.Duration) string { return text(d.Milliseconds()) }
