package pawl

import (
	"context"
	"math/rand/v2"
	"time"
)

// stopwatch measures time that a lease may not outlive. Go's monotonic clock
// stands still while the machine sleeps; the store's does not. Where the
// system has a clock that counts sleep, its lead over the monotonic one is
// added.
type stopwatch struct {
	base  time.Time
	boot  time.Duration
	sleep bool
}

// boot is a variable so that a test can put the machine to sleep.
var boot = bootTime

// mark is an instant of a stopwatch.
type mark struct {
	at    time.Time
	slept time.Duration
}

// newStopwatch starts a stopwatch. A store inside the process sleeps with it.
func newStopwatch(countSleep bool) stopwatch {
	w := stopwatch{base: time.Now(), sleep: countSleep}
	if countSleep {
		w.boot = boot()
	}
	return w
}

func (w *stopwatch) now() mark {
	m := mark{at: time.Now()}
	if w.sleep {
		m.slept = max(0, boot()-w.boot-m.at.Sub(w.base))
	}
	return m
}

func (w *stopwatch) since(m mark) time.Duration {
	now := w.now()
	return now.at.Sub(m.at) + now.slept - m.slept
}

// backoff is the pause between attempts at a store in trouble: it doubles up
// to a sixth of the TTL, with jitter so that clients do not come in step.
type backoff struct{ pause, most time.Duration }

func newBackoff(ttl time.Duration) *backoff {
	return &backoff{pause: min(10*time.Millisecond, ttl/20), most: ttl / 6}
}

func (b *backoff) next() time.Duration {
	pause := b.pause/2 + rand.N(b.pause/2+1)
	b.pause = min(2*b.pause, b.most)
	return pause
}

// sleep pauses and reports whether neither context ended.
func (b *backoff) sleep(ctx, life context.Context) bool {
	timer := time.NewTimer(b.next())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-life.Done():
	}
	return false
}

// scoped has the life of one context and the values of another.
type scoped struct {
	context.Context
	values context.Context
}

// Value asks the life first: so package context finds it and needs no goroutine
// to follow it.
func (s *scoped) Value(key any) any {
	if v := s.Context.Value(key); v != nil {
		return v
	}
	return s.values.Value(key)
}

// join returns ctx, ended also when life does.
func join(ctx, life context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return &scoped{life, ctx}, func() {}
	}
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return joined, func() { stop(); cancel(nil) }
}

// farewellTime is how long a call waits for the store after its ctx has ended: a
// store that is well answers by then.
const farewellTime = 100 * time.Millisecond

// Linger returns a context with the values of ctx that ends 100 ms after ctx does: for the last
// request of a call, which the store needs although ctx has ended, such as a release. So a call
// keeps the promise of this package, to be back within 100 ms of the end of its ctx. stop frees
// the context.
func Linger(ctx context.Context) (lingering context.Context, stop context.CancelFunc) {
	return linger(context.WithoutCancel(ctx), ctx)
}

// linger returns base, ended also soon after ctx has.
func linger(base, ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return base, func() {}
	}
	bound, cancel := context.WithCancel(base)
	if ends, ok := ctx.Deadline(); ok { // some libraries look at nothing else
		cancel()
		bound, cancel = context.WithTimeout(base, max(time.Until(ends), 0)+farewellTime)
	}
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(farewellTime)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-bound.Done():
		}
	})
	return bound, func() { stop(); cancel() }
}
