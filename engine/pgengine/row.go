package pgengine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
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

// Row is the row mode in one database. Create it with [NewRow].
type Row struct{ *rowengine.Engine }

var _ engine.Engine = Row{}

// Caps implements [engine.Engine].
func (Row) Caps() engine.Caps {
	return rowengine.Caps("postgres row", minTTL)
}

var rowSchemas = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// NewRow returns the row mode on a pool, which stays the caller's. Nil opts are
// the defaults. It creates the tables where they are missing, if the user may.
//
// Once the tables are there a user needs USAGE of the schema, SELECT, INSERT,
// UPDATE and DELETE on row_names, row_claims, row_boot and row_meta, and USAGE and
// UPDATE on the sequence row_tokens.
//
// Each lock that is held or waited for takes a connection of the pool for
// itself, so MaxConns bounds how many there can be. Who finds none free waits
// for one until its context ends. What holds needs no other connection to be
// renewed or released; operators, and who looks after a connection that broke,
// do need one. A pooler before the server is
// refused.
func NewRow(ctx context.Context, pool *pgxpool.Pool, opts *RowOptions) (Row, error) {
	var o RowOptions
	if opts != nil {
		o = *opts
	}
	schema := cmp.Or(o.Schema, "pawl")
	if !rowSchemas.MatchString(schema) {
		return Row{}, fmt.Errorf("open: %w: Schema %q: lower-case letters, digits and underscores are allowed", engine.ErrUnsupported, schema)
	}
	store := &rowStore{pool, rowLanguage(schema), "pawl row mode " + digest(schema) + " "}
	if err := store.migrate(ctx); err != nil {
		return Row{}, err
	}
	return Row{rowengine.New(store, Row{}.Caps())}, nil
}

// rowStore implements [rowengine.Store].
type rowStore struct {
	pool *pgxpool.Pool
	sql  rowStatements
	key  string // begins the name of what is remembered with a connection
}

// Check implements [rowengine.Store].
func (s *rowStore) Check(ctx context.Context, ttl time.Duration) error {
	_, err := s.pool.Exec(ctx, s.sql.ttl, ttl.Microseconds())
	return err
}

// tag begins the application name of a connection as long as it is used for
// the claim: the rest is the token. It is how others see whether the claim of
// this connection in the table of claims is the one of today, and granted.
func tag(claim string) string { return "pawl " + digest(claim) + " " }

// digest stands for a text in what the server cuts after 63 bytes.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// rowConn implements [rowengine.Conn].
type rowConn struct {
	*pgxpool.Conn
	store *rowStore
	ready time.Time // before it nothing is given out
	trim  int64     // names up to this one are to be looked at when the lock is free
}

