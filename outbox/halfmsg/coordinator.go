package halfmsg

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

const mostBytes = 16_000_000 // of the messages of a half message

// Options are the settings of [New]. All times are whole seconds, and fractions are rounded up.
type Options struct {
	// Table is the name of the table of half messages: up to 63 ASCII letters, digits and underscores. A schema and a dot
	// may be before it. Default "pawl_half".
	Table string
	// AskAfter is how long after Prepare the coordinator asks for the first time: 1 s to 24 h. Default 10 s. The wait
	// doubles with each question.
	AskAfter time.Duration
	// MaxWait is the longest wait between two questions: AskAfter to 24 h. Default 10 min, or AskAfter if that is longer.
	MaxWait time.Duration
	// Timeout bounds one question, and one visit of Run to the database: 1 s to 1 h. Default 10 s.
	Timeout time.Duration
	// Retention is how long half messages stay in the table after they were submitted or aborted: 1 min to 10 years. Default 7 days.
	Retention time.Duration
	// Wake, when set, is called after each submission, see [outbox.Relay.Wake]. Wake must not block.
	Wake func()
	// OnError, when set, gets each error that Run overcomes by itself. Of the errors of the deleting of old half messages, OnError gets at
	// most one for each cleaning, which begins each minute. OnError must not block, and must be safe for concurrent use.
	OnError func(error)
}

// Coordinator keeps half messages in a table beside a table of messages. Any number of processes may have
// one. A Coordinator is safe for concurrent use.
type Coordinator struct {
	dialect dialect.Dialect
	box     *outbox.Table
	table   dialect.Table
	db      *sql.DB
	opts    Options
}

// New returns the coordinator of a database, which has the table box of messages, too. Nothing is asked yet. Nil opts
// are the defaults.
func New(d dialect.Dialect, db *sql.DB, box *outbox.Table, opts *Options) (*Coordinator, error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if o.Table == "" {
		o.Table = "pawl_half"
	}
	const day = 24 * time.Hour
	err := errors.Join(span("Options.AskAfter", &o.AskAfter, 10*time.Second, time.Second, day), span("Options.MaxWait", &o.MaxWait, max(10*time.Minute, o.AskAfter), o.AskAfter, day),
		span("Options.Timeout", &o.Timeout, 10*time.Second, time.Second, time.Hour), span("Options.Retention", &o.Retention, 7*day, time.Minute, 3653*day))
	if db == nil || box == nil {
		err = errors.Join(err, fmt.Errorf("%w: db or box is nil", pawl.ErrInvalid))
	}
	c := &Coordinator{dialect: d, box: box, db: db, opts: o, table: dialect.Table{Name: o.Table, Columns: []dialect.Column{
		{Name: "id", Type: dialect.Text, Key: true},
		{Name: "producer", Type: dialect.Text},
		{Name: "state", Type: dialect.Integer},
		{Name: "asks", Type: dialect.Integer},
		{Name: "due", Type: dialect.Integer},     // the next question, in seconds since 1970
		{Name: "created", Type: dialect.Integer}, // as above
		{Name: "changed", Type: dialect.Integer}, // as above, the state
		{Name: "messages", Type: dialect.Bytes},  // a JSON array
		{Name: "reason", Type: dialect.Text},     // the error of the last question
	}, Indexes: []dialect.Index{{Columns: []string{"state", "due"}}}}}
	if _, bad := c.table.Schema(d); bad != nil {
		err = errors.Join(err, fmt.Errorf("%w: Options.Table or dialect: %w", pawl.ErrInvalid, bad))
	}
	if err != nil {
		return nil, failed("coordinator", err)
	}
	return c, nil
}

// Schema returns the statements that make the table if it is missing. Put them into your migrations.
func (c *Coordinator) Schema() []string {
	s, _ := c.table.Schema(c.dialect) //nolint:errcheck // New has asked
	return strings.Split(s, ";\n")
}

// Migrate makes the table if it is missing. A table of another shape is refused with an error that matches [pawl.ErrMismatch]. A table
// that another program has made may lack the index, as after a crash between two statements of Schema. Then run that statement by hand.
func (c *Coordinator) Migrate(ctx context.Context) error {
	return failed("migrate", migrate(ctx, c.db, c.dialect, c.table, c.Schema()))
}

func (c *Coordinator) new() *dialect.Statement { return dialect.New(c.dialect) }

func (c *Coordinator) now() string { return dialect.Seconds(c.dialect) }

