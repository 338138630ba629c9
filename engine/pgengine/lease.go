package pgengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

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
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() // the pool is asked without it from then on
	return newEngine(ctx, db, pool, pool.Config().ConnConfig, opts)
}

// NewDB is [New] for a database that was opened by the driver of pgx.
func NewDB(ctx context.Context, db *sql.DB, opts *Options) (*Engine, error) {
	config, err := configOf(ctx, db)
	if err != nil {
		return nil, err
	}
	return newEngine(ctx, db, nil, config, opts)
}

func configOf(ctx context.Context, db *sql.DB) (config *pgx.ConnConfig, err error) {
	lent, err := fromDB(db)(ctx)
	switch {
	case errors.Is(err, engine.ErrUnsupported):
		return nil, fmt.Errorf("open: %w", err)
	case err != nil:
		return nil, engine.Unavailable("open", err)
	}
	defer lent.giveBack()
	return lent.Config(), nil
}

func newEngine(ctx context.Context, db *sql.DB, pool *pgxpool.Pool, config *pgx.ConnConfig, opts *Options) (*Engine, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	t := leaseTables{db: db, language: language{cmp.Or(o.Schema, "pawl"), o.Unlogged}}
	if o.Pooled {
		t.args = []any{pgx.QueryExecModeExec}
		config = nil
	}
	if o.Listener != nil {
		config = o.Listener
	}
	if err := t.migrate(ctx); err != nil {
		return nil, err
	}
	e := &Engine{caps: o.Caps()}
	server := sqlengine.Server{
		Dialect: t.language, MinTTL: minTTL, Client: rand.Text(), Args: t.args, Connections: db.Stats().MaxOpenConnections,
		Again: func(err error) bool { return hasCode(err, serializationFailure, deadlock) }, // the transaction was rolled back
		Query: func(ctx context.Context, query string, args []any, row func(func(...any) error) error) error {
			rows, err := db.QueryContext(ctx, query, args...)
			return sqlengine.Each(rows, err, row)
		},
	}
	if pool != nil {
		server.Connections = int(pool.Config().MaxConns)
		server.Query = func(ctx context.Context, query string, args []any, row func(func(...any) error) error) error {
			return ask(pool.Query, ctx, query, args, row)
		}
	}
	if config != nil {
		e.listener = newListener(config.Copy())
		if pool != nil && o.Listener == nil {
			e.listener.prepare, e.listener.ready = pool.Config().BeforeConnect, pool.Config().AfterConnect
		}
		e.listener.attach(&server)
	}
	var err error
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
