// Package rowengine is the store in row locks of an SQL database. A holder has
// a transaction open that locked the row of the name, on a
// connection of its own. That transaction blocks the transaction of a waiter. The lock
// is free at the moment when the transaction ends, however it ends.
//
// Sessions, and the claims that share a connection, are known only here, in the
// client. The database's part is its [Store].
package rowengine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/names"
	"github.com/pawl-go/pawl/internal/turn"
)

// Store is one database.
type Store interface {
	// Check asks whether the server answers. Check notes the longest TTL: for so
	// long nothing is given out when the server has started again.
	Check(ctx context.Context, ttl time.Duration) error

	// Connect takes a connection for a claim alone.
	Connect(ctx context.Context) (Conn, error)

	// List returns the names that start with prefix and have claims.
	List(ctx context.Context, prefix string) ([]string, error)

	// Show returns the claims of a resource, granted ones first, and its
	// discipline.
	Show(ctx context.Context, name string) (engine.Resource, error)

	// Grace returns for how long the server, which may have forgotten locks, gives nothing out.
	Grace(ctx context.Context) (left time.Duration, err error)

	// Break ends the transaction of a claim of any session, or its waiting,
	// and reports whether there was something to end. The transaction may end a little
	// later. Gently leaves alone a claim that is to wait and does not do so yet: its
	// client can be told only while it waits.
	Break(ctx context.Context, resource, claim string, gently bool) (bool, error)
}

// Conn is the connection of one claim. After an error of Enter, Wait or Ping
// only Destroy is left.
type Conn interface {
	// Enter begins a transaction that locks the row, unless that is locked
	// already, and lets operators see the claim.
	Enter(ctx context.Context, c *Request) (Answer, error)

	// Wait is Enter for a claim that had to wait, and blocks in the server. A claim without
	// a token in the Answer is to Enter again.
	Wait(ctx context.Context, c *Request) (Answer, error)

	// Ping makes the server count the time anew after which it ends a
	// transaction that nobody uses.
	Ping(ctx context.Context) error

	// Alive looks whether the connection has ended, without a round trip.
	Alive() bool

	// Free ends the transaction and gives the connection back. If that fails
	// the connection is destroyed.
	Free(ctx context.Context) error

	// Destroy closes the connection.
	Destroy()
}

// Request is a claim as the server has to know it.
type Request struct {
	*engine.Claim
	Session string
	TTL     time.Duration
	Wait    bool // it is to be seen although it is not granted
}

// Answer is the result of a request.
type Answer struct {
	Token fence.Token   // 0: somebody else has the lock
	Grace time.Duration // for how long a holder may still believe in a lock that the server has forgotten
}

var (
	// ErrBroken says that an operator ended the waiting of a claim.
	ErrBroken = errors.New("broken by an operator")

	// ErrEnded says that the server had ended the transaction before.
	ErrEnded = errors.New("the server has ended the connection")
)

// Engine is the store in one database, without its Caps. Create it with [New].
type Engine struct {
	store    Store
	caps     engine.Caps
	sessions sync.Map // open ones, by id

	connections int          // of the pool; 0: no limit
	taken       atomic.Int64 // by claims
}

// New returns the engine of a database whose pool has so many connections at most,
// or no limit: 0. The engine's promises are those of [Caps].
func New(store Store, caps engine.Caps, connections int) *Engine {
	return &Engine{store: store, caps: caps, connections: connections}
}

// take takes one of the connections, unless claims have them all. A claim that waited for a
// connection would wait in no order, behind claims to other names.
func (e *Engine) take() error {
	if n := e.taken.Add(1); e.connections > 0 && n > int64(e.connections) {
		e.taken.Add(-1)
		return engine.Unavailable("take a connection", fmt.Errorf("each lock that is held or waited for needs its own connection, and all %d of the pool are taken",
			e.connections))
	}
	return nil
}

