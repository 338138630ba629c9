package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// State says how far a message is.
type State int

// The states of a message.
const (
	// Pending: no sending of the message was confirmed, or has failed in a way that counts, since it was enqueued or requeued.
	Pending State = iota
	// Sent: a sending has failed and counted, see RelayOptions.MaxAttempts. The relay sends the message again.
	Sent
	// Confirmed: the broker keeps the message.
	Confirmed
	// Done: the consumer has said that the message took effect, see [Table.Complete].
	Done
	// Dead: the message failed as often as it may. Requeue makes the message pending again.
	Dead
)

// String returns the name of the state in lower case.
func (s State) String() string {
	if s < Pending || s > Dead {
		return fmt.Sprintf("state %d", int(s))
	}
	return [...]string{"pending", "sent", "confirmed", "done", "dead"}[s]
}

// Entry is a message in the table.
type Entry struct {
	Message           // Attempt is how many sendings failed and counted
	State   State     //
	Changed time.Time // when the state changed or the last repeat ended, by the clock of the database, in whole seconds
	Reason  string    // the error of the last sending that failed and counted, cut to 500 bytes; Requeue clears it
	Repeats int       // sendings after the confirm, because the message was not done, see RelayOptions.Resend
	seq     int64
	weight  int   // bytes of the payload and the headers
	broken  error // the row was not written by Enqueue
}

const entryColumns = "seq, id, topic, headers, payload, created, attempt, state, changed, reason, repeats, "

// scan reads a message, and further columns behind it.
func (t *Table) scan(row interface{ Scan(...any) error }, more ...any) (e Entry, err error) {
	var created, changed int64
	var headers []byte
	err = row.Scan(append([]any{&e.seq, &e.ID, &e.Topic, &headers, &e.Payload, &created, &e.Attempt, &e.State, &changed, &e.Reason, &e.Repeats, &e.Key}, more...)...)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(headers, &e.Headers); err != nil { // another program wrote the row, which must not stop its partition
		e.broken = fmt.Errorf("headers: %w", err)
	}
	e.weight = len(e.Payload) + len(headers)
	e.Time, e.Changed = time.Unix(created, 0), time.Unix(changed, 0)
	if e.State == Pending && e.Attempt > 0 {
		e.State = Sent
	}
	return e, nil
}

// entries begins a statement that reads messages.
func (t *Table) entries() *dialect.Statement {
	return t.new().Add("SELECT ", entryColumns).Name("key").Add(" FROM ").Table(t.messages.Name).Add(" WHERE ")
}

func (t *Table) list(ctx context.Context, db dialect.DB, s *dialect.Statement) ([]Entry, error) {
	return collect(ctx, db, s, func(rows *sql.Rows, e *Entry) (err error) { *e, err = t.scan(rows); return err })
}

// upTo reads messages, and further columns behind each, until they have so many bytes. The statement has a limit. More says that there may be
// further messages.
func (t *Table) upTo(ctx context.Context, db *sql.DB, s *dialect.Statement, limit, bytes int, columns ...any) (all []Entry, more bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	n, read := 0, 0
	all, err = collect(ctx, db, s, func(rows *sql.Rows, e *Entry) (err error) {
		if *e, err = t.scan(rows, columns...); err != nil {
			return err
		}
		if n, read = n+1, read+e.weight; read < bytes {
			return nil
		}
		// Close waits for the rows that are left, unless ctx has ended. To connect again takes less time than many large rows.
		if t.dialect != dialect.SQLite && (limit-n)*(read/n) > bytes {
			stop()
		}
		return errEnough
	})
	return all, len(all) == limit || read >= bytes, err
}

// errEnough ends the reading of rows, after the row for which a function has returned it.
var errEnough = errors.New("enough rows")

// collect reads the rows of a query.
func collect[T any](ctx context.Context, db dialect.DB, s *dialect.Statement, scan func(*sql.Rows, *T) error) (all []T, err error) {
	query, args, err := s.Build()
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v T
		err := scan(rows, &v)
		if err != nil && err != errEnough {
			return nil, err
		}
		if all = append(all, v); err != nil {
			return all, nil
		}
	}
	return all, rows.Err()
}

