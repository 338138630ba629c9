package cas

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

type session struct {
	engine *Engine
	id     string
	opts   engine.SessionOptions

	beating chan struct{} // of one place: held while the heartbeat is written

	mu      sync.Mutex
	version uint64 // of the heartbeat
	beats   uint64
	life    string               // of the store, at the last heartbeat
	claims  map[string]place     // by id, from Enter to Leave
	doubts  map[string]time.Time // resources that may have unknown claims, and since when: see reconcile
}

// place is the position of a claim.
type place struct {
	resource string
	version  uint64 // of the resource after the claim entered
	held     bool   // the caller was told so, and not of the loss
}

// held returns the claims that the clients of a session believe in, by id. Nil has none.
func (s *session) held() map[string]bool {
	all := make(map[string]bool)
	if s == nil {
		return all
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.claims {
		all[id] = p.held
	}
	return all
}

// holds notes whether a caller believes in a claim.
func (s *session) holds(claim string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, here := s.claims[claim]; here {
		p.held = is
		s.claims[claim] = p
	}
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, engine.Unavailable("open session", err)
	}
	if err := e.checkFormat(ctx, true, opts.Belief()); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	if _, _, err := e.alive(ctx); err != nil { // the grace begins, also for a client that takes no lock
		return nil, fmt.Errorf("open session: %w", err)
	}
	opts.Heartbeat = cmp.Or(opts.Heartbeat, opts.TTL/3)
	s := &session{
		engine: e, id: rand.Text(), opts: opts, beating: make(chan struct{}, 1),
		claims: make(map[string]place), doubts: make(map[string]time.Time),
	}
	var err error
	if s.version, err = e.store.Swap(ctx, sessionKey+s.id, s.heartbeat().encode(), 0); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sessions[s.id] = s
	return s, nil
}

func (s *session) ID() string { return s.id }

func (s *session) heartbeat() heartbeat {
	s.beats++
	return heartbeat{TTL: s.opts.TTL.Microseconds(), Label: s.opts.Label, Beat: s.beats}
}

// check fails with ErrGone unless the session lives.
func (s *session) check(ctx context.Context) error {
	_, err := s.read(ctx)
	return err
}

func (s *session) read(ctx context.Context) (Item, error) {
	item, err := s.engine.store.Load(ctx, sessionKey+s.id)
	if err != nil {
		return item, err
	}
	if item.Version != 0 {
		h, err := decodeHeartbeat(item)
		if err != nil || !h.Dead {
			return item, err
		}
	}
	return item, fmt.Errorf("session: %w", engine.ErrGone)
}

// Enter implements [engine.Session].
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	out, err := s.engine.step(ctx, c.Resource, queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
		ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
	}}, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if errors.Is(err, engine.ErrUnavailable) || ctx.Err() != nil {
			s.doubts[c.Resource] = time.Now()
		}
		return engine.Grant{}, fmt.Errorf("enter: %w", err)
	}
	g := engine.Grant{Token: out.Token, Grace: out.grace}
	s.claims[c.ID] = place{c.Resource, out.after.version, g.Held()}
	return g, nil
}

// Leave implements [engine.Session].
func (s *session) Leave(ctx context.Context, resource, claim string) error {
	if err := s.engine.remove(ctx, "leave", resource, claim); err != nil && !errors.Is(err, engine.ErrGone) {
		return err
	} else {
		s.forget(claim)
		return err
	}
}

// forget forgets a claim that is not in the store.
func (s *session) forget(claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claims, claim)
}

// Renew implements [engine.Session].
func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	select {
	case s.beating <- struct{}{}:
		defer func() { <-s.beating }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := s.beat(ctx); err != nil {
		return nil, fmt.Errorf("renew session: %w", err)
	}
	names := make(map[string]bool)
	for _, c := range held {
		names[c.Resource] = true
	}
	l, _, err := s.engine.alive(ctx)
	if err != nil {
		return nil, fmt.Errorf("renew session: %w", err)
	}
	records, err := s.engine.loadAll(ctx, slices.Collect(maps.Keys(names)))
	if err != nil {
		return nil, fmt.Errorf("renew session: %w", err)
	}
	asked := make(map[string]bool)
	var gone []*engine.Claim
	for _, c := range held {
		asked[c.ID] = true
		r := records[c.Resource]
		is, here := r.find(c.ID)
		if !here {
			s.forget(c.ID)
		}
		if is.Token == 0 {
			gone = append(gone, c)
			s.holds(c.ID, false)
		}
	}
	s.reconcile(ctx, l.name, records)
	if s.opts.Found != nil {
		for name, r := range records {
			for _, c := range r.Claims {
				if c.Session == s.id && !asked[c.ID] {
					s.opts.Found(name, c.ID)
				}
			}
		}
	}
	return gone, nil
}

