package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// Summary counts the messages of a table by their states.
type Summary struct {
	Pending, Sent, Confirmed, Done, Dead int64
	// HaltedKeys is how many keys have a dead message. A relay with ContinueKeys does not halt them.
	HaltedKeys int64
	// Oldest is when the oldest message that is pending or sent was enqueued, by the clock of the database. Oldest is
	// zero if there is no such message.
	Oldest time.Time
	// Lag is the age of that message by the clock of the database, in whole seconds.
	Lag time.Duration
}

// Summary counts the messages, as last committed. The statement reads the whole table, so call it for operators and
// not for each message.
func (t *Table) Summary(ctx context.Context, db *sql.DB) (s Summary, err error) {
	query, args, err := t.new().Add("SELECT CASE WHEN state = 0 AND attempt > 0 THEN 1 ELSE state END AS kind, COUNT(*), MIN(created), MAX(", t.now(), " - created) FROM ").
		Table(t.messages.Name).Add(" GROUP BY kind").Build()
	if err != nil {
		return s, failed("summary", err)
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return s, failed("summary", err)
	}
	defer rows.Close()
	counts := map[State]*int64{Pending: &s.Pending, Sent: &s.Sent, Confirmed: &s.Confirmed, Done: &s.Done, Dead: &s.Dead}
	for rows.Next() {
		var state State
		var n, created, age int64
		if err := rows.Scan(&state, &n, &created, &age); err != nil {
			return s, failed("summary", err)
		}
		if counts[state] == nil {
			return s, fmt.Errorf("outbox: summary: %w: a message is in the %v", pawl.ErrMismatch, state)
		}
		*counts[state] = n
		if at := time.Unix(created, 0); state <= Sent && (s.Oldest.IsZero() || at.Before(s.Oldest)) {
			s.Oldest, s.Lag = at, time.Duration(max(0, age))*time.Second
		}
	}
	if err := rows.Err(); err != nil {
		return s, failed("summary", err)
	}
	err = t.new().Add("SELECT COUNT(DISTINCT ").Name("key").Add(") FROM ").Table(t.messages.Name).Add(" WHERE part IN (", every(), ") AND state = 4 AND ").
		Name("key").Add(" <> ''").Scan(ctx, db, &s.HaltedKeys)
	return s, failed("summary", err)
}

// Filter chooses messages for [Table.List]. The zero value chooses the first 100 messages of every state and key.
type Filter struct {
	// States are those of the messages. None are all states.
	States []State
	// Key is that of the messages. An empty key is every key.
	Key string
	// Limit is how many messages are returned at most: 1 to 1,000. Default 100.
	Limit int
}

// List returns messages in the order in which they were enqueued, without their payloads, as last committed.
func (t *Table) List(ctx context.Context, db *sql.DB, f Filter) ([]Entry, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	if f.Limit < 1 || f.Limit > maxBatch {
		return nil, fmt.Errorf("outbox: %w: Filter.Limit is %d: 1 to %d are allowed", pawl.ErrInvalid, f.Limit, maxBatch)
	}
	s := t.new().Add("SELECT ", strings.Replace(entryColumns, "payload", "''", 1)).Name("key").Add(" FROM ").Table(t.messages.Name).Add(" WHERE ")
	if f.Key != "" {
		s.Add("part = ").Value(Message{Key: f.Key}.part()).Add(" AND ").Name("key").Add(" = ").Value(f.Key)
	} else {
		s.Add("part IN (", every(), ")")
	}
	if len(f.States) > 0 {
		s.Add(" AND (")
	}
	for i, state := range f.States {
		condition, known := map[State]string{Pending: "state = 0 AND attempt = 0", Sent: "state = 0 AND attempt > 0",
			Confirmed: "state = 2", Done: "state = 3", Dead: "state = 4"}[state]
		if !known {
			return nil, fmt.Errorf("outbox: %w: Filter.States has %v: pending to dead are allowed", pawl.ErrInvalid, state)
		}
		s.Add([]string{"", " OR "}[min(i, 1)], condition)
	}
	if len(f.States) > 0 {
		s.Add(")")
	}
	all, err := t.list(ctx, db, s.Add(" ORDER BY seq LIMIT ").Value(f.Limit))
	return all, failed("list", err)
}

