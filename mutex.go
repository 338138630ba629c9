package pawl

import "github.com/pawl-go/pawl/engine"

// Mutex is a lock with one holder. A Mutex is a description: making one does no I/O, a Mutex has no
// state, and all its methods are safe for concurrent use. A Mutex and an [RWMutex] of one name are
// the same lock: the Mutex is its writing side.
type Mutex struct{ lock }

// Mutex returns the lock of this name. A name has 1 to 512 bytes of valid UTF-8 without control
// characters. Any other name is an [ErrInvalid] at the first use.
func (c *Client) Mutex(name string) *Mutex {
	return &Mutex{newLock(c, name, engine.KindLock, engine.LockCapacity, engine.LockCapacity)}
}

// With returns the same lock, taken with opts as well, see [LockOptions].
func (m *Mutex) With(opts LockOptions) *Mutex { return &Mutex{m.with(opts)} }
