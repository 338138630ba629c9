package outbox

import (
	"context"
	"database/sql"
	"math"
	"strconv"

	"github.com/pawl-go/pawl/dialect"
)

// page is what one statement read.
type page struct {
	entries []Entry
	more    bool   // there may be further messages
	seen    string // on PostgreSQL, the snapshot of the statement, if there are entries
}

// page reads pending messages of a partition after a number, without those of some keys and, if wanted, of halted keys. The page ends when
// it has so many messages or bytes.
func (t *Table) page(ctx context.Context, db *sql.DB, part int, after int64, limit, bytes int, keys []string, withoutHalted bool) (p page, err error) {
	s := t.new().Add("SELECT ", entryColumns).Name("key")
	if t.dialect == dialect.PostgreSQL {
		s.Add(", txid_current_snapshot()::text")
	}
	order := t.ofState(s.Add(" FROM ").Table(t.messages.Name), part, Pending, after, math.MaxInt64)
	if withoutHalted {
		t.unhalted(s, part)
	}
	t.without(s, keys)
	var more []any
	if t.dialect == dialect.PostgreSQL {
		more = []any{&p.seen}
	}
	p.entries, p.more, err = t.upTo(ctx, db, t.number(s.Add(order, " LIMIT "), int64(limit)), limit, bytes, more...)
	return p, err
}

// number appends a number. A driver of MySQL needs three round trips for a statement with parameters, and one without any.
func (t *Table) number(s *dialect.Statement, n int64) *dialect.Statement {
	if t.dialect == dialect.MySQL {
		return s.Add(strconv.FormatInt(n, 10))
	}
	return s.Value(n)
}

// ofState appends the condition of the messages of a partition and a state, after a number and up to another, and returns their order. For a
// prepared statement PostgreSQL may take the primary key, and read the messages of all partitions. So the whole condition and the order
// are in terms of the other index.
func (t *Table) ofState(s *dialect.Statement, part int, state State, after, upTo int64) (order string) {
	is := strconv.Itoa(int(state))
	if t.dialect == dialect.PostgreSQL {
		s.Add(" WHERE (part, state, seq) > (").Value(part).Add(", ", is, ", ").Value(after).Add(") AND (part, state, seq) <= (").Value(part).Add(", ", is, ", ").Value(upTo).Add(")")
		return " ORDER BY part, state, seq"
	}
	t.number(t.number(s.Add(" WHERE part = "), int64(part)).Add(" AND state = ", is, " AND seq > "), after)
	if upTo < math.MaxInt64 {
		t.number(s.Add(" AND seq <= "), upTo)
	}
	return " ORDER BY seq"
}

// earlier is a question for pending messages of a partition.
type earlier struct {
	part        int
	after, upTo int64
	keys        []string // nil for all keys but the left ones
	left        []string
	whole       bool // no lane is left out, so that the keys of the messages do not matter
	halted      bool // some keys are halted
	limit       int
}

// earlier reads where pending messages are. If some lanes are left out, messages without a key and those of halted keys are not in the answer.
func (t *Table) earlier(ctx context.Context, db *sql.DB, ask earlier) ([]place, error) {
	s := t.new().Add("SELECT seq, ")
	if ask.whole {
		s.Add("''") // the index has all that is asked
	} else {
		s.Name("key")
	}
	order := t.ofState(s.Add(" FROM ").Table(t.messages.Name), ask.part, Pending, ask.after, ask.upTo)
	switch {
	case ask.whole:
	case ask.keys != nil:
		dialect.Among(s.Add(" AND "), "key", ask.keys)
	default:
		s.Add(" AND ").Name("key").Add(" <> ''")
		if ask.halted {
			t.unhalted(s, ask.part)
		}
		t.without(s, ask.left)
	}
	return collect(ctx, db, s.Add(order, " LIMIT ").Value(ask.limit), scanPlace)
}

func scanPlace(rows *sql.Rows, at *place) error { return rows.Scan(&at.seq, &at.key) }

// unhalted appends the condition that the key of a message has no dead message.
func (t *Table) unhalted(s *dialect.Statement, part int) {
	s.Add(" AND ").Name("key").Add(" NOT IN (SELECT ").Name("key").Add(" FROM ").Table(t.messages.Name).
		Add(" WHERE part = ").Value(part).Add(" AND state = 4 AND ").Name("key").Add(" <> '')")
}

// without appends the condition that a message has none of some keys.
func (t *Table) without(s *dialect.Statement, keys []string) {
	for _, key := range keys {
		s.Add(" AND ").Name("key").Add(" <> ").Value(key)
	}
}

// numbers reads a column of numbers.
func numbers(ctx context.Context, db *sql.DB, s *dialect.Statement) ([]int64, error) {
	return collect(ctx, db, s, func(rows *sql.Rows, n *int64) error { return rows.Scan(n) })
}

// deadLanes reads the keys of a partition that have dead messages.
func (t *Table) deadLanes(ctx context.Context, db *sql.DB, part int, continues bool) ([]string, error) {
	if continues {
		return nil, nil
	}
	s := t.new().Add("SELECT DISTINCT ").Name("key").Add(" FROM ").Table(t.messages.Name).
		Add(" WHERE part = ").Value(part).Add(" AND state = 4 AND ").Name("key").Add(" <> ''")
	return collect(ctx, db, s, func(rows *sql.Rows, lane *string) error { return rows.Scan(lane) })
}