// Status returns the message of an ID, as last committed. The error matches [ErrUnknown] if there is none.
func (t *Table) Status(ctx context.Context, db dialect.DB, id string) (Entry, error) {
	if impossible(id) {
		return Entry{}, failed("status", ErrUnknown)
	}
	all, err := t.list(ctx, db, t.entries().Add("id = ").Value(id))
	if err == nil && len(all) == 0 {
		err = ErrUnknown
	}
	if err != nil {
		return Entry{}, failed("status", err)
	}
	return all[0], nil
}

// Requeue makes a dead message pending, with no attempt counted and no reason. The relay sends the message, and then those of its
// key that waited for it, after RelayOptions.Rescan at the latest. While the key has another dead message, all of these wait. The error matches [ErrUnknown] or [ErrNotDead].
func (t *Table) Requeue(ctx context.Context, db dialect.DB, id string) error {
	if impossible(id) {
		return failed("requeue", ErrUnknown)
	}
	result, err := t.update(t.new(), "id").Add("state = 0, attempt = 0, reason = '', changed = ", t.now(), " WHERE id = ").Value(id).
		Add(" AND state = 4").Exec(ctx, db)
	if err != nil {
		return failed("requeue", err)
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return failed("requeue", err)
	}
	e, err := t.Status(ctx, db, id)
	if err == nil {
		err = fmt.Errorf("outbox: requeue: %w: it is %v", ErrNotDead, e.State)
	}
	return err
}

// DeadMessages returns dead messages in the order in which they were enqueued, at most limit of them. Limit is 1 to 1,000.
func (t *Table) DeadMessages(ctx context.Context, db *sql.DB, limit int) ([]Entry, error) {
	if limit < 1 || limit > maxBatch {
		return nil, fmt.Errorf("outbox: %w: limit is %d: 1 to %d are allowed", pawl.ErrInvalid, limit, maxBatch)
	}
	all, err := t.list(ctx, db, t.entries().Add("part IN (").Add(every()).Add(") AND state = 4 ORDER BY seq LIMIT ").Value(limit))
	return all, failed("dead messages", err)
}

// every lists the partitions, so that a statement uses the index that begins with them.
func every() string {
	var b strings.Builder
	for part := range Partitions {
		fmt.Fprintf(&b, ",%d", part)
	}
	return b.String()[1:]
}

// HaltedKey is a key whose messages wait, because one of them is dead.
type HaltedKey struct {
	Key     string // never empty
	Dead    int    // dead messages of the key
	Waiting int    // messages that wait
	ID      string // of the first dead message
	Reason  string // why the first dead message failed the last time
}

// HaltedKeys returns keys with a dead message, in the order of the keys, at most limit of them. Limit is 1 to 1,000. A
// relay with ContinueKeys does not halt them.
func (t *Table) HaltedKeys(ctx context.Context, db *sql.DB, limit int) ([]HaltedKey, error) {
	if limit < 1 || limit > maxBatch {
		return nil, fmt.Errorf("outbox: %w: limit is %d: 1 to %d are allowed", pawl.ErrInvalid, limit, maxBatch)
	}
	all, err := t.haltedKeys(ctx, db, limit)
	return all, failed("halted keys", err)
}

func (t *Table) haltedKeys(ctx context.Context, db *sql.DB, limit int) ([]HaltedKey, error) {
	s := t.new().Add("SELECT h.").Name("key").Add(", h.dead, h.waiting, m.id, m.reason FROM (SELECT ").Name("key").
		Add(", SUM(CASE state WHEN 4 THEN 1 ELSE 0 END) AS dead, SUM(CASE state WHEN 0 THEN 1 ELSE 0 END) AS waiting, MIN(CASE state WHEN 4 THEN seq END) AS first FROM ").Table(t.messages.Name).
		Add(" WHERE part IN (", every(), ") AND state IN (0, 4) AND ").Name("key").Add(" IN (SELECT ").Name("key").Add(" FROM ").Table(t.messages.Name).
		Add(" WHERE part IN (", every(), ") AND state = 4 AND ").Name("key").Add(" <> '') GROUP BY ").Name("key").Add(" ORDER BY ").Name("key").Add(" LIMIT ").Value(limit).
		Add(") h JOIN ").Table(t.messages.Name).Add(" m ON m.seq = h.first ORDER BY h.").Name("key")
	return collect(ctx, db, s, func(rows *sql.Rows, k *HaltedKey) error {
		return rows.Scan(&k.Key, &k.Dead, &k.Waiting, &k.ID, &k.Reason)
	})
}
