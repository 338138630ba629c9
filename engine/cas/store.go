package cas

import (
	"context"
	"iter"
)

// Store is the part of a key-value store that package cas needs. Keys are any string of up to 520
// bytes; a store that allows less encodes them. Every version of a key is larger than all earlier
// versions of that key, also across deletion.
//
// Load, Watch and List may be late, as those of a replica. No lock then has two holders, but a
// client may wrongly learn that it lost a lock, or wait longer. Swap and Delete may not be late:
// they take effect at one moment in the whole store, or not at all. TryUpgrade of an RWMutex is the exception: a Load must not be
// older than the last answered Swap of that key by the same client. Else TryUpgrade may miss that another client wrote in between.
//
// All methods are safe for concurrent use and end when ctx does. A failure is
// [engine.ErrUnavailable]; then the outcome of Swap and Delete is unknown, and either may still
// arrive later.
type Store interface {
	// Load returns the item at key, or the zero Item when there is no item. If the store tells the
	// time, Now is set in both cases.
	Load(ctx context.Context, key string) (Item, error)

	// Swap writes data if the key is at version, and returns the new version. Version 0 means that
	// there is no item. Swap fails with [engine.ErrConflict] when the key is at another version.
	Swap(ctx context.Context, key string, data []byte, version uint64) (uint64, error)

	// Delete removes the item if the key is at version. Delete fails with [engine.ErrConflict] when the
	// key is at another version, or has no item.
	Delete(ctx context.Context, key string, version uint64) error

	// Watch yields the item at key, or the zero Item when there is no item. Then it yields the item
	// after each change, as soon as the change is made. Several changes may come as one. Watch
	// subscribes before it reads, so that no change is missed. Watch ends with an error, that of ctx
	// or of the store.
	Watch(ctx context.Context, key string) iter.Seq2[Item, error]

	// List yields the keys that have an item and start with prefix, in no order, each once.
	List(ctx context.Context, prefix string) iter.Seq2[string, error]
}

// Item is the content of a key.
type Item struct {
	Data    []byte
	Version uint64 // 0: there is no item

	// These are in µs on the store's own clock, and 0 where the store does not tell.
	Written int64 // when the item was written
	Now     int64 // when the item was read
}

// Forgetful is a Store that may lose confirmed writes, as by a power failure. Every Store whose
// capabilities say that it forgets is Forgetful.
type Forgetful interface {
	// Life names the life of the store. The name changes after each event in which the store may
	// have forgotten writes, and no name comes again. Life should need no round trip most of the
	// time, because every step calls it twice.
	Life(ctx context.Context) (string, error)
}
