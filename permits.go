package pawl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// A semaphore has the number of permits that its users declare, unless an operator has set another
// number. That number is a versioned value, which outlives all claims. A client reads that value at
// its first use of the semaphore and re-reads it every TTL/3. A client also reads the value at once
// when the store says that the resource has another size. A client may know an older number for that
// time, and may use a free semaphore by that number. A client with the new number corrects the size.

// number is the number of an operator, as a client has read it.
type number struct {
	permits int64     // 0: no operator has set a number, or an operator took it back
	reset   int64     // the declared number, when the operator took the other back
	version uint64    // of the value
	read    time.Time // when the client asked for the value
}

// numbers are the numbers that a client knows.
type numbers struct {
	mu     sync.Mutex
	byName map[string]*known
	most   int // how many numbers there may be before the old numbers are dropped
}

type known struct {
	turn chan struct{} // held by the call that reads the number
	is   atomic.Pointer[number]
}

func (k *known) since(asOf time.Time) (number, bool) {
	if is := k.is.Load(); is != nil && !is.read.Before(asOf) {
		return *is, true
	}
	return number{}, false
}

func (n *numbers) of(name string, old time.Time) *known {
	n.mu.Lock()
	defer n.mu.Unlock()
	if k := n.byName[name]; k != nil {
		return k
	}
	if len(n.byName) >= n.most {
		maps.DeleteFunc(n.byName, func(_ string, k *known) bool {
			_, young := k.since(old)
			return !young
		})
		n.most = max(64, 2*len(n.byName))
	}
	if n.byName == nil {
		n.byName = make(map[string]*known)
	}
	k := &known{turn: make(chan struct{}, 1)}
	n.byName[name] = k
	return k
}

// retryIf retries while the store is away, at most for one TTL, if the caller may wait.
func (c *Client) retryIf(ctx context.Context, wait bool, ask func() error) error {
	if !wait {
		return ask()
	}
	return c.Retry(ctx, c.opts.TTL, ask)
}

// number returns the number of the operator, read no earlier than asOf. Among many calls that ask,
// one call reads the number.
func (l *lock) number(ctx context.Context, asOf time.Time, wait bool) (is number, err error) {
	c := l.client
	k := c.numbers.of(l.name, time.Now().Add(-c.opts.TTL/3))
	if is, ok := k.since(asOf); ok {
		return is, nil
	}
	bound, cancel := context.WithTimeout(ctx, c.opts.TTL)
	defer cancel()
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-bound.Done():
		return is, engine.Unavailable("read the number of permits", bound.Err())
	case <-c.life.Done():
		return is, ErrClosed
	}
	if is, ok := k.since(asOf); ok {
		return is, nil
	}
	err = c.retryIf(ctx, wait, func() error {
		is, err = l.readNumber(ctx)
		return err
	})
	if err == nil {
		k.is.Store(&is)
	}
	return is, err
}

func numberKey(name string) string { return scopedName("permits", name) }

func (l *lock) readNumber(ctx context.Context) (number, error) {
	is := number{read: time.Now()}
	v, err := l.client.stored(ctx, numberKey(l.name))
	if err != nil {
		return is, fmt.Errorf("read the number of permits: %w", err)
	}
	if v.Version == 0 {
		return is, nil
	}
	is.version = v.Version
	text, reset := strings.CutPrefix(string(v.Data), resetMark)
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || n < 1 || n > MaxPermits:
		return is, fmt.Errorf("the number of permits in the store is %q", v.Data)
	case reset:
		is.reset = n
	default:
		is.permits = n
	}
	return is, nil
}

// data is the stored form of the number.
func (n number) data() []byte {
	if n.reset > 0 {
		return strconv.AppendInt([]byte(resetMark), n.reset, 10)
	}
	return strconv.AppendInt(nil, n.permits, 10)
}

// resetMark begins the value that replaces a number that was taken back. After the mark stands the
// declared number. Clients that declare that number may correct a resize by clients that know the
// old number.
const resetMark = "reset "

// correct makes a resource that is in use as large as the operator's number. If an operator has set
// another number meanwhile, correct uses that number. So the last call leaves the valid number.
func (l *lock) correct(ctx context.Context, is number) error {
	for {
		err := l.client.ask(ctx, "resize", func(ctx context.Context) error {
			err := l.client.resizer.Resize(ctx, l.name, cmp.Or(is.permits, is.reset))
			if errors.Is(err, engine.ErrGone) { // no claim is left that would disagree
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
		next, err := l.readNumber(ctx)
		if err != nil || next.version == is.version || next.permits+next.reset == 0 {
			return err
		}
		is = next
	}
}

// sizing finds the capacity for the claims of one acquisition.
type sizing struct {
	*lock
	wait  bool
	asked time.Time // when the client last knew the number
	times int       // how often the resource was corrected
	until time.Time // by then all clients know the present number
	pause *backoff
}

// hastyCorrections is how often a call that does not wait corrects a resource.
const hastyCorrections = 3

// capacity is the declared number, or the operator's number of a semaphore.
func (s *sizing) capacity(ctx context.Context) (int64, error) {
	if !s.resizes {
		return s.spec.Capacity, nil
	}
	is, err := s.number(ctx, time.Now().Add(-s.client.opts.TTL/3), s.wait)
	if err != nil {
		return 0, s.client.stopped(ctx, err)
	}
	capacity := cmp.Or(is.permits, s.spec.Capacity)
	if s.weight > capacity {
		return 0, invalid("weight is %d: 1 to %d are allowed since an operator has resized it", s.weight, capacity)
	}
	s.asked = time.Now()
	return capacity, nil
}

// mismatch reports whether to retry when the store says that the resource is in use as something
// else. An operator may have resized it, or a client with an old number may use it. mismatch
// corrects the size. mismatch repeats that as long as clients may know an old number, because such a
// client gives a free resource the old size.
func (s *sizing) mismatch(ctx context.Context, used int64) (again bool, err error) {
	if !s.resizes {
		return false, nil
	}
	is, err := s.number(ctx, s.asked.Add(1), s.wait)
	switch {
	case err != nil:
		return false, s.client.stopped(ctx, err)
	case cmp.Or(is.permits, s.spec.Capacity) != used:
		return true, nil
	case is.permits == 0 && is.reset != s.spec.Capacity:
		return false, nil
	}
	var r engine.Resource
	err = s.client.retryIf(ctx, s.wait, func() (err error) {
		r, err = s.client.claims(ctx, s.name)
		return err
	})
	if err != nil {
		return false, s.client.stopped(ctx, err)
	}
	if len(r.Claims) > 0 && (r.Kind != s.spec.Kind || r.Barging != s.spec.Barging) {
		return false, nil // not another size, but another use
	}
	if s.times++; s.times == 1 {
		s.until, s.pause = time.Now().Add(s.client.opts.TTL/2), newBackoff(s.client.opts.TTL)
	} else if again, err := s.correctAgain(ctx); !again {
		return false, err
	}
	err = s.client.retryIf(ctx, s.wait, func() error { return s.correct(ctx, is) })
	if err != nil {
		return false, s.client.stopped(ctx, err)
	}
	return true, nil
}

func (s *sizing) correctAgain(ctx context.Context) (bool, error) {
	switch {
	case time.Now().After(s.until):
		return false, nil
	case s.wait:
		return s.pause.sleep(ctx, s.client.life), s.client.stopped(ctx, nil)
	case s.times > hastyCorrections:
		return false, fmt.Errorf("%w: %w: it is in use by clients that know another number", ErrNotAcquired, ErrMismatch)
	}
	return true, nil
}
