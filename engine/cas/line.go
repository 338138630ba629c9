package cas

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/turn"
)

// line is a resource for which claims of this engine wait. One goroutine follows it for all of
// them.
type line struct {
	name    string
	bell    chan struct{} // of one place: there is news to look at
	cancel  context.CancelFunc
	waiters map[string]*waiter // by claim, guarded by Engine.mu
	grace   bool               // claims may have entered in a restart grace, and no step was taken since
}

// waiter is a call of Await.
type waiter struct {
	claim   string
	version uint64        // of the resource after the claim entered
	look    time.Duration // the time between two requests without a message
	got     chan answer   // of one place
}

type answer struct {
	token fence.Token
	err   error
}

// Await implements [engine.Session].
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	s.mu.Lock()
	w := &waiter{claim: c.ID, version: s.claims[c.ID].version, look: s.opts.Heartbeat, got: make(chan answer, 1)}
	s.mu.Unlock()
	e := s.engine
	e.mu.Lock()
	l := e.lines[c.Resource]
	if l == nil {
		watching, cancel := context.WithCancel(e.ctx)
		l = &line{name: c.Resource, bell: make(chan struct{}, 1), cancel: cancel, waiters: make(map[string]*waiter), grace: true}
		e.lines[c.Resource] = l
		e.working.Go(func() { e.follow(watching, l) })
	}
	l.waiters[w.claim] = w
	e.mu.Unlock()
	l.ring()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if l.waiters[w.claim] == w {
			delete(l.waiters, w.claim)
		}
		if len(l.waiters) == 0 {
			l.cancel()
			if e.lines[l.name] == l {
				delete(e.lines, l.name)
			}
		}
	}()
	select {
	case a := <-w.got:
		if a.err != nil {
			return engine.Grant{}, fmt.Errorf("await: %w", a.err)
		}
		s.holds(c.ID, true)
		return engine.Grant{Token: a.token}, nil
	case <-ctx.Done():
		return engine.Grant{}, ctx.Err()
	}
}

func (l *line) ring() {
	select {
	case l.bell <- struct{}{}:
	default:
	}
}