// Caps are the promises of row mode on every database.
func Caps(name string, minTTL time.Duration) engine.Caps {
	return engine.Caps{
		Name: name, Token: engine.TokenClock, Wake: engine.WakeServer, Expiry: engine.ExpiryConnection, Forgets: true,
		Failover: engine.FailoverLoses, Processes: engine.ReachNetwork, EnterTrip: 1, LeaveTrip: 1, MinTTL: minTTL,
		Lacks: map[engine.Feature]string{
			engine.FeatureOrder:     "the database promises no order to the waiters for a row",
			engine.FeatureShared:    "a row that is locked for reading lets readers pass a waiting writer without end",
			engine.FeatureSemaphore: "a row lock has one holder",
			engine.FeatureValues:    "a row lock stores nothing, and lease mode stores values",
			engine.FeatureDelay:     "a row is free at the moment when its holder's connection ends",
			engine.FeatureMinHold:   "a row is free at the moment when its holder's connection ends",
		},
	}
}

// free reports whether claims leave a connection to others.
func (e *Engine) free() bool { return e.connections == 0 || e.taken.Load() < int64(e.connections) }

const (
	// KeptNames is how many names a database keeps though nobody uses them: to
	// lock one of them again writes nothing that lasts.
	KeptNames = 1024
	// TrimEvery is after how many new names somebody removes the oldest ones.
	TrimEvery = 64
)

// Open implements [engine.Engine]. A session is in the client only.
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	ttl := max(opts.TTL, e.caps.MinTTL)
	if err := e.store.Check(ctx, ttl); err != nil {
		return nil, unavailable(ctx, "open session", err)
	}
	s := &session{engine: e, id: rand.Text(), opts: opts, renewed: time.Now(), holds: make(map[string]*hold)}
	s.opts.TTL = ttl
	s.life, s.end = context.WithCancelCause(context.Background())
	e.sessions.Store(s.id, s)
	if opts.Gone != nil {
		s.tasks.Go(s.watch)
	}
	return s, nil
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return names.Of(func() ([]string, error) {
		all, err := e.store.List(ctx, prefix)
		return all, unavailable(ctx, "list", err)
	})
}

// Show implements [engine.Engine].
func (e *Engine) Show(ctx context.Context, name string) (engine.Resource, error) {
	r, err := e.store.Show(ctx, name)
	if err == nil {
		var left time.Duration
		if left, err = e.store.Grace(ctx); left > 0 {
			r.Grace = engine.Grace{Age: engine.Unknown, Left: left}
		}
	}
	r.Name = name
	for i := range r.Claims { // each is to all of a lock
		r.Kind, r.Capacity, r.Claims[i].Weight = engine.KindLock, engine.LockCapacity, engine.LockCapacity
	}
	return r, unavailable(ctx, "show", err)
}

// Evict implements [engine.Engine].
func (e *Engine) Evict(ctx context.Context, resource, claim string) error {
	there, err := e.evict(ctx, resource, claim, soonWaits)
	if err == nil && !there {
		return fmt.Errorf("evict: %w", engine.ErrGone)
	}
	return unavailable(ctx, "evict", err)
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	for _, s := range e.sessions.Range { // that nobody closed
		s.(*session).finish(func(h *hold) error { h.destroy(); return nil }) //nolint:errcheck // it returns nil
	}
	return nil
}

// unavailable classes an error of the database, unless ctx ended.
func unavailable(ctx context.Context, doing string, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: %w (%w)", doing, context.Cause(ctx), err)
	}
	return engine.Unavailable(doing, err)
}

// soonWaits is for how long a client may be between the Enter of a claim and its Await.
const soonWaits = 2 * time.Second

// evict breaks a claim that is not known here, and waits until it is gone. evict is gentle
// for so long at first. evict reports whether there was such a claim.
func (e *Engine) evict(ctx context.Context, resource, claim string, gently time.Duration) (there bool, err error) {
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		found, err := e.store.Break(ctx, resource, claim, time.Since(began) < gently)
		if err != nil || !found {
			return there, err
		}
		there = true // and again, because a waiter may have been granted meanwhile
		if err := turn.Pause(ctx, pause); err != nil {
			return there, err
		}
	}
}
