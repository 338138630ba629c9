package pgengine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/rowengine"
)

// RowOptions change where the names of row mode are kept. The zero value is the
// default.
type RowOptions struct {
	// Schema is where the tables are: lower-case letters, digits and
	// underscores. Default "pawl".
	Schema string
}

// rows has the methods of a Row, and no name that users see.
type rows = rowengine.Engine

// Row is the row mode in one database. Create it with [NewRow].
type Row struct{ *rows }

var _ engine.Engine = Row{}

// Caps implements [engine.Engine].
func (Row) Caps() engine.Caps { return rowengine.Caps("postgres row", minTTL) }

var rowSchemas = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// NewRow returns the row mode on a pool, which stays the caller's. Nil opts are
// the defaults. NewRow creates the tables where they are missing, if the user may.
//
// Once the tables are there a user needs USAGE of the schema. The user also needs SELECT, INSERT, UPDATE
// and DELETE on row_names, row_claims, row_boot and row_meta, and USAGE and UPDATE on the sequence
// row_tokens. To see how old the claims of another user are takes pg_read_all_stats, to break them
// pg_signal_backend.
//
// Each lock that is held or waited for takes a connection of the pool for
// itself, so MaxConns bounds how many there can be. A claim above that is refused,
// as by a store that is away: TryLock fails at once, Lock tries for a TTL. A pool that
// others use, too, may have no free connection before: then a claim waits for one. A holder
// needs no other connection to renew or release; operators, and a look after a broken
// connection, do need one. A pooler before the server is refused.
func NewRow(ctx context.Context, pool *pgxpool.Pool, opts *RowOptions) (Row, error) {
	return newRow(ctx, fromPool(pool), int(pool.Config().MaxConns), opts)
}

// NewRowDB is [NewRow] for a database that was opened by the driver of pgx, with
// SetMaxOpenConns in place of MaxConns.
func NewRowDB(ctx context.Context, db *sql.DB, opts *RowOptions) (Row, error) {
	return newRow(ctx, fromDB(db), db.Stats().MaxOpenConnections, opts)
}

func newRow(ctx context.Context, lend lender, connections int, opts *RowOptions) (Row, error) {
	schema := cmp.Or(cmp.Or(opts, new(RowOptions)).Schema, "pawl")
	if !rowSchemas.MatchString(schema) {
		return Row{}, fmt.Errorf("open: %w: Schema %q: lower-case letters, digits and underscores are allowed", engine.ErrUnsupported, schema)
	}
	store := &rowStore{lend, rowLanguage(schema), "pawl row mode " + digest(schema) + " "}
	if err := store.tables().migrate(ctx, lend); err != nil {
		return Row{}, err
	}
	return Row{rowengine.New(store, Row{}.Caps(), connections)}, nil
}

// rowStore implements [rowengine.Store].
type rowStore struct {
	lend lender
	sql  rowStatements
	key  string // begins the name of the memory of a connection
}

// Check implements [rowengine.Store].
func (s *rowStore) Check(ctx context.Context, ttl time.Duration) error {
	_, err := with(ctx, s.lend, func(conn *pgx.Conn) (pgconn.CommandTag, error) { return conn.Exec(ctx, s.sql.ttl, ttl.Microseconds()) })
	return err
}

// digest stands for a text in what the server cuts after 63 bytes.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// rowText is the row of a connection: the texts that are the same for most claims that are made
// there. The rest, which are numbers, is in the application name.
type rowText struct {
	claim   string // of its id all but the number
	owner   string // "": the claim itself
	session string
	label   string
	barging bool
}

// describe splits a claim. The ids of most are a text and a number.
func describe(r *rowengine.Request) (text rowText, number string) {
	text = rowText{r.ID, r.Owner, r.Session, r.Label, r.Barging}
	if r.Owner == r.ID {
		text.owner = ""
	}
	dot := strings.LastIndexByte(r.ID, '.') + 1
	if number = r.ID[dot:]; len(number) > 10 || strings.Trim(number, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return text, ""
	}
	text.claim = r.ID[:dot]
	return text, number
}

// rowMemory is kept with a connection from one claim to the next.
type rowMemory struct {
	ready   time.Time // before it nothing is given out
	text    rowText   // what its row says
	tag     string    // begins the application name as long as that counts
	written time.Time
}

// rowTrusted is for how long a row is believed to be there: somebody may delete
// it.
const rowTrusted = 5 * time.Second

// rowConn implements [rowengine.Conn].
type rowConn struct {
	lent
	store  *rowStore
	memory *rowMemory
	trim   int64 // names up to this one are to be looked at when the lock is free
}

// Connect prepares a connection when it is used for the first time.
func (s *rowStore) Connect(ctx context.Context) (rowengine.Conn, error) {
	lent, err := s.lend(ctx)
	if err != nil {
		return nil, err
	}
	c := &rowConn{lent: lent, store: s}
	if c.memory, _ = c.pg().CustomData()[s.key].(*rowMemory); c.memory == nil {
		if err := c.prepare(ctx); err != nil {
			c.Destroy()
			return nil, err
		}
	}
	return c, nil
}

