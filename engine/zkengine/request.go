package zkengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
)

// classes are what callers of the engine ask about.
var classes = []error{
	engine.ErrBusy, engine.ErrConflict, engine.ErrGone, engine.ErrMismatch, engine.ErrUnavailable, engine.ErrUnsupported,
	context.Canceled, context.DeadlineExceeded,
}

// explain adds the verb that failed to its error. Any error without a class means that the store
// could not be asked.
func explain(doing string, err *error) {
	switch is := *err; {
	case is == nil:
	case slices.ContainsFunc(classes, func(class error) bool { return errors.Is(is, class) }):
		*err = fmt.Errorf("%s: %w", doing, is)
	default:
		*err = engine.Unavailable(doing, is)
	}
}

// inFlight is how many requests of a session are under way besides its heartbeat. These requests
// share its connection, which answers in order.
const inFlight = 128

type atOnceKey struct{}

// first lets the requests of a heartbeat pass all others that wait for their turn.
func first(ctx context.Context) context.Context { return context.WithValue(ctx, atOnceKey{}, true) }

// turn waits until one more request may be under way.
func (l *link) turn(ctx context.Context) (done func(), err error) {
	if ctx.Value(atOnceKey{}) != nil {
		return func() {}, nil
	}
	for {
		_, changed, err := l.state()
		if err != nil {
			return nil, err
		}
		select {
		case l.turns <- struct{}{}:
			return func() { <-l.turns }, nil
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask makes a call of the client, which knows no context. A call that was given
// up ends when it is answered, its connection breaks or the link closes.
func ask[T any](ctx context.Context, l *link, call func() (T, error)) (T, error) {
	var none, value T
	var failed error
	ended, err := l.turn(ctx)
	if err != nil {
		return none, err
	}
	if err := l.settled(ctx); err != nil { // the client would wait until it is
		ended()
		return none, err
	}
	done := make(chan struct{})
	go func() {
		defer ended()
		defer close(done)
		value, failed = call()
	}()
	for {
		_, changed, err := l.state()
		if err != nil { // the client sends it when there is a connection again
			return none, err
		}
		select {
		case <-done:
			switch {
			case errors.Is(failed, zk.ErrSessionExpired):
				failed = l.ended
			case failed != nil: // perhaps because the session has ended
				failed = cmp.Or(l.settled(ctx), failed)
			}
			return value, failed
		case <-changed:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}

// look reads a node with a method of the client. A node that is not there has no stat.
func look[T any](ctx context.Context, l *link, path string, read func(string) (T, *zk.Stat, error)) (T, *zk.Stat, error) {
	is, err := ask(ctx, l, func() (is seen[T], err error) {
		is.value, is.stat, err = read(path)
		return is, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		is.stat, err = nil, nil
	}
	return is.value, is.stat, err
}

// stat returns nil and an error where there is no node.
func (l *link) stat(ctx context.Context, path string) (*zk.Stat, error) {
	there, stat, err := look(ctx, l, path, l.conn.Exists)
	if err == nil && !there {
		return nil, zk.ErrNoNode
	}
	return stat, err
}

// sync lets the server that we are connected to catch up with the leader. From now on reads see
// all earlier writes of others, and ours over a connection that broke.
func (l *link) sync(ctx context.Context) error {
	_, err := ask(ctx, l, func() (string, error) { return l.conn.Sync(l.engine.opts.Root) })
	return err
}

func (l *link) multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	return ask(ctx, l, func() ([]zk.MultiResponse, error) { return l.conn.Multi(ops...) })
}

// conflicts reports whether a step was refused because others changed something meanwhile: then
// nothing was done.
func conflicts(err error) bool {
	return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrBadVersion)
}

// create makes a node that may be there already. The node's folder is there, unless somebody removed the
// root.
func (l *link) create(ctx context.Context, path string, data []byte, flags int32) error {
	_, err := ask(ctx, l, func() (string, error) {
		if flags == zk.FlagContainer {
			if !l.containers.TryRLock() {
				return "", l.ended
			}
			defer l.containers.RUnlock()
			return l.conn.CreateContainer(path, data, flags, l.engine.acl)
		}
		return l.conn.Create(path, data, flags, l.engine.acl)
	})
	switch {
	case errors.Is(err, zk.ErrNodeExists):
		return nil
	case errors.Is(err, zk.ErrNoNode):
		return fmt.Errorf("%w: create %s: %s", engine.ErrUnavailable, path, err.Error()) // no conflict, which is tried again
	}
	return err
}

// makeFolders makes what all resources share; the values last, whose folder
// shows that all are there, and in which format.
func (l *link) makeFolders(ctx context.Context) error {
	paths := []string{l.engine.claims, l.engine.beat, l.engine.values}
	for root := l.engine.opts.Root; root != "/"; root = path.Dir(root) {
		paths = slices.Insert(paths, 0, root)
	}
	for _, path := range paths {
		var data []byte
		if path == l.engine.values {
			data = []byte(engine.Format())
		}
		if err := l.create(ctx, path, data, zk.FlagPersistent); err != nil {
			return err
		}
	}
	return l.checkFormat(ctx) // others may have made them
}

// watch is a watch of a node, or of its children. A watch fires once, which tells all of its waiters,
// and when the connection is another. The client cannot take one back, so it is kept until then.
type watch struct {
	fired chan struct{}
	event zk.Event    // that fired it
	set   bool        // in the server
	told  atomic.Bool // the node had been changed before
	spent atomic.Bool // it has fired
}

// seen is an answer about a node.
type seen[T any] struct {
	value T
	stat  *zk.Stat // nil when it did not come, because a watch had been set before
}

// subscribe sets a watch with a method of the client, unless it is set already.
// The key is a path, with a slash at its end for the children.
func subscribe[T any](ctx context.Context, l *link, key string, set func(string) (T, *zk.Stat, <-chan zk.Event, error)) (*watch, seen[T], error) {
	l.mu.Lock()
	w := l.watches[key]
	if w == nil {
		w = &watch{fired: make(chan struct{})}
		l.watches[key] = w
	}
	isSet := w.set
	l.mu.Unlock()
	if isSet {
		return w, seen[T]{}, nil
	}
	was, err := seen[T]{}, l.anchored(ctx)
	if err == nil {
		was, err = ask(ctx, l, func() (is seen[T], err error) {
			is.value, is.stat, _, err = set(strings.TrimSuffix(key, "/"))
			l.mu.Lock()
			defer l.mu.Unlock()
			w.set = w.set || err == nil
			if err == nil && is.stat.Version > 0 {
				w.told.Store(true)
			}
			return is, err
		})
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !w.set { // nobody shall rely on it
			l.fire(key, zk.Event{})
		}
	}
	return w, was, err
}

// fire tells the waiters of a watch. The link is locked.
func (l *link) fire(key string, ev zk.Event) {
	if w := l.watches[key]; w != nil {
		delete(l.watches, key)
		w.event = ev
		w.spent.Store(true)
		close(w.fired)
	}
}
