package faulty

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pawl-go/pawl/engine"
)

// Restored is a store whose values can come back as they were at an earlier time. Locks stay as they are. New versions are
// larger than all before, as those by a clock are.
type Restored struct {
	engine.Engine

	mu      sync.Mutex
	last    uint64
	values  map[string]engine.Value
	copied  map[string]engine.Value
	changed chan struct{} // closed and replaced when a value changes
}

// NewRestored returns such a store with the locks of eng.
func NewRestored(eng engine.Engine) *Restored {
	return &Restored{Engine: eng, values: make(map[string]engine.Value), changed: make(chan struct{})}
}

// Copy copies all values.
func (r *Restored) Copy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copied = maps.Clone(r.values)
}

// Restore brings back what Copy copied.
func (r *Restored) Restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values = maps.Clone(r.copied)
	r.tell()
}

func (r *Restored) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Get does as engine.Values says.
func (r *Restored) Get(ctx context.Context, key string) (engine.Value, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values[key], ctx.Err()
}

// Put does as engine.Values says.
func (r *Restored) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if is := r.values[key].Version; is != version {
		return 0, fmt.Errorf("put %q: version is %d, not %d: %w", key, is, version, engine.ErrConflict)
	}
	defer r.tell()
	if data == nil {
		delete(r.values, key)
		return 0, nil
	}
	r.last++
	r.values[key] = engine.Value{Data: bytes.Clone(data), Version: r.last}
	return r.last, nil
}

// Watch does as engine.Values says.
func (r *Restored) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	for {
		r.mu.Lock()
		v, changed := r.values[key], r.changed
		r.mu.Unlock()
		if v.Version != version {
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return engine.Value{}, ctx.Err()
		}
	}
}

// ListValues does as engine.Values says.
func (r *Restored) ListValues(_ context.Context, prefix string) iter.Seq2[string, error] {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(r.values)), func(key string) bool { return !strings.HasPrefix(key, prefix) })
	return func(yield func(string, error) bool) {
		for _, key := range keys {
			if !yield(key, nil) {
				return
			}
		}
	}
}
