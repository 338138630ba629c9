// Package memengine is the reference store of one process: the pure queue behind a mutex. The
// semantics are those of record, and it runs under testing/synctest. Test code that uses pawl
// with this store.
//
// One Engine is one store: clients that are to meet share the same Engine.
package memengine

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/names"
	"github.com/pawl-go/pawl/internal/turn"
)

// Engine is a store in memory. Create it with [New].
type Engine struct {
	epoch time.Time // all times are µs since then, by the monotonic clock

	turns     chan struct{} // of one place, before mu
	mu        sync.Mutex
	last      uint64 // the last token and the last version given out
	resources map[string]queue.State
	sessions  map[string]*session
	values    map[string]engine.Value
	changed   chan struct{} // closed and replaced when a value changes
}

var _ engine.Engine = (*Engine)(nil)

// New returns an empty store.
func New() *Engine {
	return &Engine{
		epoch:     time.Now(),
		turns:     make(chan struct{}, 1),
		resources: make(map[string]queue.State),
		sessions:  make(map[string]*session),
		values:    make(map[string]engine.Value),
		changed:   make(chan struct{}),
	}
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps {
	return engine.Caps{
		Name: "memory", Token: engine.TokenRevision, Wake: engine.WakeHandoff, Expiry: engine.ExpiryMonotonic,
		Failover: engine.FailoverNone, Processes: engine.ReachProcess, MinTTL: time.Millisecond,
	}
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, engine.Unavailable("open session", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle() // what the dead left in names that nobody uses again goes now
	s := &session{engine: e, id: rand.Text(), opts: opts, wake: make(map[string]turn.Bell)}
	s.ends = e.now() + opts.TTL.Microseconds()
	s.lapse = time.AfterFunc(opts.TTL, s.lapsed)
	e.sessions[s.id] = s
	return s, nil
}

// Expire ends a session at once, as if its TTL had passed: for tests.
func (e *Engine) Expire(session string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sessions[session]; s != nil {
		s.ends = e.now()
		e.settle()
	}
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return e.list(ctx, prefix, func() []string { e.settle(); return slices.Collect(maps.Keys(e.resources)) })
}

// list yields the names that start with prefix. The names are collected under e.mu.
func (e *Engine) list(ctx context.Context, prefix string, collect func() []string) iter.Seq2[string, error] {
	return names.Of(func() ([]string, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.DeleteFunc(collect(), func(name string) bool { return !strings.HasPrefix(name, prefix) }), nil
	})
}

// Show implements [engine.Engine].
func (e *Engine) Show(ctx context.Context, name string) (engine.Resource, error) {
	if err := ctx.Err(); err != nil {
		return engine.Resource{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle()
	return e.resources[name].Show(name, e.now(), e.ends), nil
}

// Evict implements [engine.Engine].
func (e *Engine) Evict(ctx context.Context, resource, claim string) error {
	return e.remove(ctx, "evict", resource, claim, nil)
}

// remove takes a claim away, and tells its holder unless the holder itself asked for that.
func (e *Engine) remove(ctx context.Context, verb, resource, claim string, by *session) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.lock()
	holder := e.left(resource, claim)
	out := e.apply(resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}})
	e.mu.Unlock()
	if out.Err != nil {
		return fmt.Errorf("%s: %w", verb, out.Err)
	}
	if holder != nil && holder != by && holder.opts.Gone != nil {
		holder.opts.Gone(claim)
	}
	return nil
}

// Resize implements [engine.Resizer].
func (e *Engine) Resize(ctx context.Context, name string, capacity int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.apply(name, queue.Request{Op: queue.Resize, Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: capacity}})
	if out.Err != nil {
		return fmt.Errorf("resize: %w", out.Err)
	}
	return nil
}

// Get implements [engine.Values].
func (e *Engine) Get(ctx context.Context, key string) (engine.Value, error) {
	if err := ctx.Err(); err != nil {
		return engine.Value{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.values[key]
	v.Data = bytes.Clone(v.Data)
	return v, nil
}

// Put implements [engine.Values].
func (e *Engine) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if is := e.values[key].Version; is != version {
		return 0, fmt.Errorf("put %q: version is %d, not %d: %w", key, is, version, engine.ErrConflict)
	}
	close(e.changed)
	e.changed = make(chan struct{})
	if data == nil {
		delete(e.values, key)
		return 0, nil
	}
	e.last++
	e.values[key] = engine.Value{Data: bytes.Clone(data), Version: e.last}
	return e.last, nil
}

// Watch implements [engine.Values].
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	for {
		e.mu.Lock()
		v, changed := e.values[key], e.changed
		e.mu.Unlock()
		if v.Version != version {
			v.Data = bytes.Clone(v.Data)
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return engine.Value{}, ctx.Err()
		}
	}
}

// ListValues implements [engine.Values].
func (e *Engine) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return e.list(ctx, prefix, func() []string { return slices.Collect(maps.Keys(e.values)) })
}

// Close implements [engine.Engine]. The store stays as it is.
func (e *Engine) Close() error { return nil }

// lock takes mu for a step of a claim. Of a crowd, one at a time waits for mu itself: so a
// heartbeat, which takes mu without a turn, waits for few of them.
func (e *Engine) lock() {
	if e.mu.TryLock() {
		return
	}
	e.turns <- struct{}{}
	e.mu.Lock()
	<-e.turns
}

func (e *Engine) now() int64 { return time.Since(e.epoch).Microseconds() }

// apply takes one step of a resource and wakes whom it concerns. e.mu is held.
func (e *Engine) apply(name string, r queue.Request) queue.Outcome {
	state, out := queue.Apply(e.resources[name], r, queue.Clock{
		Now: e.now(), Mint: fence.Token(e.last + 1), Ends: e.ends,
	})
	e.last = max(e.last, uint64(state.Last))
	for _, c := range append(out.Granted, out.Told...) {
		e.signal(c.Session, c.ID)
	}
	if len(state.Claims) == 0 {
		delete(e.resources, name)
	} else {
		e.resources[name] = state
	}
	return out
}

func (e *Engine) ends(session string) int64 {
	if s := e.sessions[session]; s != nil {
		return s.ends
	}
	return 0
}

func (e *Engine) signal(session, claim string) {
	if s := e.sessions[session]; s != nil {
		s.wake[claim].Ring() // if it is awaited
	}
}

// settle removes what dead sessions left. e.mu is held.
func (e *Engine) settle() {
	for id, s := range e.sessions {
		if s.ends <= e.now() {
			delete(e.sessions, id)
			for claim := range s.wake {
				close(s.wake[claim])
				delete(s.wake, claim)
			}
		}
	}
	for name := range e.resources {
		e.apply(name, queue.Request{Op: queue.Poll})
	}
}