// follow tells the waiters of a line the fate of their claims. follow also watches the sessions before
// them.
func (e *Engine) follow(ctx context.Context, l *line) {
	items, failed := make(chan Item), make(chan error, 1)
	e.working.Go(func() { failed <- e.feed(ctx, resourceKey+l.name, items) })
	guarded := make(map[string]bool)
	defer func() {
		for id := range guarded {
			e.unwatch(id, l.bell)
		}
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var now record
	var pause time.Duration
	for {
		var err error
		authoritative, known := false, false
		select {
		case <-ctx.Done():
			return
		case err = <-failed: // in vain, or with ctx
		case item := <-items:
			if item.Version != 0 && item.Version < now.version {
				continue // a request was sent since
			}
			if known = item.Version != 0; known {
				now, err = decode(item)
			}
		case <-l.bell:
			known = now.version != 0
		case <-timer.C:
		}
		waiters := e.waitersOf(l)
		if err == nil && (!known || newest(waiters) > now.version) {
			now, _, err = e.load(ctx, l.name)
			authoritative = true
		}
		if err == nil {
			now, err = e.advance(ctx, l, now, waiters, authoritative)
		}
		switch {
		case err == nil:
			pause = 0
			timer.Reset(e.guardAll(l, &now, waiters, guarded))
		case errors.Is(err, engine.ErrUnavailable): // if all waiters failed, each would enter again, and read the whole record
			pause = min(max(retryEvery, 2*pause), lookAgain)
			timer.Reset(pause)
		default:
			e.fail(l, err)
			return
		}
	}
}

// feed passes on the items of the store, and watches again after trouble. feed fails when watching again would be in vain.
func (e *Engine) feed(ctx context.Context, key string, items chan<- Item) error {
	for {
		for item, err := range e.store.Watch(ctx, key) {
			if errors.Is(err, engine.ErrUnavailable) {
				break
			}
			if err != nil {
				return err
			}
			select {
			case items <- item:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := turn.Pause(ctx, retryEvery); err != nil {
			return err
		}
	}
}

func (e *Engine) waitersOf(l *line) map[string]*waiter {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(l.waiters)
}

// newest is the version after which the last of the waiters entered.
func newest(waiters map[string]*waiter) (version uint64) {
	for _, w := range waiters {
		version = max(version, w.version)
	}
	return version
}

// fail ends the wait of all waiters, and the line. A waiter that waits again begins a new line.
func (e *Engine) fail(l *line, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lines[l.name] == l {
		delete(e.lines, l.name)
	}
	l.cancel()
	for _, w := range l.waiters {
		w.answer(answer{err: err})
	}
}

func (w *waiter) answer(a answer) {
	select {
	case w.got <- a:
	default: // the waiter has an answer
	}
}

// advance takes the steps that some client has to take. advance removes the dead, ends a restart grace,
// and tries for the first waiter of a free barging resource. Then advance answers the waiters whose
// claims are granted or gone.
func (e *Engine) advance(ctx context.Context, l *line, now record, waiters map[string]*waiter, authoritative bool) (record, error) {
	is, grace, err := e.alive(ctx)
	if err != nil {
		return now, err
	}
	l.grace = l.grace || grace.On()
	if r, due := e.due(l, now, waiters, is, grace); due {
		out, err := e.step(ctx, l.name, r, nil)
		if err != nil && !errors.Is(err, engine.ErrGone) {
			return now, err
		}
		if now, authoritative = out.after, true; err != nil {
			now, _, err = e.load(ctx, l.name)
		}
		if err != nil {
			return now, err
		}
	}
	l.grace = grace.On()
	lost := missing(now, waiters)
	if len(lost) > 0 && !authoritative { // the read item may be older than a claim
		if now, _, err = e.load(ctx, l.name); err != nil {
			return now, err
		}
		lost = missing(now, waiters)
	}
	for _, w := range lost {
		w.answer(answer{err: engine.ErrGone})
	}
	return now, e.tell(ctx, l, now, waiters)
}

// missing returns the waiters whose claims are not there.
func missing(now record, waiters map[string]*waiter) (lost []*waiter) {
	found := 0
	for _, c := range now.Claims {
		if waiters[c.ID] != nil {
			found++
		}
	}
	if found == len(waiters) {
		return nil
	}
	for id, w := range waiters {
		if _, is := now.find(id); !is {
			lost = append(lost, w)
		}
	}
	return lost
}

// tell answers the waiters whose claims are granted. For a grant that is unsure, tell asks again first.
func (e *Engine) tell(ctx context.Context, l *line, now record, waiters map[string]*waiter) error {
	is, grace, err := e.alive(ctx) // after the record was read
	if err != nil {
		return err
	}
	for _, c := range now.Claims {
		if c.Token == 0 {
			continue
		}
		w := waiters[c.ID]
		if w == nil {
			continue
		}
		if now.unsure(is, grace) {
			out, err := e.step(ctx, l.name, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}}, nil)
			if err != nil && !errors.Is(err, engine.ErrGone) {
				return err
			}
			c.Token = out.Token
		}
		if c.Token != 0 {
			w.answer(answer{token: c.Token})
		}
	}
	return nil
}

// due returns the step that would change the resource, if there is one. For a resource in order
// that step removes the dead, or makes the grants that a restart grace delayed.
func (e *Engine) due(l *line, now record, waiters map[string]*waiter, is life, grace engine.Grace) (queue.Request, bool) {
	r := queue.Request{Op: queue.Poll}
	if now.Spec.Barging {
		i := slices.IndexFunc(now.Claims, func(c queue.Claim) bool { return c.Token == 0 })
		if i >= 0 && waiters[now.Claims[i].ID] != nil {
			r.Claim.ID = now.Claims[i].ID
		}
	} else if !l.grace && !e.hasDead(now) {
		return r, false
	}
	next, _ := e.apply(now.State, r, queue.Clock{Mint: firstToken(now.Last, is.base, now.version+1)}, grace.On(), nil)
	same := slices.EqualFunc(next.Claims, now.Claims, func(a, b queue.Claim) bool { return a.ID == b.ID && a.Token == b.Token })
	return r, !same
}

func (e *Engine) hasDead(now record) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.dead) > 0 && slices.ContainsFunc(now.Claims, func(c queue.Claim) bool { return e.dead[c.Session] })
}

// guardAll watches the sessions at both ends of the line before each waiter, and the waiters' own
// sessions. guardAll returns when to ask the store without a message.
func (e *Engine) guardAll(l *line, now *record, waiters map[string]*waiter, guarded map[string]bool) time.Duration {
	wanted := make(map[string]bool)
	look := time.Hour
	for _, w := range waiters {
		look = min(look, w.look)
	}
	last := ""
	for _, c := range now.Claims {
		if waiters[c.ID] != nil {
			last = c.ID
			wanted[c.Session] = true
		}
	}
	if last != "" {
		for _, id := range ends(now.Claims, last) {
			wanted[id] = true
		}
	}
	for id := range wanted {
		if !guarded[id] {
			e.watch(id, l.bell)
			guarded[id] = true
		}
	}
	for id := range guarded {
		if !wanted[id] {
			e.unwatch(id, l.bell)
			delete(guarded, id)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if grace := e.life; grace.name != "" && !grace.over {
		look = min(look, 100*time.Millisecond)
	}
	return max(look, time.Millisecond)
}
