package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// Partitions is how many partitions each table has. A message is in the partition of its key. The number is
// the same for all programs, because a producer with another number would put messages where no relay looks.
const Partitions = 16

const (
	format     = 1       // the format of the tables
	maxBatch   = 1000    // messages of one call of Enqueue
	maxPayload = 1 << 24 // the longest payload that every database keeps, and one byte
)

// Options are the settings of [New].
type Options struct {
	// Table is the name of the table of messages: 1 to 48 ASCII letters, digits and underscores. A schema and a dot
	// may be before it. The table of partitions has this name and "_parts". Default "pawl_outbox".
	Table string
	// MaxPayload is how many bytes a payload has at most: 1 to 16,777,215. Default 1 MiB.
	MaxPayload int
}

// Table is the table of messages in a database. A Table is safe for concurrent use.
type Table struct {
	dialect    dialect.Dialect
	messages   dialect.Table
	parts      dialect.Table
	maxPayload int
}

// New returns the table of messages of a database. Nothing is asked yet. Nil opts are the defaults.
func New(d dialect.Dialect, opts *Options) (*Table, error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if o.Table == "" {
		o.Table = "pawl_outbox"
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = 1 << 20
	}
	if o.MaxPayload < 0 || o.MaxPayload >= maxPayload {
		return nil, fmt.Errorf("outbox: %w: Options.MaxPayload is %d: 1 to %d are allowed", pawl.ErrInvalid, o.MaxPayload, maxPayload-1)
	}
	t := &Table{dialect: d, maxPayload: o.MaxPayload,
		messages: dialect.Table{Name: o.Table, Columns: []dialect.Column{
			{Name: "seq", Type: dialect.Counter, Key: true},
			{Name: "id", Type: dialect.Text},
			{Name: "part", Type: dialect.Integer},
			{Name: "state", Type: dialect.Integer},
			{Name: "attempt", Type: dialect.Integer}, // failed ones that count
			{Name: "topic", Type: dialect.Text},
			{Name: "key", Type: dialect.Text},
			{Name: "headers", Type: dialect.Bytes},
			{Name: "payload", Type: dialect.Bytes},
			{Name: "created", Type: dialect.Integer}, // in seconds since 1970
			{Name: "changed", Type: dialect.Integer}, // as above, the state
			{Name: "reason", Type: dialect.Text},     // of the last failure
			{Name: "repeats", Type: dialect.Integer}, // sendings after the confirm
		}, Indexes: []dialect.Index{{Columns: []string{"id"}, Unique: true}, {Columns: []string{"part", "state", "seq"}}}},
		// The row with the part -1 has the format and the number of partitions.
		parts: dialect.Table{Name: o.Table + "_parts", Columns: []dialect.Column{
			{Name: "part", Type: dialect.Integer, Key: true},
			{Name: "token", Type: dialect.Integer},
			{Name: "beat", Type: dialect.Integer},
		}},
	}
	for _, table := range []dialect.Table{t.messages, t.parts} {
		if _, err := table.Schema(d); err != nil || len(o.Table) > 48 {
			return nil, fmt.Errorf("outbox: %w: Options.Table or dialect: 1 to 48 letters, digits and underscores are allowed: %v", pawl.ErrInvalid, err)
		}
	}
	return t, nil
}

// Schema returns the statements that make the tables if they are missing. Put them into your migrations.
func (t *Table) Schema() []string {
	messages, _ := t.messages.Schema(t.dialect) //nolint:errcheck // New has asked
	parts, _ := t.parts.Schema(t.dialect)       //nolint:errcheck // as above
	all := append(strings.Split(messages, ";\n"), strings.Split(parts, ";\n")...)
	for part := Partitions - 1; part >= -1; part-- { // the format comes last
		token, beat := 0, 0
		if part == -1 {
			token, beat = format, Partitions
		}
		query, _, _ := t.new().Add("INSERT INTO ").Table(t.parts.Name).Add(fmt.Sprintf(" (part, token, beat) SELECT %d, %d, %d", part, token, beat), //nolint:errcheck // as above
			map[dialect.Dialect]string{dialect.MySQL: " FROM DUAL"}[t.dialect], " WHERE NOT EXISTS (SELECT 1 FROM ").Table(t.parts.Name).
			Add(" WHERE part = ", strconv.Itoa(part), ")").Build()
		all = append(all, query)
	}
	return all
}

// update begins an UPDATE of messages that are chosen by a column with a unique index. MariaDB would read a small table without the index, and lock
// every message. Then nobody could enqueue while the transaction is open or in doubt.
func (t *Table) update(s *dialect.Statement, by string) *dialect.Statement {
	s.Add("UPDATE ").Table(t.messages.Name)
	if t.dialect == dialect.MySQL {
		s.Add(" FORCE INDEX (", map[string]string{"seq": "PRIMARY", "id": "id"}[by], ")")
	}
	return s.Add(" SET ")
}

