package zkengine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
)

// Resize implements [engine.Engine]: it is refused.
func (e *Engine) Resize(context.Context, string, int64) error {
	return e.Caps().RefuseFeature(engine.FeatureResize)
}

// Get implements [engine.Engine].
func (e *Engine) Get(ctx context.Context, key string) (engine.Value, error) {
	l, err := e.fresh(ctx, "get")
	if err != nil {
		return engine.Value{}, err
	}
	return l.get(ctx, "get", e.value(key))
}

func (l *link) get(ctx context.Context, doing, path string) (engine.Value, error) {
	v, err := ask(ctx, l, doing, func() (v engine.Value, err error) {
		data, stat, err := l.conn.Get(path)
		if err == nil { // never nil, which would delete when it is put again
			v = engine.Value{Data: append([]byte{}, data...), Version: uint64(stat.Mzxid)}
		}
		return v, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return v, err
}

// Put implements [engine.Engine]. ZooKeeper compares numbers that start at 0
// again when a node was deleted and made again, so each deletion also writes the
// folder of all values, which every Put compares.
func (e *Engine) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	l, err := e.link(ctx)
	if err != nil {
		return 0, err
	}
	path := e.value(key)
	busy := fmt.Errorf("put: version is no longer %d: %w", version, engine.ErrBusy)
	for try := range tries {
		if try > 0 { // a follower may be behind
			if err := l.sync(ctx, "put"); err != nil {
				return 0, err
			}
		}
		folder, err := l.exists(ctx, "put", e.values)
		if err != nil {
			return 0, engine.Unavailable("put", err)
		}
		is, err := l.exists(ctx, "put", path)
		there := !errors.Is(err, zk.ErrNoNode)
		switch {
		case there && err != nil:
			return 0, err
		case !there:
			is = &zk.Stat{}
		}
		switch {
		case version != uint64(is.Mzxid) && try == 0:
			continue
		case version != uint64(is.Mzxid):
			return 0, busy
		case !there && data == nil:
			return 0, nil
		}
		replies, err := l.multi(ctx, "put", e.change(path, data, there, folder, is)...)
		switch {
		case err == nil && data == nil:
			return 0, nil
		case err == nil:
			return uint64(replies[len(replies)-1].Stat.Mzxid), nil
		case !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNodeExists):
			return 0, err
		}
	}
	return 0, engine.Unavailable("put", errors.New("values are deleted all the time"))
}

// change returns the steps of a Put. The last one tells the new version.
func (e *Engine) change(path string, data []byte, there bool, folder, is *zk.Stat) []any {
	switch {
	case data == nil:
		return []any{&zk.SetDataRequest{Path: e.values, Version: folder.Version}, &zk.DeleteRequest{Path: path, Version: is.Version}}
	case !there:
		return []any{&zk.CreateRequest{Path: path, Acl: e.acl}, &zk.SetDataRequest{Path: path, Data: data, Version: 0}}
	}
	return []any{&zk.CheckVersionRequest{Path: e.values, Version: folder.Version}, &zk.SetDataRequest{Path: path, Data: data, Version: is.Version}}
}

// lookAgain is when a watch of a value looks unasked.
const lookAgain = time.Minute

// Watch implements [engine.Engine].
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	path := e.value(key)
	for {
		l, err := e.link(ctx)
		if err != nil {
			return engine.Value{}, err
		}
		events, err := l.watchValue(ctx, path)
		if err != nil {
			return engine.Value{}, err
		}
		if err := l.sync(ctx, "watch"); err != nil {
			return engine.Value{}, err
		}
		v, err := l.get(ctx, "watch", path)
		if err != nil || v.Version != version {
			return v, err
		}
		again := time.NewTimer(lookAgain)
		select {
		case <-events:
			l.forget(events)
		case <-again.C:
		case <-l.over: // the next connection has a session of its own
		case <-ctx.Done():
			again.Stop()
			return engine.Value{}, fmt.Errorf("watch: %w", ctx.Err())
		}
		again.Stop()
	}
}

// watchValue watches also what is not there yet.
func (l *link) watchValue(ctx context.Context, path string) (<-chan zk.Event, error) {
	l.mu.Lock()
	events := l.watches[path]
	l.mu.Unlock()
	if events != nil && len(events) == 0 {
		return events, nil
	}
	return ask(ctx, l, "watch", func() (<-chan zk.Event, error) {
		_, _, events, err := l.conn.ExistsW(path)
		if err == nil {
			l.mu.Lock()
			l.watches[path] = events
			l.mu.Unlock()
		}
		return events, err
	})
}
