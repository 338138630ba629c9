package mysqlengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"regexp"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sqlengine"
	"github.com/pawl-go/pawl/internal/turn"
)

// Options change where claims are kept in lease mode. The zero value is the
// default.
type Options struct {
	// Prefix begins the name of every table and procedure: letters, digits and
	// underscores. Default "pawl_".
	Prefix string
}

// leases has the methods of an Engine, and no name that users see.
type leases = sqlengine.Engine

// Engine is the lease mode in one database. Create it with [New].
type Engine struct {
	*leases
	lanes *lanes
}

var _ engine.Engine = (*Engine)(nil)

const minTTL = 100 * time.Millisecond

var prefixes = regexp.MustCompile(`^[A-Za-z0-9_]{1,40}$`)

// checkPrefix returns what the names begin with.
func checkPrefix(prefix string) (string, error) {
	prefix = cmp.Or(prefix, "pawl_")
	if !prefixes.MatchString(prefix) {
		return "", fmt.Errorf("open: %w: Prefix %q: 1 to 40 letters, digits and underscores are allowed", engine.ErrUnsupported, prefix)
	}
	return prefix, nil
}

// New returns the engine of a database, which stays the caller's. Nil opts are
// the defaults. New creates the tables where they are missing, if the user may.
//
// The engine keeps one connection of the pool for heartbeats, and has at most as many requests
// under way as there are other connections. So a pool of one connection is refused.
func New(ctx context.Context, db *sql.DB, opts *Options) (*Engine, error) {
	o := cmp.Or(opts, new(Options))
	prefix, err := checkPrefix(o.Prefix)
	if err != nil {
		return nil, err
	}
	l := language{prefix, make(map[string][]string)}
	if err := migrate(ctx, db, tables{
		name: "the tables", meta: prefix + "meta", version: leaseVersion, layout: leaseLayout, definitions: l.definitions, routine: prefix + "call_put",
		live: "SELECT COUNT(*) FROM " + prefix + "sessions WHERE ends > " + l.Now(), old: []string{prefix + "claims", prefix + "sessions"},
	}); err != nil {
		return nil, err
	}
	ways := &lanes{db: db, renew: l.CallRows("renew"), own: turn.New(1)}
	e, err := sqlengine.NewServer(sqlengine.Server{
		Dialect: l, MinTTL: minTTL, Client: rand.Text(), Connections: db.Stats().MaxOpenConnections, Query: ways.query,
		Again: rolledBack,
	})
	if err != nil {
		return nil, err
	}
	return &Engine{e, ways}, nil
}

// Close implements [engine.Engine].
func (e *Engine) Close() error { e.lanes.close(); return e.leases.Close() }

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps { return Options{}.Caps() }

// Caps are the promises of an engine with these options.
func (o Options) Caps() engine.Caps {
	return engine.Caps{
		Name: "mysql", Token: engine.TokenClock, Wake: engine.WakePoll, Expiry: engine.ExpiryWall,
		Failover: engine.FailoverLoses, Processes: engine.ReachNetwork, EnterTrip: 1, LeaveTrip: 1, MinTTL: minTTL,
	}
}
