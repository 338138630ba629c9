package outbox

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/pawl-go/pawl/dialect"
)

// horizon finds, on MySQL and MariaDB, where messages may become visible behind the reader. These databases do not tell a relay which
// transactions are open. So the relay reads a range of numbers once with the isolation READ UNCOMMITTED, which shows the messages of open
// transactions, too. Behind the floor, only those have to be asked for again. A backup or a transaction in doubt keeps the database
// from cleaning its index. Without a floor, each page would then read the entries of all sent messages.
type horizon struct {
	floor  int64            // no message up to this number becomes visible, but for the open ones
	open   map[int64]string // messages of open transactions by their number, with their keys
	given  int64            // the numbers up to this were given a while ago
	latest int64            // the largest number that was visible when it was asked for
	asked  time.Time        // when latest was asked for
	looked time.Time        // when the open ones were last looked for
}

const (
	// inserting is how long an INSERT may take. A message has its number before its row is there to be read.
	inserting = time.Second
	// stretch is from how many numbers on the floor is worth lifting, and how many messages a look takes at most.
	stretch = 4096
)

var errReadOnly = errors.New("the server is read-only, so open transactions may be on another one")

// lift moves the floor to the last message that was read, and looks for messages of open transactions before that.
func (o *owner) lift(ctx context.Context) error {
	h, now := &o.horizon, time.Now()
	if now.Sub(h.asked) >= inserting {
		var latest int64
		if err := o.table.new().Add("SELECT COALESCE(MAX(seq), 0) FROM ").Table(o.table.messages.Name).Scan(ctx, o.db, &latest); err != nil {
			return err
		}
		h.given, h.latest, h.asked = h.latest, latest, now
	}
	upTo := max(h.floor, min(o.plan.newest, h.given))
	if upTo-h.floor < stretch && (len(h.open) == 0 || now.Sub(h.looked) < inserting) {
		return nil
	}
	found, upTo, err := o.table.uncommitted(ctx, o.db, o.part, h.floor, upTo, slices.Sorted(maps.Keys(h.open)))
	if err != nil {
		return err
	}
	h.looked = now
	h.look(o.plan, upTo, found)
	return nil
}

// look takes the pending messages up to a number, whether or not their transactions have ended.
func (h *horizon) look(p *plan, upTo int64, found map[int64]string) {
	maps.DeleteFunc(found, func(seq int64, _ string) bool { return p.known[seq] != nil })
	h.floor, h.open = upTo, found
}

// appeared takes which of the open messages are visible, and returns the places that the pass has gone past. The others stay open: the
// page at hand may lack them, because it was read before their transactions ended.
func (h *horizon) appeared(p *plan, visible []int64) (earlier []place) {
	for _, seq := range visible {
		if seq <= p.pos {
			earlier = append(earlier, place{seq, h.open[seq]})
			delete(h.open, seq)
		}
	}
	return earlier
}

// read forgets the messages that a page has brought, which a pass may do that has begun behind the floor.
func (h *horizon) read(page []Entry) {
	for _, e := range page {
		delete(h.open, e.seq)
	}
}

// visible returns which messages of open transactions are visible now, behind the reader.
func (o *owner) visible(ctx context.Context) ([]place, error) {
	if len(o.horizon.open) == 0 {
		return nil, nil
	}
	s := o.table.new().Add("SELECT seq FROM ").Table(o.table.messages.Name).Add(" WHERE state = 0 AND ")
	visible, err := numbers(ctx, o.db, dialect.Among(s, "seq", slices.Sorted(maps.Keys(o.horizon.open))).Add(" ORDER BY seq"))
	return o.horizon.appeared(o.plan, visible), err
}

// uncommitted reads the pending messages after a number and up to another, and some further messages. A message may belong
// to an open transaction. A halted key may have very many messages, so uncommitted returns the number up to which it has read. A server that was the
// primary until a switchover keeps its connections, and knows no transaction of the new one. So uncommitted fails on a read-only server.
func (t *Table) uncommitted(ctx context.Context, db *sql.DB, part int, after, upTo int64, further []int64) (map[int64]string, int64, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: true})
	if err != nil {
		return nil, 0, err
	}
	defer tx.Rollback() //nolint:errcheck // it has only read
	s := t.new().Add("SELECT seq, ").Name("key").Add(" FROM ").Table(t.messages.Name).Add(" WHERE part = ")
	t.number(t.number(t.number(s, int64(part)).Add(" AND state = 0 AND (seq > "), after).Add(" AND seq <= "), upTo)
	if len(further) > 0 {
		dialect.Among(s.Add(" OR "), "seq", further)
	}
	most := stretch + len(further)
	places, err := collect(ctx, tx, t.number(s.Add(") ORDER BY seq LIMIT "), int64(most)), scanPlace)
	if err != nil {
		return nil, 0, err
	}
	var primary bool // asked after the reading: transactions begin on another server when this one is read-only
	if err := t.new().Add("SELECT ", dialect.Primary(t.dialect)).Scan(ctx, tx, &primary); err != nil {
		return nil, 0, err
	}
	if !primary {
		return nil, 0, errReadOnly
	}
	if len(places) == most {
		upTo = places[most-1].seq
	}
	found := make(map[int64]string)
	for _, at := range places {
		found[at.seq] = at.key
	}
	return found, upTo, nil
}
