package cas

import (
	"context"
	"iter"
)

// Store is a key-value store as far as package cas needs one. Keys are any string of up to 520
// bytes; a store that allows less encodes them. Every version of a key is larger than all that the
// key had before, also across deletion. Load, Watch and List may be late, as those of a replica: no
// lock has two holders for that, but a client may be told that it lost one, or wait longer. Swap and
// Delete may not be late: they take effect at one moment in the whole store, or not at all. All methods are safe for concurrent use and end when ctx does. A
// failure is [engine.ErrUnavailable]; then the outcome of Swap and Delete is unknown, and either
// may still arrive later.
type Store interface {
	// Load returns the item at key, or the zero Item when there is none; Now is set in any
	// case where the store tells the time.
	Load(ctx context.Context, key string) (Item, error)

	// Swap writes data if the key is at version, where 0 means that there is no item, and returns the
	// new version. It fails with [engine.ErrConflict] when the key is at another version.
	Swap(ctx context.Context, key string, data []byte, version uint64) (uint64, error)

	// Delete removes the item if the key is at version. It fails with [engine.ErrConflict] when
	// the key is at another version, or has no item.
	Delete(ctx context.Context, key string, version uint64) error

	// Watch yields the item at key, the zero Item when there is none, and then the item after each
	// change, as soon as it changed. Several changes may come as one. Watch subscribes before it
	// reads, so that no change is missed. It ends with an error, that of ctx or of the store.
	Watch(ctx context.Context, key string) iter.Seq2[Item, error]

	// List yields the keys that have an item and start with prefix, in no order, each once.
	List(ctx context.Context, prefix string) iter.Seq2[string, error]
}

// Item is what a store has at a key.
type Item struct {
	Data    []byte
	Version uint64 // 0: there is none

	// In µs on the store's own clock, and 0 where the store does not tell.
	Written int64 // when the item was written
	Now     int64 // when the item was read
}

// Forgetful is a Store that may lose writes that it confirmed, as by a power failure. Every Store
// whose capabilities say that it forgets is Forgetful.
type Forgetful interface {
	// Life names the life of the store: the name is another one after each event in which the store
	// may have forgotten, and no name comes again. Life should need no round trip most of the
	// time, because every step calls it twice.
	Life(ctx context.Context) (string, error)
}
