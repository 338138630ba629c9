package zkengine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/names"
)

// Get implements [engine.Values].
func (e *Engine) Get(ctx context.Context, key string) (v engine.Value, err error) {
	defer explain("get", &err)
	l, err := e.link(ctx)
	if err != nil {
		return v, err
	}
	return l.get(ctx, e.value(key))
}

// get reads a value when all that others have written before is there.
func (l *link) get(ctx context.Context, path string) (v engine.Value, err error) {
	if err := l.sync(ctx); err != nil {
		return v, err
	}
	data, stat, err := look(ctx, l, path, l.conn.Get)
	if err != nil || stat == nil {
		return v, err
	}
	// Never nil, which would delete when it is put again.
	return engine.Value{Data: append([]byte{}, data...), Version: uint64(stat.Mzxid)}, nil
}

// Put implements [engine.Values]. ZooKeeper compares numbers that start at 0 again when a node
// was deleted and made again. So each deletion also writes the folder of all values, which every
// Put compares.
func (e *Engine) Put(ctx context.Context, key string, data []byte, version uint64) (written uint64, err error) {
	defer explain("put", &err)
	l, err := e.link(ctx)
	if err != nil {
		return 0, err
	}
	path := e.value(key)
	for fresh := version == 0 && data == nil; ; fresh = true {
		if fresh { // the server may be behind, or others were faster
			if err := l.sync(ctx); err != nil {
				return 0, err
			}
		}
		folder, err := l.stat(ctx, e.values)
		if errors.Is(err, zk.ErrNoNode) { // the first one to write anything
			if err = l.makeFolders(ctx); err == nil {
				folder, err = l.stat(ctx, e.values)
			}
		}
		if err != nil {
			return 0, err
		}
		is, err := l.stat(ctx, path)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return 0, err
		}
		switch {
		case is == nil && version == 0 && data == nil:
			return 0, nil
		case is == nil && version == 0, is != nil && version == uint64(is.Mzxid):
			replies, err := l.multi(ctx, e.change(path, data, folder, is)...)
			if err == nil && data != nil {
				written = uint64(replies[1].Stat.Mzxid)
			}
			if !conflicts(err) {
				return written, err
			}
		case fresh:
			return 0, fmt.Errorf("%w: version is no longer %d", engine.ErrConflict, version)
		}
	}
}

// change returns the steps of a Put over the node, if that is there. The second one tells the new
// version.
func (e *Engine) change(path string, data []byte, folder, is *zk.Stat) []any {
	switch {
	case is == nil:
		return []any{&zk.CreateRequest{Path: path, Acl: e.acl}, &zk.SetDataRequest{Path: path, Data: data, Version: 0}}
	case data == nil:
		return []any{&zk.SetDataRequest{Path: e.values, Data: []byte(engine.Format()), Version: folder.Version}, &zk.DeleteRequest{Path: path, Version: is.Version}}
	}
	return []any{&zk.CheckVersionRequest{Path: e.values, Version: folder.Version}, &zk.SetDataRequest{Path: path, Data: data, Version: is.Version}}
}

// ListValues implements [engine.Values]. ZooKeeper has all names in one reply.
func (e *Engine) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return names.Of(func() ([]string, error) { return e.keys(ctx, prefix) })
}

func (e *Engine) keys(ctx context.Context, prefix string) (keys []string, err error) {
	defer explain("list", &err)
	l, err := e.fresh(ctx)
	if err != nil {
		return nil, err
	}
	nodes, _, err := look(ctx, l, e.values, l.conn.Children)
	for _, node := range nodes {
		key, bad := url.PathUnescape(strings.TrimPrefix(node, "n"))
		if bad == nil && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys, err
}

// lookAgain is when a watch of a value looks unasked.
const lookAgain = time.Minute

// Watch implements [engine.Values].
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (v engine.Value, err error) {
	defer explain("watch", &err)
	path := e.value(key)
	for {
		l, err := e.link(ctx)
		if err != nil {
			return v, err
		}
		changed, _, err := subscribe(ctx, l, path, l.conn.ExistsW)
		if err != nil {
			return v, err
		}
		if v, err = l.get(ctx, path); err != nil || v.Version != version {
			return v, err
		}
		select {
		case <-changed.fired: // also when the session ends: the next one has a connection of its own
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}