// prepare makes the row in which the claims of this connection are shown, and
// finds out when the server has run for long enough.
func (c *rowConn) prepare(ctx context.Context) error {
	var grace int64
	batch := &pgx.Batch{}
	batch.Queue(c.store.sql.boot)
	batch.Queue(c.store.sql.grace).QueryRow(func(row pgx.Row) error { return row.Scan(&grace) })
	batch.Queue(c.store.sql.show)
	batch.Queue(c.store.sql.sweep)
	if err := c.Conn.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if c.memory == nil {
		for name, text := range c.store.sql.prepared {
			if _, err := c.pg().Prepare(ctx, c.store.key+name, text, nil); err != nil {
				return err
			}
		}
	}
	c.memory = &rowMemory{ready: time.Now().Add(time.Duration(grace) * time.Microsecond)}
	c.pg().CustomData()[c.store.key] = c.memory
	return nil
}

func (c *rowConn) pg() *pgconn.PgConn { return c.Conn.PgConn() }

func (c *rowConn) exec(ctx context.Context, query string) error {
	return c.pg().Exec(ctx, query).Close()
}

// step is a prepared statement with its parameters.
type step struct {
	name string
	args []string
}

// run takes steps in one round trip.
func (c *rowConn) run(ctx context.Context, steps ...step) (results []*pgconn.Result, err error) {
	p := c.pg().StartPipeline(ctx)
	for _, s := range steps {
		args := make([][]byte, len(s.args))
		for i, arg := range s.args {
			args[i] = []byte(arg)
		}
		p.SendQueryPrepared(c.store.key+s.name, args, nil, nil)
	}
	err = p.Sync()
	for range steps {
		if err != nil {
			break
		}
		var got any
		if got, err = p.GetResults(); err != nil {
			break
		}
		if reader, ok := got.(*pgconn.ResultReader); ok {
			result := reader.Read()
			results, err = append(results, result), result.Err
		}
	}
	return results, errors.Join(err, p.Close())
}

// Enter implements [rowengine.Conn] in one round trip. If the row of this
// connection says something else, that is changed and committed before.
func (c *rowConn) Enter(ctx context.Context, r *rowengine.Request) (rowengine.Answer, error) {
	text, number := describe(r)
	for range 5 {
		if c.pg().TxStatus() != 'I' {
			if err := c.exec(ctx, "ROLLBACK"); err != nil {
				return rowengine.Answer{}, err
			}
		}
		steps := append(make([]step, 0, 4), step{name: "begin"})
		known := c.memory.text == text && time.Since(c.memory.written) < rowTrusted
		if !known {
			steps = append(steps, c.write(text), step{name: "next"})
		}
		got, err := c.run(ctx, append(steps, c.lock("try", r, number))...)
		switch {
		case err != nil:
			return rowengine.Answer{}, err
		case !known && got[1].CommandTag.RowsAffected() == 0: // it was deleted
			err = c.exec(ctx, "ROLLBACK")
			if err == nil {
				err = c.prepare(ctx)
			}
		case len(got[len(got)-1].Rows) > 0:
			return c.answer(got[len(got)-1])
		default:
			got, err = c.run(ctx, c.lock("queue", r, number))
			if err == nil && len(got[0].Rows) > 0 {
				return rowengine.Answer{Grace: time.Until(c.memory.ready)}, nil
			}
			if err == nil {
				err = c.add(ctx, r.Resource)
			}
		}
		if err != nil {
			return rowengine.Answer{}, err
		}
	}
	return rowengine.Answer{}, errors.New("the name goes away again and again")
}

// write makes the row of this connection say something. From now on its tag is
// another one, which no application name has that was set for another text.
func (c *rowConn) write(text rowText) step {
	args := []string{"", text.claim, text.owner, text.session, text.label, strconv.FormatBool(text.barging)}
	c.memory.tag = "pawl " + digest(fmt.Sprintf("%s%q", c.store.key, args)) + " "
	c.memory.text, c.memory.written = text, time.Now()
	args[0] = c.memory.tag
	return step{"claim", args}
}

// lock is a step that asks for the lock, or looks at it.
func (c *rowConn) lock(name string, r *rowengine.Request, number string) step {
	return step{name, []string{r.Resource, c.memory.tag, " " + number, strconv.FormatInt(r.TTL.Milliseconds(), 10)}}
}

// answer reads the token from the application name, which a connection that got the lock has now.
func (c *rowConn) answer(got *pgconn.Result) (a rowengine.Answer, err error) {
	a.Grace = time.Until(c.memory.ready)
	if len(got.Rows) > 0 {
		token, _, _ := strings.Cut(string(got.Rows[0][0][len(c.memory.tag):]), " ")
		a.Token, err = fence.ParseToken(token)
	}
	return a, err
}