// Prepare keeps messages of a producer and returns the ID of the half message. Producer is the name by which the coordinator
// asks back: 1 to 255 bytes. Messages are bounded as in [outbox.Table.Enqueue], and together to 16,000,000 bytes as
// JSON. A message without an ID gets one.
//
// An ID that the table of messages has is refused, as an ID twice in one call is. Two half messages that are prepared may still have the
// same ID. Then only one of them can be submitted: the other one stays prepared, and an operator aborts it, see [Coordinator.Undecided].
func (c *Coordinator) Prepare(ctx context.Context, producer string, messages ...outbox.Message) (id string, err error) {
	if len(producer) < 1 || len(producer) > 255 {
		return "", failed("prepare", fmt.Errorf("%w: producer has %d bytes: 1 to 255 are allowed", pawl.ErrInvalid, len(producer)))
	}
	messages = append([]outbox.Message(nil), messages...)
	var named []string
	for i := range messages {
		if messages[i].ID == "" {
			messages[i].ID = outbox.NewID()
		} else {
			named = append(named, messages[i].ID)
		}
	}
	if err := c.box.Validate(messages...); err != nil {
		return "", failed("prepare", err)
	}
	if taken, err := c.box.Known(ctx, c.db, named...); err != nil {
		return "", failed("prepare", err)
	} else if len(taken) > 0 {
		return "", failed("prepare", fmt.Errorf("%w: the outbox has a message %q already", pawl.ErrInvalid, taken[0]))
	}
	data, err := json.Marshal(messages)
	if err == nil && len(data) > mostBytes {
		err = fmt.Errorf("%w: the messages have %d bytes as JSON: up to %d are allowed", pawl.ErrInvalid, len(data), mostBytes)
	}
	if err != nil {
		return "", failed("prepare", err)
	}
	id = outbox.NewID()
	_, err = c.new().Add("INSERT INTO ").Table(c.table.Name).Add(" (id, producer, state, asks, due, created, changed, messages, reason) VALUES (").Value(id).Add(", ").
		Value(producer).Add(", 0, 0, ", c.now(), " + ").Value(seconds(c.opts.AskAfter)).Add(", ", c.now(), ", ", c.now(), ", ").Value(data).Add(", '')").Exec(ctx, c.db)
	return id, failed("prepare", err)
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Submit puts the messages of a half message into the outbox, once. Call Submit after the commit of the producer's transaction. A repeated
// submission is success. Errors match [ErrAborted] or [ErrUnknown]. After every other error call Submit
// again, or leave it: the coordinator asks back.
func (c *Coordinator) Submit(ctx context.Context, id string) error {
	err := c.decide(ctx, id, Submitted)
	if err == nil && c.opts.Wake != nil {
		c.opts.Wake()
	}
	return failed("submit", err)
}

// Abort makes sure that the messages of a half message are never sent. Call Abort only if the producer's transaction is
// rolled back for certain, and not after a commit whose outcome is unknown. A repeat is success. Errors match
// [ErrSubmitted] or [ErrUnknown].
func (c *Coordinator) Abort(ctx context.Context, id string) error {
	return failed("abort", c.decide(ctx, id, Aborted))
}

// decide moves a prepared half message to a state by compare-and-set, or finds that it was decided before.
func (c *Coordinator) decide(ctx context.Context, id string, want State) error {
	return dialect.Repeat(ctx, dialect.Again, func() error { return c.decideOnce(ctx, id, want) })
}

func (c *Coordinator) decideOnce(ctx context.Context, id string, want State) error {
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	result, err := c.new().Add("UPDATE ").Table(c.table.Name).Add(" SET state = ").Value(int(want)).Add(", changed = ", c.now(), " WHERE state = 0 AND id = ").Value(id).Exec(ctx, tx)
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return err
	}
	var is State
	var data []byte
	err = c.new().Add("SELECT state, messages FROM ").Table(c.table.Name).Add(" WHERE id = ").Value(id).Scan(ctx, tx, &is, &data)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrUnknown
	}
	if err != nil {
		return err
	}
	if n == 0 && is != want {
		return cmp.Or(is.to(want), errors.New("the half message has changed between two statements"))
	}
	if n == 0 {
		return nil
	}
	if want == Submitted {
		var messages []outbox.Message
		if err := json.Unmarshal(data, &messages); err != nil {
			return err
		}
		if _, err := c.box.Enqueue(ctx, tx, messages...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Entry is a half message in the table.
type Entry struct {
	ID       string
	Producer string
	State    State
	Asks     int       // questions to the producer
	Time     time.Time // of Prepare, by the clock of the database, in whole seconds
	Changed  time.Time // when the state changed, as above
	Reason   string    // why the last question had no answer, cut to 500 bytes
	age      time.Duration
}

func (c *Coordinator) entries() *dialect.Statement {
	return c.new().Add("SELECT id, producer, state, asks, created, changed, reason, ", c.now(), " - created FROM ").Table(c.table.Name).Add(" WHERE ")
}

func scan(row interface{ Scan(...any) error }) (e Entry, err error) {
	var created, changed, age int64
	err = row.Scan(&e.ID, &e.Producer, &e.State, &e.Asks, &created, &changed, &e.Reason, &age)
	e.Time, e.Changed, e.age = time.Unix(created, 0), time.Unix(changed, 0), time.Duration(age)*time.Second
	return e, err
}

// Status returns a half message. The error matches [ErrUnknown] if there is none.
func (c *Coordinator) Status(ctx context.Context, id string) (Entry, error) {
	query, args, err := c.entries().Add("id = ").Value(id).Build()
	if err != nil {
		return Entry{}, failed("status", err)
	}
	e, err := scan(c.db.QueryRowContext(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrUnknown
	}
	return e, failed("status", err)
}

// Undecided returns prepared half messages that the producer was asked about, the least often asked first, at most limit of them. Limit
// is 1 to 1,000.
func (c *Coordinator) Undecided(ctx context.Context, limit int) ([]Entry, error) {
	if limit < 1 || limit > 1000 {
		return nil, failed("undecided", fmt.Errorf("%w: limit is %d: 1 to 1000 are allowed", pawl.ErrInvalid, limit))
	}
	all, err := c.list(ctx, c.entries().Add("state = 0 AND asks > 0 ORDER BY asks, id LIMIT ").Value(limit))
	return all, failed("undecided", err)
}

func (c *Coordinator) list(ctx context.Context, s *dialect.Statement) (all []Entry, err error) {
	query, args, err := s.Build()
	if err != nil {
		return nil, err
	}
	rows, err := c.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		e, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}
