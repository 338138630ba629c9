package redisengine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/turn"
)

func (e *Engine) valueKey(key string) string     { return e.prefix + "v:{" + escape.Replace(key) + "}" }
func (e *Engine) valueChannel(key string) string { return e.prefix + "value:" + key }

// Get implements [engine.Values].
func (e *Engine) Get(ctx context.Context, key string) (engine.Value, error) {
	reply := e.acked(ctx, read("GET", e.valueKey(key)), 0)
	if reply.Value == nil && reply.Err == nil {
		return engine.Value{}, nil
	}
	text, err := answer[string](reply)
	if err != nil {
		return engine.Value{}, failed(ctx, "get", err)
	}
	number, data, _ := strings.Cut(text, "\x1f")
	version, err := strconv.ParseUint(number, 10, 64)
	return engine.Value{Data: []byte(data), Version: version}, engine.Unavailable("get", err)
}

// Put implements [engine.Values].
func (e *Engine) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	if err := e.lookAtMark(ctx); err != nil {
		return 0, unchecked(ctx, "put", err)
	}
	// Data is copied: the client may send it after ctx has ended, when it is the caller's again.
	result := e.eval(ctx, e.put, e.wait, e.marked(e.valueKey(key)),
		strconv.FormatUint(version, 10), string(data), flag(data == nil), e.valueChannel(key))
	switch is := result.Value.(type) {
	case int64:
		return uint64(is), failed(ctx, "put", result.short)
	case []any:
		if err := otherFormat(is); err != nil {
			return 0, unchecked(ctx, "put", err)
		}
		return 0, fmt.Errorf("put: version is %v, not %d: %w", is[0], version, engine.ErrConflict)
	}
	return 0, failed(ctx, "put", result.Err)
}

// watchPoll bounds how late a watcher is whose message was lost.
const watchPoll = 2 * time.Second

// Watch implements [engine.Values].
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	changed := make(turn.Bell, 1)
	in, err := e.hub.listen(ctx, e.valueChannel(key), func(string) { changed.Ring() })
	if err != nil {
		return engine.Value{}, failed(ctx, "watch", err)
	}
	defer in.close()
	for {
		v, err := e.Get(ctx, key)
		if err != nil || v.Version != version {
			return v, err
		}
		select {
		case <-changed:
		case <-time.After(watchPoll):
		case <-in.life.Done():
			return v, failed(ctx, "watch", context.Cause(in.life))
		case <-ctx.Done():
			return v, context.Cause(ctx)
		}
	}
}
