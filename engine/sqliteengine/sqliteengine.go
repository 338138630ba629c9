// Package sqliteengine is the store in one SQLite file, for all processes of
// one machine: it needs no server.
//
// A verb is one transaction that takes the write lock first, loads the claims
// of the resource, lets package queue decide and writes the difference. A
// waiter in another process is woken through a file in its inbox, a folder
// that only its own process watches; see wake.go.
//
// SQLite lets one process write at a time and asks again every millisecond or
// two for the lock. A process that is stopped in the midst of a transaction,
// which takes some ten microseconds, stops all others until it goes on or ends.
//
// The file and its companions are private to the user that created them. A
// network file system is refused where the system tells (on Linux, but not
// behind FUSE): neither SQLite's log nor the wake-up works there. Who deletes
// or replaces the file while it is in use makes two stores of one.
//
// A power loss may take back the last transactions, but ends all who knew of
// them too. Tokens and versions still grow, unless the clock was set back
// meanwhile; a value may be an older one.
package sqliteengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/pawl-go/pawl/engine"
)

// Options are what [New] can be told. There is nothing to tell yet.
type Options struct{}

const (
	minTTL = 100 * time.Millisecond
	// pollEvery is how often to read what nothing can tell of.
	pollEvery = 250 * time.Millisecond
)

// Engine is the store in one file. Create it with [New].
type Engine struct {
	path    string
	db      *sql.DB
	conn    *sql.Conn            // the only one: goroutines of a process queue for it here, in order
	turn    chan struct{}        // held by who uses conn
	stmts   map[string]*sql.Stmt // by its text; guarded by turn
	watcher *fsnotify.Watcher    // nil when the system has none left
	tasks   sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]*session // those of this Engine
	changed  chan struct{}       // closed and replaced when a value was put here
}

var _ engine.Engine = (*Engine)(nil)

// New opens the store in the file at path, and creates the file and its folder
// if they are missing. Nil opts are the defaults.
func New(ctx context.Context, path string, opts *Options) (*Engine, error) {
	path, err := prepare(path, fileSystem)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		path: path, turn: make(chan struct{}, 1), stmts: make(map[string]*sql.Stmt),
		sessions: make(map[string]*session), changed: make(chan struct{}),
	}
	if err := e.connect(ctx); err != nil {
		return nil, errors.Join(err, e.disconnect())
	}
	e.watch()
	return e, nil
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps {
	return engine.Caps{
		Name: "sqlite", Token: engine.TokenRevision, Wake: engine.WakeFile, Expiry: expiry,
		Failover: engine.FailoverNone, Processes: engine.ReachMachine, EnterTrip: 1, LeaveTrip: 1, MinTTL: minTTL,
	}
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var names []string // all of them first: yield may want the connection
		err := e.transact(ctx, "list", "", func(t *tx) (err error) {
			// The byte 0xFF is in no UTF-8: it ends the range of the prefix.
			names, err = t.strings(`SELECT DISTINCT resource FROM pawl_claims
				WHERE resource >= ? AND resource < ?`, prefix, prefix+"\xff")
			return err
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
	err = e.transact(ctx, "show", "", func(t *tx) error {
		q, err := t.load(name)
		r = q.Show(name, t.now)
		return err
	})
	return r, err
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	var err error
	if e.watcher != nil {
		err = e.watcher.Close()
		e.tasks.Wait()
	}
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	if err := errors.Join(err, e.disconnect()); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