// Connect prepares a connection when it is used for the first time.
func (s *rowStore) Connect(ctx context.Context) (rowengine.Conn, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	c := &rowConn{Conn: conn, store: s}
	if ready, known := c.pg().CustomData()[s.key]; known {
		c.ready = ready.(time.Time)
		return c, nil
	}
	if err := c.prepare(ctx); err != nil {
		c.Destroy()
		return nil, err
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
	if _, again := c.pg().CustomData()[c.store.key]; !again {
		for name, text := range c.store.sql.prepared {
			if _, err := c.pg().Prepare(ctx, c.store.key+name, text, nil); err != nil {
				return err
			}
		}
	}
	c.ready = time.Now().Add(time.Duration(grace) * time.Microsecond)
	c.pg().CustomData()[c.store.key] = c.ready
	return nil
}

func (c *rowConn) pg() *pgconn.PgConn { return c.Conn.Conn().PgConn() }

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

// Enter implements [rowengine.Conn]: the claim is shown in a transaction of its
// own, and the row is locked in the next one, all in one round trip.
func (c *rowConn) Enter(ctx context.Context, r *rowengine.Request) (rowengine.Answer, error) {
	tag := tag(r.ID)
	for range 5 {
		if c.pg().TxStatus() != 'I' {
			if err := c.exec(ctx, "ROLLBACK"); err != nil {
				return rowengine.Answer{}, err
			}
		}
		got, err := c.run(ctx, step{name: "begin"},
			step{"claim", []string{r.Resource, tag, r.ID, r.Owner, r.Session, r.Label, strconv.FormatBool(r.Barging)}},
			step{name: "next"}, step{"try", []string{r.Resource, tag, milliseconds(r.TTL)}})
		switch {
		case err != nil:
			return rowengine.Answer{}, err
		case got[1].CommandTag.RowsAffected() == 0: // somebody took the row of this connection for that of a dead one
			err = c.exec(ctx, "ROLLBACK")
			if err == nil {
				err = c.prepare(ctx)
			}
		case string(got[3].Rows[0][3]) == "t":
			err = c.add(ctx, r.Resource)
		default:
			return c.answer(got[3])
		}
		if err != nil {
			return rowengine.Answer{}, err
		}
	}
	return rowengine.Answer{}, errors.New("the name goes away again and again")
}

// answer reads what came of an attempt to lock.
func (c *rowConn) answer(got *pgconn.Result) (rowengine.Answer, error) {
	token, err := strconv.ParseUint(string(got.Rows[0][2]), 10, 64)
	return rowengine.Answer{Token: fence.Token(token), Grace: time.Until(c.ready)}, err
}

// add makes a name that is not there.
func (c *rowConn) add(ctx context.Context, name string) error {
	if err := c.exec(ctx, "ROLLBACK"); err != nil {
		return err
	}
	var id int64
	err := c.QueryRow(ctx, c.store.sql.add, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // somebody did it just now
	}
	if id%rowengine.TrimEvery == 0 {
		c.trim = id - rowengine.KeptNames
	}
	return err
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Wait implements [rowengine.Conn]. The server ends the wait after a TTL, for it
// would not notice before that the client is dead.
func (c *rowConn) Wait(ctx context.Context, r *rowengine.Request) (rowengine.Answer, error) {
	got, err := c.run(ctx, step{"limits", []string{milliseconds(r.TTL)}},
		step{"wait", []string{r.Resource, tag(r.ID), milliseconds(r.TTL)}})
	switch {
	case err == nil:
		return c.answer(got[1])
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
		// What one cannot clean up another will.
		c.Conn.Exec(ctx, c.store.sql.trim, c.trim, 2*rowengine.TrimEvery) //nolint:errcheck // the lock is free
	}
	if err != nil {
		c.Destroy()
		return ended(err)
	}
	c.Release() // which closes it if a transaction is open
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

// Destroy implements [rowengine.Conn]. It does not wait for the server.
func (c *rowConn) Destroy() {
	conn := c.Hijack()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	conn.Close(ctx) //nolint:errcheck // it may be broken
}

// List implements [rowengine.Store].
func (s *rowStore) List(ctx context.Context, prefix string) ([]string, error) {
	rows, err := s.pool.Query(ctx, s.sql.list, prefix)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Show implements [rowengine.Store].
func (s *rowStore) Show(ctx context.Context, name string) (r engine.Resource, err error) {
	rows, err := s.pool.Query(ctx, s.sql.look, name)
	if err != nil {
		return r, err
	}
	r.Claims, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (engine.ClaimInfo, error) {
		var c engine.ClaimInfo
		var token, age int64
		err := row.Scan(&c.ID, &c.Owner, &c.Session, &c.Label, &r.Barging, &token, &age)
		c.Token, c.Age = fence.Token(token), time.Duration(age)*time.Microsecond
		return c, err
	})
	return r, err
}

// Break implements [rowengine.Store].
func (s *rowStore) Break(ctx context.Context, resource, claim string) (bool, error) {
	rows, err := s.pool.Query(ctx, s.sql.end, resource, claim)
	if err != nil {
		return false, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	return len(all) > 0, err
}