// RequeueDead makes the dead messages of a key pending, with no attempt counted and no reason, and returns how many. An empty key
// requeues those of every key. The relay sends them after RelayOptions.Rescan at the latest.
func (t *Table) RequeueDead(ctx context.Context, db dialect.DB, key string) (int64, error) {
	s := t.new().Add("UPDATE ").Table(t.messages.Name).Add(" SET state = 0, attempt = 0, reason = '', changed = ", t.now(), " WHERE state = 4 AND ")
	if key != "" {
		s.Add("part = ").Value(Message{Key: key}.part()).Add(" AND ").Name("key").Add(" = ").Value(key)
	} else {
		s.Add("part IN (", every(), ")")
	}
	result, err := s.Exec(ctx, db)
	if err != nil {
		return 0, failed("requeue", err)
	}
	n, err := result.RowsAffected()
	return n, failed("requeue", err)
}

// purgeTries is how often Purge repeats a statement that collided with those of relays.
const purgeTries = 10

// Purge deletes the messages that have been in some states for a time, and returns how many. Older is 0 or more, and is
// counted in whole seconds. The states are some of [Confirmed], [Done] and [Dead].
//
// Where relays have Resend, a confirmed message is not sent again after Purge. So purge [Done] alone there. Dead messages
// that are purged are never sent, and the relay goes on with the other messages of their keys. After an error the messages that
// Purge counts are deleted.
func (t *Table) Purge(ctx context.Context, db *sql.DB, older time.Duration, states ...State) (n int64, err error) {
	if older < 0 {
		return 0, fmt.Errorf("outbox: %w: older is %v: 0 or more is allowed", pawl.ErrInvalid, older)
	}
	var list []string
	for _, state := range states {
		if state < Confirmed || state > Dead {
			return 0, fmt.Errorf("outbox: %w: states has %v: confirmed, done and dead are allowed", pawl.ErrInvalid, state)
		}
		list = append(list, strconv.Itoa(int(state)))
	}
	if len(list) == 0 {
		return 0, fmt.Errorf("outbox: %w: states are missing: confirmed, done and dead are allowed", pawl.ErrInvalid)
	}
	var after, last int64 // relays may confirm later messages as fast as Purge deletes them
	if err := t.new().Add("SELECT COALESCE(MAX(seq), 0) FROM ").Table(t.messages.Name).Scan(ctx, db, &last); err != nil {
		return 0, failed("purge", err)
	}
	for {
		var seqs []int64
		err := dialect.Repeat(ctx, dialect.Tries(purgeTries), func() (err error) {
			var deleted int64
			seqs, deleted, err = t.purge(ctx, db, strings.Join(list, ", "), int64(older/time.Second), after, last)
			n += deleted
			return err
		})
		if err != nil || len(seqs) < maxBatch {
			return n, failed("purge", err)
		}
		after = seqs[maxBatch-1] // a trigger may keep messages
	}
}

// purge deletes up to 1,000 messages of some states, whose numbers are greater than after and up to last.
func (t *Table) purge(ctx context.Context, db *sql.DB, states string, seconds, after, last int64) (seqs []int64, deleted int64, err error) {
	seqs, err = numbers(ctx, db, t.new().Add("SELECT seq FROM ").Table(t.messages.Name).Add(" WHERE part IN (", every(), ") AND state IN (", states, ") AND changed <= ", t.now(), " - ").
		Value(seconds).Add(" AND seq > ").Value(after).Add(" AND seq <= ").Value(last).Add(" ORDER BY seq LIMIT ").Value(maxBatch))
	if err != nil || len(seqs) == 0 {
		return nil, 0, err
	}
	result, err := dialect.DeleteByKey(t.new(), t.messages.Name, "seq", seqs).Add(" AND state IN (", states, ") AND changed <= ", t.now(), " - ").Value(seconds).Exec(ctx, db)
	if err != nil {
		return nil, 0, err
	}
	deleted, err = result.RowsAffected()
	return seqs, deleted, err
}
