// Package cas makes an engine of a plain key-value store. A store has to do what [Store] lists: load,
// watch and list keys, and swap or delete a key that is at a certain version. The engine then has
// every primitive of pawl:
//
//	type Engine struct{ *cas.Engine }
//
//	func New(client *theirs.Client) *Engine {
//		return &Engine{cas.New(&store{client}, cas.Options{Caps: engine.Caps{Name: "theirs", ...}})}
//	}
//
// # How it works
//
// A resource is one key, which has all its claims. A step loads the key, runs [queue.Apply], and
// swaps the key. If another client was faster, the step waits a little and begins again. So the
// grant and the hand-over are one write. Waiters watch the key, and find their grant in it.
//
// A session is a key that each heartbeat rewrites. A session ends when a client swaps its key for a
// mark of death. After that no heartbeat succeeds, and no claim of the session counts. There are two
// ways to decide that a session may be ended:
//
//   - By the store's clock, where [Item] has Written and Now: when the last write is a TTL ago.
//   - By observation, where the store does not tell the time ([engine.ExpiryObserved]): when the
//     observer saw the same version for a whole TTL and a hundredth. The observer's own monotonic
//     clock counts. The swap names that version, so it fails if there was a heartbeat.
//
// Waiters observe the sessions before them, and every client looks at all sessions at times. But a
// new client has observed nothing yet. If the holder of a name died, a TryLock of that name is busy
// until a client has observed that holder for a TTL. A program that tries once and exits observes
// nobody. For the same reason a minimum hold needs a store with a clock.
//
// Tokens are made from the version of the write that grants. In a store that may forget, tokens also
// start from the time of the store at which it began to grant.
package cas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/turn"
)

// MaxClaims is how many claims, granted and waiting, a name can have at most, unless
// Options.MaxClaims says less. Each claim costs 40 to 120 bytes in every write of the name, and more with a long label.
const MaxClaims = 2000

// Options describe a store.
type Options struct {
	// Caps are the promises of the store: Name, Forgets, Failover, Processes and MinTTL. A store
	// with a clock also sets Expiry, and a store whose Delete takes more than one round trip sets LeaveTrip. This package
	// sets the other promises, and adds its own to Lacks.
	Caps engine.Caps

	// MaxClaims is how many claims a name can have: 1 to 2000; 0 is 2000.
	MaxClaims int

	// MaxData is the largest item of the store in bytes, 64 KiB or more. An Enter that would need a
	// larger item is refused. 0: no bound.
	MaxData int
}

// Engine is an engine.Engine on a Store, with versioned values and resizing.
type Engine struct {
	store Store
	opts  Options
	caps  engine.Caps

	ctx     context.Context // ends when the engine is closed
	stop    context.CancelFunc
	working sync.WaitGroup
	graves  chan string // sessions that have ended, whose claims are still to be removed

	// The clients of one process take the steps of a resource one after the other, so that these do
	// not conflict.
	turns *turn.Names

	ours atomic.Pointer[string] // the life in which the store has the mark of our format

	mu       sync.Mutex
	lines    map[string]*line
	guards   map[string]*guard
	seen     map[string]seen // heartbeats, by session
	dead     map[string]bool // sessions with the mark of death
	sessions map[string]*session
	life     life
}

var (
	_ engine.Engine  = (*Engine)(nil)
	_ engine.Values  = (*Engine)(nil)
	_ engine.Resizer = (*Engine)(nil)
)

// New returns an engine on a store, and sends no request. New panics when the options are out of
// range, because a program wrote them.
func New(store Store, opts Options) *Engine {
	if opts.MaxClaims < 0 || opts.MaxClaims > MaxClaims {
		panic(fmt.Sprintf("cas: Options.MaxClaims is %d: allowed are 1 to %d, and 0 for %d", opts.MaxClaims, MaxClaims, MaxClaims))
	}
	opts.MaxClaims = cmp.Or(opts.MaxClaims, MaxClaims)
	if opts.MaxData != 0 && opts.MaxData < engine.MaxValue {
		panic(fmt.Sprintf("cas: Options.MaxData is %d: allowed are %d and more, and 0 for no bound", opts.MaxData, engine.MaxValue))
	}
	if _, is := store.(Forgetful); opts.Caps.Forgets != is {
		panic(fmt.Sprintf("cas: Options.Caps.Forgets is %v, and that the store implements Forgetful is %v", opts.Caps.Forgets, is))
	}
	e := &Engine{
		store: store, opts: opts, caps: Caps(opts), graves: make(chan string, 64),
		turns: turn.NewNames(1), lines: make(map[string]*line), guards: make(map[string]*guard),
		seen: make(map[string]seen), dead: make(map[string]bool), sessions: make(map[string]*session),
	}
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.working.Go(e.sweep)
	return e
}

// Caps returns the promises of an engine on a store with these options.
func Caps(opts Options) engine.Caps {
	c := opts.Caps
	c.Token, c.Wake, c.EnterTrip, c.LeaveTrip, c.MaxClaims = engine.TokenRevision, engine.WakeHandoff, 2, cmp.Or(c.LeaveTrip, 2), cmp.Or(opts.MaxClaims, MaxClaims)
	if c.Forgets {
		c.Token = engine.TokenClock
	}
	lacks := maps.Clone(c.Lacks)
	if lacks == nil {
		lacks = make(map[engine.Feature]string)
	}
	if c.Expiry == "" {
		c.Expiry = engine.ExpiryObserved
		lacks[engine.FeatureMinHold] = "no clock in the store says when the time is over"
	}
	c.Lacks = nil
	if len(lacks) > 0 {
		c.Lacks = lacks
	}
	return c
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps { return e.caps }

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return e.list(ctx, resourceKey, prefix)
}

