package pgengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// Options change where claims are kept in lease mode, and how they are reached.
// The zero value is the default.
type Options struct {
	// Schema is where the tables are. Default "pawl".
	Schema string

	// Unlogged keeps claims and sessions in unlogged tables: no lock waits for the disk. A crash of
	// the server empties them, and so does a promotion of a replica. Then nothing is given out for
	// the longest TTL that was used, so the promise is the same. Values are kept in any case. A
	// schema has one kind of table for good. Logged tables wait for the disk whatever
	// synchronous_commit the user has. A server without fsync is refused.
	Unlogged bool

	// Pooled says that the connections go through a pooler which gives each
	// transaction another connection of the server, as pgbouncer does in its mode
	// transaction. Then no statement is prepared. Without a Listener, waiters poll, by one
	// query for all of a process. An engine behind an undeclared pooler polls, too,
	// because no message arrives.
	Pooled bool

	// Listener is how to reach the server itself. An Engine has one such connection, on which it is
	// told of its grants and renews its sessions. The default is the server of the pool, if the
	// pool is not Pooled.
	Listener *pgx.ConnConfig
}

// Caps are the promises of an engine with these options.
func (o Options) Caps() engine.Caps {
	c := engine.Caps{
		Name: "postgres", Token: engine.TokenClock, Wake: engine.WakeHandoff, Expiry: engine.ExpiryWall, Forgets: o.Unlogged,
		Failover: engine.FailoverLoses, Processes: engine.ReachNetwork, EnterTrip: 1, LeaveTrip: 1, MinTTL: minTTL,
	}
	if o.Pooled && o.Listener == nil {
		c.Wake = engine.WakePoll
	}
	return c
}

// leases has the methods of an Engine, and no name that users see.
type leases = sqlengine.Engine

// Engine is the lease mode in one database. Create it with [New] or [NewDB].
type Engine struct {
	*leases
	caps     engine.Caps
	listener *listener // nil: nobody is told
}

var _ engine.Engine = (*Engine)(nil)

const minTTL = 100 * time.Millisecond

// New returns the engine of a pool, which stays the caller's. Nil opts are the
// defaults. New creates the tables where they are missing, if the user may.
//
// The pool has 2 connections or more. Requests under way stay below that, and sessions are renewed
// on the connection of the listener. So a request that hangs keeps no heartbeat from the server.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Engine, error) {
	server := sqlengine.Server{
		Connections: int(pool.Config().MaxConns),
		Query: func(ctx context.Context, query string, args []any, row func(func(...any) error) error) error {
			return ask(pool.Query, ctx, query, args, row)
		},
	}
	return newEngine(ctx, fromPool(pool), server, pool, opts)
}

// NewDB is [New] for a database that was opened by the driver of pgx.
func NewDB(ctx context.Context, db *sql.DB, opts *Options) (*Engine, error) {
	server := sqlengine.Server{
		Connections: db.Stats().MaxOpenConnections,
		Query: func(ctx context.Context, query string, args []any, row func(func(...any) error) error) error {
			rows, err := db.QueryContext(ctx, query, args...)
			return sqlengine.Each(rows, err, row)
		},
	}
	return newEngine(ctx, fromDB(db), server, nil, opts)
}

func newEngine(ctx context.Context, lend lender, server sqlengine.Server, pool *pgxpool.Pool, opts *Options) (*Engine, error) {
	o := cmp.Or(opts, new(Options))
	l := language{cmp.Or(o.Schema, "pawl"), o.Unlogged}
	if err := l.leaseTables().migrate(ctx, lend); err != nil {
		return nil, err
	}
	server.Dialect, server.MinTTL, server.Client = l, minTTL, rand.Text()
	server.Again = func(err error) bool { return hasCode(err, serializationFailure, deadlock) } // the transaction was rolled back
	if o.Pooled {
		server.Args = []any{pgx.QueryExecModeExec}
	}
	e := &Engine{caps: o.Caps()}
	var err error
	switch {
	case o.Listener != nil:
		e.listener = newListener(o.Listener.Copy())
	case o.Pooled: // nobody is told
	case pool != nil:
		e.listener = newListener(pool.Config().ConnConfig)
		e.listener.prepare, e.listener.ready = pool.Config().BeforeConnect, pool.Config().AfterConnect
	default:
		e.listener, err = with(ctx, lend, func(conn *pgx.Conn) (*listener, error) { return newListener(conn.Config()), nil })
	}
	if err != nil {
		return nil, engine.Unavailable("open", err)
	}
	if e.listener != nil {
		e.listener.attach(&server)
	}
	if e.leases, err = sqlengine.NewServer(server); err != nil {
		return nil, err
	}
	if e.listener != nil {
		e.listener.receive = func(m sqlengine.Message) bool { return sqlengine.Receive(e.leases, m) }
		e.listener.ask = func() { sqlengine.Ask(e.leases) }
	}
	return e, nil
}

// ask makes a query and hands over each row.
func ask(query func(context.Context, string, ...any) (pgx.Rows, error), ctx context.Context, text string, args []any, row func(func(...any) error) error) error {
	rows, _ := query(ctx, text, args...) //nolint:errcheck // the rows have its error
	_, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (struct{}, error) { return struct{}{}, row(r.Scan) })
	return err
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps { return e.caps }

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	if e.listener != nil {
		e.listener.stop()
	}
	return e.leases.Close()
}
