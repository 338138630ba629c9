package pawl

import "github.com/pawl-go/pawl/engine"

// MaxPermits is the largest size of a semaphore.
const MaxPermits = 1 << 30

// Semaphore lets so many hold at once. First come, first served: one that
// wants many permits is not passed by those that want few. A crashed holder's
// permits come back. It is a description, as [Mutex] is; Lock, TryLock and Do
// take one permit, or as many as [Semaphore.Weighted] says. Acquisitions of
// one owner share their permits.
type Semaphore struct{ lock }

// Semaphore returns the semaphore of this name with so many permits, 1 to
// [MaxPermits]. All users of a name must agree on the number, else
// [ErrMismatch]. See [Client.Mutex] for names.
func (c *Client) Semaphore(name string, permits int) *Semaphore {
	s := &Semaphore{newLock(c, name, engine.KindSemaphore, int64(permits), 1)}
	if s.err == nil && (permits < 1 || permits > MaxPermits) {
		s.err = invalid("permits is %d: 1 to %d are allowed", permits, MaxPermits)
	}
	return s
}

// Weighted returns the same semaphore, taken k permits at a time, 1 to all.
func (s *Semaphore) Weighted(k int) *Semaphore {
	w := &Semaphore{s.lock}
	w.weight = int64(k)
	if w.err == nil && (w.weight < 1 || w.weight > w.spec.Capacity) {
		w.err = invalid("weight is %d: 1 to %d are allowed", k, w.spec.Capacity)
	}
	return w
}

// With returns the same semaphore, taken with opts.
func (s *Semaphore) With(opts LockOptions) *Semaphore { return &Semaphore{s.with(opts)} }
