package cas

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

// seen is an observed heartbeat, and when the observer first saw it.
type seen struct {
	version, beat uint64 // a store that forgot writes gives versions again, and a session repeats no beat
	since         time.Time
}

// look checks that sessions live. look reports whether it found a session dead that was not known to
// be dead.
func (e *Engine) look(ctx context.Context, ids []string) (died bool, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	places := make(chan struct{}, loads)
	for _, id := range ids {
		e.mu.Lock()
		skip := e.guards[id] != nil || e.dead[id]
		e.mu.Unlock()
		if skip {
			continue
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			item, failed := e.store.Load(ctx, sessionKey+id)
			is := false
			if failed == nil {
				is, _, failed = e.judge(ctx, id, item)
			}
			mu.Lock()
			defer mu.Unlock()
			died, err = died || is, errors.Join(err, failed)
		})
	}
	all.Wait()
	return died, err
}

// judge decides whether a session is dead by the item that was read, and ends a session that may be
// ended. Else it returns the time after which the session may be ended without another heartbeat.
func (e *Engine) judge(ctx context.Context, id string, item Item) (dead bool, left time.Duration, err error) {
	if item.Version == 0 { // or the read is late: a write tells
		return e.bury(ctx, id, 0)
	}
	h, err := decodeHeartbeat(item)
	if err != nil {
		return false, 0, err
	}
	if h.Dead {
		e.mourn(id)
		return true, 0, nil
	}
	if left = e.left(id, h, item); left > 0 {
		return false, left, nil
	}
	return e.bury(ctx, id, item.Version)
}

// left is the time until a session may be ended, by the clock of the store or by observation.
func (e *Engine) left(id string, h heartbeat, item Item) time.Duration {
	if item.Now != 0 {
		return h.ttl() - time.Duration(item.Now-item.Written)*time.Microsecond
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s, is := e.seen[id]; is && s.version == item.Version && s.beat == h.Beat {
		return h.ttl() - time.Since(s.since)
	}
	e.seen[id] = seen{item.Version, h.Beat, time.Now()}
	return h.ttl()
}

// bury ends a session, unless a heartbeat came since version. Many clients see the death, and the client that buries the session
// removes its claims. If that client dies, a sweep finds the mark.
func (e *Engine) bury(ctx context.Context, id string, version uint64) (dead bool, left time.Duration, err error) {
	_, err = e.store.Swap(ctx, sessionKey+id, deadMark, version)
	if errors.Is(err, engine.ErrConflict) { // the session lives, or another client was faster: the next look tells
		return false, time.Millisecond, nil
	}
	if err != nil {
		return false, 0, err
	}
	e.mourn(id)
	select {
	case e.graves <- id:
	default: // too many at once: a sweep finds the others
	}
	return true, 0, nil
}

// mourn notes that a session is dead.
func (e *Engine) mourn(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dead[id] = true
	delete(e.seen, id)
}

// sweepEvery is how often an engine looks at the sessions of all clients, if it is alone. The more
// sessions there are, the less often each engine does so.
const sweepEvery = 15 * time.Second

// sweep removes everything that dead clients left behind, also in names that nobody uses again.
func (e *Engine) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	sessions := 1
	for {
		select {
		case <-e.ctx.Done():
			return
		case id := <-e.graves:
			if e.knownDead()[id] { // else it is clear already
				e.clear(e.ctx, id) //nolint:errcheck // another sweep finds the mark
			}
		case <-tick.C:
			if rand.IntN(sessions) == 0 {
				sessions = max(1, e.lookAtAll(e.ctx))
			}
		}
	}
}

// lookAtAll judges every session, and returns how many there are.
func (e *Engine) lookAtAll(ctx context.Context) (n int) {
	known, dead := make(map[string]bool), e.knownDead()
	for key, err := range e.store.List(ctx, sessionKey) {
		if err != nil {
			return n
		}
		n++
		id := strings.TrimPrefix(key, sessionKey)
		known[id] = true
		item, err := e.store.Load(ctx, key)
		if err != nil || item.Version == 0 {
			continue
		}
		if dead, _, err := e.judge(ctx, id, item); dead && err == nil {
			e.clear(ctx, id) //nolint:errcheck // the next sweep finds the mark
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range e.seen {
		if !known[id] {
			delete(e.seen, id)
		}
	}
	for id := range dead {
		if !known[id] { // another client has removed its claims
			delete(e.dead, id)
		}
	}
	return n
}

func (e *Engine) knownDead() map[string]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.dead)
}

// clear removes the claims of a dead session, then the rest of the session.
func (e *Engine) clear(ctx context.Context, id string) error {
	for key, err := range e.store.List(ctx, resourceKey) {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(key, resourceKey)
		r, _, err := e.load(ctx, name)
		if err != nil {
			return err
		}
		if !r.has(id) {
			continue
		}
		if _, err := e.step(ctx, name, queue.Request{Op: queue.Poll}, nil); err != nil {
			return err
		}
	}
	return e.forget(ctx, id)
}

func (r *record) has(session string) bool {
	for _, c := range r.Claims {
		if c.Session == session {
			return true
		}
	}
	return false
}

// forget removes the mark of a dead session that has no claims. A claim that arrives later belongs
// to a missing session, which counts as dead.
func (e *Engine) forget(ctx context.Context, id string) error {
	item, err := e.store.Load(ctx, sessionKey+id)
	if err == nil && item.Version != 0 {
		err = e.store.Delete(ctx, sessionKey+id, item.Version)
	}
	if err != nil && !errors.Is(err, engine.ErrConflict) {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.dead, id)
	return nil
}

// guard watches the heartbeat of a session for all waiters of this engine behind that session.
type guard struct {
	cancel context.CancelFunc
	bells  map[chan struct{}]bool
	due    time.Time // when the session may be ended
}

// watch rings a bell when a session dies, and when a session may be ended.
func (e *Engine) watch(id string, bell chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guards[id]
	if g == nil {
		ctx, cancel := context.WithCancel(e.ctx)
		g = &guard{cancel: cancel, bells: make(map[chan struct{}]bool)}
		e.guards[id] = g
		e.working.Go(func() { e.guard(ctx, id, g) })
	}
	g.bells[bell] = true
}

func (e *Engine) unwatch(id string, bell chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.guards[id]; g != nil {
		delete(g.bells, bell)
		if len(g.bells) == 0 {
			g.cancel()
			delete(e.guards, id)
		}
	}
}

// retryEvery is how soon a guard, a watch or a line retries at a store that fails.
const retryEvery = 100 * time.Millisecond

// guard follows a session until that session is dead or nobody watches it. guard needs no watch of the store, which
// only tells of a death sooner.
func (e *Engine) guard(ctx context.Context, id string, g *guard) {
	items := make(chan Item)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { e.feed(ctx, sessionKey+id, items) }) //nolint:errcheck // guard does without
	due := time.NewTimer(retryEvery)
	defer due.Stop()
	var item Item
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case item = <-items:
		case <-due.C:
			item, err = e.store.Load(ctx, sessionKey+id)
		}
		dead, left := false, retryEvery
		if err == nil {
			if dead, left, err = e.judge(ctx, id, item); err != nil {
				left = retryEvery
			}
		}
		if dead {
			e.ring(g)
			<-ctx.Done() // the waiters behind the session step, and stop watching it
			return
		}
		due.Reset(left)
	}
}

func (e *Engine) ring(g *guard) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for bell := range g.bells {
		select {
		case bell <- struct{}{}:
		default: // the bell rings already
		}
	}
}
