package cas

import (
	"bytes"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// inMemory is a Store inside the process.
type inMemory struct {
	clock bool          // the store tells the time
	trip  time.Duration // of a request; 0: the store is really in the process

	mu      sync.Mutex
	last    uint64
	items   map[string]Item
	changed chan struct{}
	writes  int
}

func newInMemory(clock bool) *inMemory {
	return &inMemory{clock: clock, items: make(map[string]Item), changed: make(chan struct{})}
}

func (m *inMemory) now() int64 {
	if !m.clock {
		return 0
	}
	return time.Now().UnixMicro()
}

func (m *inMemory) read(key string) Item {
	item := m.items[key]
	item.Data, item.Now = bytes.Clone(item.Data), m.now()
	return item
}

// travel is the way of a request to the store.
func (m *inMemory) travel(ctx context.Context) {
	if m.trip == 0 {
		return
	}
	select {
	case <-time.After(m.trip):
	case <-ctx.Done():
	}
}

func (m *inMemory) Load(ctx context.Context, key string) (Item, error) {
	m.travel(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read(key), ctx.Err()
}

func (m *inMemory) Swap(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	m.travel(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.at(ctx, key, version); err != nil {
		return 0, err
	}
	m.items[key] = Item{Data: bytes.Clone(data), Version: m.last, Written: m.now()}
	return m.last, nil
}

func (m *inMemory) Delete(ctx context.Context, key string, version uint64) error {
	m.travel(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if version == 0 {
		return engine.ErrConflict
	}
	if err := m.at(ctx, key, version); err != nil {
		return err
	}
	delete(m.items, key)
	return nil
}

// at begins a write.
func (m *inMemory) at(ctx context.Context, key string, version uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.items[key].Version != version {
		return engine.ErrConflict
	}
	m.last++
	m.writes++
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

func (m *inMemory) Watch(ctx context.Context, key string) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for seen, first := uint64(0), true; ; {
			m.mu.Lock()
			item, changed := m.read(key), m.changed
			m.mu.Unlock()
			if first || item.Version != seen {
				if !yield(item, nil) {
					return
				}
				seen, first = item.Version, false
			}
			select {
			case <-changed:
			case <-ctx.Done():
				yield(Item{}, ctx.Err())
				return
			}
		}
	}
}

func (m *inMemory) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		m.mu.Lock()
		keys := slices.Collect(maps.Keys(m.items))
		m.mu.Unlock()
		for _, key := range keys {
			if strings.HasPrefix(key, prefix) && !yield(key, ctx.Err()) {
				return
			}
		}
	}
}

// kill ends a session as its TTL would.
func (m *inMemory) kill(session string) {
	m.mu.Lock()
	version := m.items[sessionKey+session].Version
	m.mu.Unlock()
	m.Delete(context.Background(), sessionKey+session, version) //nolint:errcheck // the session may have ended
}
