package pawl

import (
	"context"
	"math/rand/v2"
	"time"
)

// stopwatch measures a time that a lease may not outlive. Go's monotonic clock stands still while
// the machine sleeps; the store's clock does not. Some systems have a clock that counts sleep: the
// stopwatch then adds the lead of that clock.
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

// newStopwatch starts a stopwatch. A store inside the process sleeps together with the client.
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

// backoff is the pause between retries at a store in trouble. The pause doubles up to a sixth of
// the TTL, with jitter so that clients do not retry in step.
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
func (b *backoff) sleep(ctx, life context.Context) bool { return nap(ctx, life, b.next()) }

// nap pauses and reports whether neither context ended.
func nap(ctx, life context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
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

// Value looks into the life first. There package context finds its own kind of context, so it needs
// no goroutine to follow the scoped context.
func (s *scoped) Value(key any) any {
	if v := s.Context.Value(key); v != nil {
		return v
	}
	return s.values.Value(key)
}

// join returns a context with the values of ctx that ends when ctx or life ends.
func join(ctx, life context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return &scoped{life, ctx}, func() {}
	}
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return joined, func() { stop(); cancel(nil) }
}

// farewellTime is how long a call waits for the store after its ctx has ended: a healthy store
// answers by then.
const farewellTime = 100 * time.Millisecond

// Linger returns a context with the values of ctx that ends 100 ms after ctx ends. If ctx has ended before, that context ends
// 100 ms after the call of Linger. Linger is for the
// last request of a call, such as a release, which the store needs although ctx has ended. So a
// call keeps the promise of this package: it returns within 100 ms of the end of its ctx. stop
// frees the context.
//
// A call of this package with the context of Linger returns when that context ends, and not 100 ms later. So the 100 ms
// are for several such requests together.
func Linger(ctx context.Context) (lingering context.Context, stop context.CancelFunc) {
	base := context.WithoutCancel(ctx)
	if ctx.Value(lingers{}) == nil {
		base = context.WithValue(base, lingers{}, ctx)
	}
	return linger(base, ctx)
}

// lingers is the key under which a context of Linger has the context that it lingers after.
type lingers struct{}

// linger returns base, which then also ends soon after ctx has ended, or together with a context of Linger.
func linger(base, ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return base, func() {}
	}
	if ctx.Value(lingers{}) != nil {
		return join(base, ctx)
	}
	bound, cancel := context.WithCancel(base)
	if ends, ok := ctx.Deadline(); ok { // some libraries look at the deadline only
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