// Migrate makes the tables if they are missing. Several programs may do so at the same time. Tables of
// another format or shape are refused with an error that matches [pawl.ErrMismatch], and are left as they are. Migrate does not
// see that somebody has dropped an index. Without the unique index the table takes an ID twice. A user who may not make tables cannot add a missing
// row, as after a copy of the schema alone. Run the statements of Schema as the owner then.
func (t *Table) Migrate(ctx context.Context, db *sql.DB) error {
	return failed("migrate", dialect.Migrate(ctx, db, t.Schema(), func(ctx context.Context) error { return t.check(ctx, db) }))
}

// Check does what Migrate does, but makes nothing: its error matches [dialect.ErrMissing] if a table is missing.
func (t *Table) Check(ctx context.Context, db *sql.DB) error {
	return failed("check", t.check(ctx, db))
}

func (t *Table) check(ctx context.Context, db *sql.DB) error {
	shape := t.parts.Check(ctx, db, t.dialect)
	if shape == nil {
		shape = t.checkFormat(ctx, db)
	}
	if shape == nil || errors.Is(shape, dialect.ErrMissing) { // Migrate must not make an index of another program's table
		if messages := t.messages.Check(ctx, db, t.dialect); shape == nil || errors.Is(messages, dialect.ErrShape) {
			shape = messages
		}
	}
	if errors.Is(shape, dialect.ErrShape) {
		return fmt.Errorf("%w: %w", pawl.ErrMismatch, shape)
	}
	return shape
}

// checkFormat returns an error unless the tables have the format and the partitions that this version knows.
func (t *Table) checkFormat(ctx context.Context, db *sql.DB) error {
	var is, parts int
	err := t.new().Add("SELECT token, beat FROM ").Table(t.parts.Name).Add(" WHERE part = -1").Scan(ctx, db, &is, &parts)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: the row of table %s with its format", dialect.ErrMissing, t.parts.Name)
	case err != nil:
		return fmt.Errorf("read the format of table %s: %w", t.parts.Name, err)
	case is != format || parts != Partitions:
		return fmt.Errorf("%w: table %s has format %d with %d partitions, and this version of pawl knows format %d with %d", pawl.ErrMismatch, t.parts.Name, is, parts, format, Partitions)
	}
	return nil
}

// Enqueue puts messages into the table, with one INSERT in the caller's transaction, and returns their IDs. Enqueue
// neither begins nor ends the transaction, which may be a pgx.Tx by package pgxtx. The messages are sent if the
// transaction is committed, and only then. A call takes 1 to 1,000 messages; a message out of its bounds is refused
// before anything is sent to the database.
//
// Two transactions keep the order of a key if the second calls Enqueue after the first was committed. A lock on
// the row of the business object does that. After the commit, call [Relay.Wake] to save the wait for the next poll.
func (t *Table) Enqueue(ctx context.Context, tx dialect.DB, messages ...Message) (ids []string, err error) {
	if len(messages) < 1 || len(messages) > maxBatch {
		return nil, fmt.Errorf("outbox: %w: %d messages: 1 to %d are allowed", pawl.ErrInvalid, len(messages), maxBatch)
	}
	s := t.new().Add("INSERT INTO ").Table(t.messages.Name).Add(" (id, part, state, attempt, topic, ").Name("key").
		Add(", headers, payload, created, changed, reason, repeats) VALUES ")
	for i, m := range messages {
		if m.ID == "" {
			m.ID = NewID()
		}
		if err := m.validate(t.maxPayload); err != nil {
			return nil, fmt.Errorf("outbox: message %d: %w", i, err)
		}
		headers, err := json.Marshal(m.Headers)
		if err != nil {
			return nil, fmt.Errorf("outbox: headers: %w", err)
		}
		payload := m.Payload
		if payload == nil {
			payload = []byte{}
		}
		s.Add([]string{"(", ", ("}[min(i, 1)]).Value(m.ID).Add(", ").Value(m.part()).Add(", 0, 0, ").Value(m.Topic).Add(", ").Value(m.Key).
			Add(", ").Value(headers).Add(", ").Value(payload).Add(", ", t.now(), ", ", t.now(), ", '', 0)")
		ids = append(ids, m.ID)
	}
	if _, err := s.Exec(ctx, tx); err != nil {
		return nil, failed("enqueue", err)
	}
	return ids, nil
}

func (t *Table) new() *dialect.Statement { return dialect.New(t.dialect) }

// now is the time of the database in whole seconds.
func (t *Table) now() string { return dialect.Seconds(t.dialect) }

func failed(what string, err error) error {
	if err != nil {
		return fmt.Errorf("outbox: %s: %w", what, err)
	}
	return nil
}
