package pawl

import (
	"context"

	"github.com/pawl-go/pawl/engine"
)

// RWMutex is a lock that many readers or one writer hold. Its own methods are
// those of the writer. First come, first served: a writer waits for the
// readers before it, and readers that come later wait for it, so neither
// starves. It is a description, as [Mutex] is.
//
// An owner that holds the writing side may take the reading side and release
// the writing one: that is a downgrade. The other way round it gets the
// writing side only if it is the one reader then and nobody waits; else
// [ErrNotAcquired] at once, for two readers that wait to write would wait for
// each other.
type RWMutex struct {
	lock
	readers Mutex
}

// RWMutex returns the read-write lock of this name; see [Client.Mutex] for
// names.
func (c *Client) RWMutex(name string) *RWMutex {
	return &RWMutex{
		newLock(c, name, engine.KindLock, engine.LockCapacity, engine.LockCapacity),
		Mutex{newLock(c, name, engine.KindLock, engine.LockCapacity, 1)},
	}
}

// With returns the same lock, both sides taken with opts.
func (m *RWMutex) With(opts LockOptions) *RWMutex {
	return &RWMutex{m.with(opts), Mutex{m.readers.with(opts)}}
}

// RLocker returns the reading side. Tokens of readers grow too, but several
// hold at once, so they do not fence readers from one another.
func (m *RWMutex) RLocker() Locker { return &m.readers }

// RLock is Lock of the reading side.
func (m *RWMutex) RLock(ctx context.Context) (*Lease, error) { return m.readers.Lock(ctx) }

// TryRLock is TryLock of the reading side.
func (m *RWMutex) TryRLock(ctx context.Context) (*Lease, error) { return m.readers.TryLock(ctx) }