// beat writes the heartbeat.
func (s *session) beat(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		version, h := s.version, s.heartbeat()
		s.mu.Unlock()
		written, err := s.engine.store.Swap(ctx, sessionKey+s.id, h.encode(), version)
		if errors.Is(err, engine.ErrConflict) { // the session is dead, or a heartbeat in doubt arrived
			var item Item
			if item, err = s.read(ctx); err != nil {
				return err
			}
			s.at(item.Version)
			continue
		}
		if err != nil {
			return err
		}
		s.at(written)
		return nil
	}
}

func (s *session) at(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

// reconcile adds the records of names where the store may have unknown claims of the session. These are the names that a late
// request may have entered within a TTL. In another life of the store, which may be that of an old snapshot, these are
// all names. A name that cannot be read now is read by a later heartbeat, and costs the session no lock.
func (s *session) reconcile(ctx context.Context, life string, records map[string]record) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Heartbeat/2)
	defer cancel()
	s.doubtAfter(ctx, life)
	s.mu.Lock()
	names := slices.DeleteFunc(slices.Collect(maps.Keys(s.doubts)), func(name string) bool { _, read := records[name]; return read })
	s.mu.Unlock()
	found, _ := s.engine.loadAll(ctx, names)
	maps.Copy(records, found)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range records {
		if time.Since(s.doubts[name]) > s.opts.TTL {
			delete(s.doubts, name)
		}
	}
}

// doubtAfter puts all names in doubt when the store has another life than at the last heartbeat. Each of them is read once.
func (s *session) doubtAfter(ctx context.Context, life string) {
	s.mu.Lock()
	was := s.life
	s.mu.Unlock()
	var names []string
	if was != "" && was != life {
		for key, err := range s.engine.store.List(ctx, resourceKey) {
			if err != nil {
				return // the next heartbeat lists them
			}
			names = append(names, strings.TrimPrefix(key, resourceKey))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life = life
	for _, name := range names {
		if _, doubted := s.doubts[name]; !doubted {
			s.doubts[name] = time.Time{}
		}
	}
}

// loads is how many keys are loaded at once.
const loads = 16

// loadAll returns the records that could be read, and the first error.
func (e *Engine) loadAll(ctx context.Context, names []string) (map[string]record, error) {
	all := make(map[string]record, len(names))
	var mu sync.Mutex
	var failed error
	var working sync.WaitGroup
	places := make(chan struct{}, loads)
	for _, name := range names {
		places <- struct{}{}
		working.Go(func() {
			defer func() { <-places }()
			r, _, err := e.load(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				all[name] = r
			} else if failed == nil {
				failed = err
			}
		})
	}
	working.Wait()
	return all, failed
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	e := s.engine
	e.mu.Lock()
	delete(e.sessions, s.id)
	e.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.end(ctx); err != nil && !errors.Is(err, engine.ErrGone) {
		return fmt.Errorf("close session: %w", err)
	}
	return nil
}

// end marks the session as dead, and removes its claims.
func (s *session) end(ctx context.Context) error {
	select {
	case s.beating <- struct{}{}:
		defer func() { <-s.beating }()
	case <-ctx.Done():
		return ctx.Err()
	}
	e := s.engine
	for {
		item, err := s.read(ctx)
		if err != nil {
			return err
		}
		_, err = e.store.Swap(ctx, sessionKey+s.id, deadMark, item.Version)
		if err == nil {
			break
		}
		if !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
	e.mu.Lock()
	e.dead[s.id] = true
	e.mu.Unlock()
	s.mu.Lock()
	names := make(map[string]bool)
	for _, p := range s.claims {
		names[p.resource] = true
	}
	for name, since := range s.doubts {
		if !since.IsZero() { // else a claim there is of an earlier life
			names[name] = true
		}
	}
	s.mu.Unlock()
	for name := range names {
		if _, err := e.step(ctx, name, queue.Request{Op: queue.Poll}, nil); err != nil {
			return err
		}
	}
	return e.forget(ctx, s.id)
}