// add makes a name that is not there, unless somebody else just did.
func (c *rowConn) add(ctx context.Context, name string) error {
	got, err := c.run(ctx, step{name: "rollback"}, step{"add", []string{name}})
	if err != nil || len(got[1].Rows) == 0 {
		return err
	}
	id, err := strconv.ParseInt(string(got[1].Rows[0][0]), 10, 64)
	if id%rowengine.TrimEvery == 0 {
		c.trim = id - rowengine.KeptNames
	}
	return err
}

// Wait implements [rowengine.Conn]. The server ends the wait after a TTL, because it would not
// notice before that the client is dead.
func (c *rowConn) Wait(ctx context.Context, r *rowengine.Request) (rowengine.Answer, error) {
	_, number := describe(r)
	got, err := c.run(ctx, c.lock("wait", r, number))
	switch {
	case err == nil:
		return c.answer(got[0])
	case ctx.Err() != nil:
		return rowengine.Answer{}, err
	case hasCode(err, lockTimedOut):
		return rowengine.Answer{}, nil
	case hasCode(err, queryCanceled):
		return rowengine.Answer{}, rowengine.ErrBroken
	}
	return rowengine.Answer{}, err
}

// Ping implements [rowengine.Conn].
func (c *rowConn) Ping(ctx context.Context) error {
	err := c.pg().Ping(ctx)
	if err == nil && c.pg().TxStatus() != 'T' {
		err = errors.New("the transaction is over")
	}
	return err
}

// Alive implements [rowengine.Conn].
func (c *rowConn) Alive() bool { return !c.pg().IsClosed() && rowengine.Silent(c.pg().Conn()) }

// Free implements [rowengine.Conn].
func (c *rowConn) Free(ctx context.Context) error {
	err := c.lastWords()
	if err == nil {
		err = c.exec(ctx, "COMMIT")
	}
	if err == nil && c.trim > 0 {
		// Another client cleans up the rest.
		c.Conn.Exec(ctx, c.store.sql.trim, c.trim, 2*rowengine.TrimEvery) //nolint:errcheck // the lock is free
	}
	if err != nil {
		c.Destroy()
		return ended(err)
	}
	c.giveBack() // which closes it if a transaction is open
	return nil
}

// lastWords returns the error that the server has sent unasked, if it has.
func (c *rowConn) lastWords() error {
	if c.Alive() {
		return nil
	}
	return c.pg().CheckConn() //nolint:staticcheck // Ping would write to who may have gone, and lose what it said
}

// ended says of an error with which the server closed the connection that it
// ended the transaction.
func ended(err error) error {
	var said *pgconn.PgError
	if errors.As(err, &said) && said.SeverityUnlocalized == "FATAL" {
		return fmt.Errorf("%w: %w", rowengine.ErrEnded, err)
	}
	return err
}

// Destroy implements [rowengine.Conn]. Destroy does not wait for the server.
func (c *rowConn) Destroy() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.Close(ctx) //nolint:errcheck // it may be broken
	c.takeOut()
}

// List implements [rowengine.Store].
func (s *rowStore) List(ctx context.Context, prefix string) ([]string, error) {
	return query(ctx, s, pgx.RowTo[string], s.sql.list, prefix)
}

// query asks for rows.
func query[T any](ctx context.Context, s *rowStore, to pgx.RowToFunc[T], text string, args ...any) ([]T, error) {
	return with(ctx, s.lend, func(conn *pgx.Conn) ([]T, error) {
		rows, _ := conn.Query(ctx, text, args...) //nolint:errcheck // the rows have its error
		return pgx.CollectRows(rows, to)
	})
}

// Show implements [rowengine.Store].
func (s *rowStore) Show(ctx context.Context, name string) (r engine.Resource, err error) {
	r.Claims, err = query(ctx, s, func(row pgx.CollectableRow) (engine.ClaimInfo, error) {
		c := engine.ClaimInfo{Held: engine.Unknown, Left: engine.Unknown}
		var token, age int64
		err := row.Scan(&c.ID, &c.Owner, &c.Session, &c.Label, &r.Barging, &token, &age)
		c.Token, c.Age = fence.Token(token), time.Duration(age)*time.Microsecond
		return c, err
	}, s.sql.look, name)
	return r, err
}

// Grace implements [rowengine.Store].
func (s *rowStore) Grace(ctx context.Context) (left time.Duration, err error) {
	return with(ctx, s.lend, func(conn *pgx.Conn) (time.Duration, error) {
		err := conn.QueryRow(ctx, s.sql.grace).Scan((*int64)(&left))
		return left * time.Microsecond, err
	})
}

// Break implements [rowengine.Store].
func (s *rowStore) Break(ctx context.Context, resource, claim string, gently bool) (bool, error) {
	all, err := query(ctx, s, pgx.RowTo[bool], s.sql.end, resource, claim, gently)
	return len(all) > 0, err
}
