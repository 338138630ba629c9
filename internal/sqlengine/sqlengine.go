// Package sqlengine is the store in tables of an SQL database. A verb is one
// transaction that no other runs beside: it loads the claims of the resource,
// lets package queue decide and writes the difference.
//
// The database has these tables, in a form of its own:
//
//	pawl_meta     last                     one row: the token or version given out last
//	pawl_sessions id ends ttl label        times in µs on the store's clock
//	pawl_claims   resource place session id owner label weight token since kind capacity barging
//	pawl_values   name version data
//
// A claim carries the spec of its resource, on which all claims of one agree:
// so a resource needs no row of its own, to be written twice for each hold.
package sqlengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// pollEvery is how often to read what nothing tells of.
const pollEvery = 250 * time.Millisecond

// Dialect is what differs between databases.
type Dialect interface {
	// Migrate creates what is missing. It is called once, before all else.
	Migrate(ctx context.Context, tx *sql.Tx) error

	// Begin starts a transaction that waits for the one before it, and says
	// what time it is then, in µs on the store's clock.
	Begin(ctx context.Context, db *sql.DB) (tx *sql.Tx, now int64, err error)

	// Again reports whether err only says that others were in the way.
	Again(err error) bool

	// Listen receives what other processes post to a session, until stop is
	// called. It returns nil where nothing arrives: then waiters poll.
	Listen(session string, receive func(Message)) (stop func())

	// Post sends a message to another process. It may be lost.
	Post(m Message)

	// Forget removes what Listen may have left of a session of any process.
	Forget(session string)
}

// Message tells a session of one of its claims. It is a hint: the claim in the
// database counts.
type Message struct {
	Session, Claim string
	Token          fence.Token // of the grant; 0: the claim is to be looked at
	Gone           bool        // it was held, and another took it away
}

// Engine is the store in one database. Create it with [New].
type Engine struct {
	db      *sql.DB
	dialect Dialect
	minTTL  time.Duration
	stmts   map[string]*sql.Stmt // by its text; does not change

	sessions sync.Map // those of this Engine: id → *session
}

// New prepares the database. Who calls it closes db after the Engine.
func New(ctx context.Context, db *sql.DB, dialect Dialect, minTTL time.Duration) (*Engine, error) {
	e := &Engine{db: db, dialect: dialect, minTTL: minTTL, stmts: make(map[string]*sql.Stmt)}
	if err := e.run(ctx, "open", func(t *tx) { t.err = dialect.Migrate(ctx, t.Tx) }); err != nil {
		return nil, err
	}
	for _, query := range statements {
		stmt, err := db.PrepareContext(ctx, query)
		if err != nil {
			return nil, engine.Unavailable("open", errors.Join(err, e.Close()))
		}
		e.stmts[query] = stmt
	}
	return e, nil
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var names []string // all of them first: yield may want the connection
		err := e.transact(ctx, "list", "", func(t *tx) {
			// The byte 0xFF is in no UTF-8: it ends the range of the prefix.
			names = t.strings(listResources, prefix, prefix+"\xff")
		})
		if err != nil {
			yield("", err)
			return
		}
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
	}
}

// Show implements [engine.Engine].
func (e *Engine) Show(ctx context.Context, name string) (r engine.Resource, err error) {
	err = e.transact(ctx, "show", "", func(t *tx) { r = t.load(name).Show(name, t.now) })
	return r, err
}

// Get implements [engine.Engine].
func (e *Engine) Get(ctx context.Context, key string) (v engine.Value, err error) {
	err = e.transact(ctx, "get", "", func(t *tx) {
		v = engine.Value{}
		t.get(readValue, args{key}, &v.Data, &v.Version)
	})
	return v, err
}

// Put implements [engine.Engine].
func (e *Engine) Put(ctx context.Context, key string, data []byte, version uint64) (written uint64, err error) {
	err = e.transact(ctx, "put", "", func(t *tx) {
		var is engine.Value
		t.get(readValue, args{key}, &is.Data, &is.Version)
		if is.Version != version {
			t.answer = fmt.Errorf("version is %d, not %d: %w", is.Version, version, engine.ErrBusy)
			return
		}
		t.exec(deleteValue, key)
		if data != nil {
			t.last++
			written = uint64(t.last)
			t.exec(insertValue, key, t.last, data)
		}
	})
	return written, err
}

// Watch implements [engine.Engine]. It polls: who watches is not in the store.
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		v, err := e.Get(ctx, key)
		if err != nil || v.Version != version {
			return v, err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return engine.Value{}, ctx.Err()
		}
	}
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	e.sessions.Range(func(_, s any) bool { // those that nobody closed
		s.(*session).stop()
		return true
	})
	var err error
	for _, stmt := range e.stmts {
		err = errors.Join(err, stmt.Close())
	}
	return err
}