// ListValues implements [engine.Values].
func (e *Engine) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return e.list(ctx, valueKey, prefix)
}

func (e *Engine) list(ctx context.Context, kind, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := ctx.Err(); err != nil {
			yield("", err)
			return
		}
		for key, err := range e.store.List(ctx, kind+prefix) {
			if err != nil {
				yield("", fmt.Errorf("list: %w", err))
				return
			}
			if !yield(strings.TrimPrefix(key, kind), nil) {
				return
			}
		}
	}
}

// Show implements [engine.Engine]. Show looks at every session that has a claim, so that a caller that
// asks again and again sees the dead sessions go. The remaining time of sessions is unknown.
func (e *Engine) Show(ctx context.Context, name string) (engine.Resource, error) {
	if err := ctx.Err(); err != nil {
		return engine.Resource{}, err
	}
	if err := e.knowFormat(ctx, false); err != nil {
		return engine.Resource{}, fmt.Errorf("show: %w", err)
	}
	r, item, err := e.load(ctx, name)
	if err != nil {
		return engine.Resource{}, fmt.Errorf("show: %w", err)
	}
	ids := make(map[string]bool)
	for _, c := range r.Claims {
		ids[c.Session] = true
	}
	if _, err := e.look(ctx, slices.Collect(maps.Keys(ids))); err != nil {
		return engine.Resource{}, fmt.Errorf("show: %w", err)
	}
	e.mu.Lock()
	live := r.State
	live.Claims = nil
	for _, c := range r.Claims {
		if !e.dead[c.Session] {
			live.Claims = append(live.Claims, c)
		}
	}
	e.mu.Unlock()
	if len(live.Claims) == 0 {
		live.Spec = engine.Spec{}
	}
	res := live.Show(name, item.Now, func(string) int64 { return 0 })
	if res.Grace, err = e.shownGrace(ctx); err != nil {
		return engine.Resource{}, fmt.Errorf("show: %w", err)
	}
	for i := range res.Claims {
		c := &res.Claims[i]
		c.Left = engine.Unknown
		if item.Now == 0 {
			c.Age, c.Held = engine.Unknown, engine.Unknown
		}
	}
	return res, nil
}

func (e *Engine) load(ctx context.Context, name string) (record, Item, error) {
	item, err := e.store.Load(ctx, resourceKey+name)
	if err != nil {
		return record{}, item, err
	}
	r, err := decode(item)
	return r, item, err
}

// Get implements [engine.Values].
func (e *Engine) Get(ctx context.Context, key string) (engine.Value, error) {
	if err := ctx.Err(); err != nil {
		return engine.Value{}, err
	}
	item, err := e.store.Load(ctx, valueKey+key)
	if err != nil {
		return engine.Value{}, fmt.Errorf("get: %w", err)
	}
	return value(item), nil
}

func value(item Item) engine.Value {
	if item.Version != 0 && item.Data == nil {
		item.Data = []byte{}
	}
	return engine.Value{Data: item.Data, Version: item.Version}
}

// Put implements [engine.Values].
func (e *Engine) Put(ctx context.Context, key string, data []byte, version uint64) (written uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := e.knowFormat(ctx, true); err != nil {
		return 0, fmt.Errorf("put: %w", err)
	}
	switch {
	case data != nil:
		written, err = e.store.Swap(ctx, valueKey+key, data, version)
	case version != 0:
		err = e.store.Delete(ctx, valueKey+key, version)
	default: // there is nothing to delete, unless there is a value
		var v engine.Value
		if v, err = e.Get(ctx, key); err == nil && v.Version != 0 {
			err = engine.ErrConflict
		}
	}
	if errors.Is(err, engine.ErrConflict) {
		return 0, fmt.Errorf("put %q: it is not at version %d: %w", key, version, engine.ErrConflict)
	}
	if err != nil {
		return 0, fmt.Errorf("put: %w", err)
	}
	return written, nil
}

// lookAgain is how often a watch of a value looks whether it missed a change. The watch of a store may miss a
// deletion whose marker goes at once.
const lookAgain = 2 * time.Second

// Watch implements [engine.Values].
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	watching, stop := context.WithCancel(ctx)
	items, failed := make(chan Item), make(chan error, 1)
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer stop()
	feeding.Go(func() { failed <- e.feed(watching, valueKey+key, items) })
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		var item Item
		var err error
		looked := false
		select {
		case item = <-items:
		case err = <-failed:
		case <-tick.C:
			looked = true
			item, err = e.store.Load(ctx, valueKey+key)
		case <-ctx.Done():
		}
		switch {
		case ctx.Err() != nil:
			return engine.Value{}, ctx.Err()
		case err != nil:
			return engine.Value{}, fmt.Errorf("watch: %w", err)
		case item.Version != version && (looked || item.Version == 0 || item.Version > version): // a store that forgot writes is at a smaller one
			return value(item), nil
		}
	}
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	e.stop()
	e.working.Wait()
	return nil
}
