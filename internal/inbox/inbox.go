// Package inbox is the client's part of a session whose store sends messages to waiting claims. A
// message is a hint, and may be lost: each claim also asks the store once a heartbeat.
package inbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// Options say how a session learns of its grants.
type Options struct {
	// Heartbeat is the longest time for which a waiting claim relies on messages.
	Heartbeat time.Duration

	// Together says that one claim asks the store for all that wait for its resource. The others find
	// out in another way what messages were lost. Else each claim asks for itself.
	Together bool

	// Verify says that a message of a grant does not count until the store has confirmed it.
	Verify bool

	// Gone, when set, is called when a message says that a claim is gone which does not wait.
	Gone func(claim string)
}

// Inbox has the waiting claims of one session. Create it with [New]. All methods are safe for
// concurrent use, and none waits but [Inbox.Enter] and [Inbox.Await].
type Inbox struct {
	opts Options

	mu      sync.Mutex
	waiters map[string]*Waiter // by claim
	lines   map[string]*line   // by resource, or by claim
}

// Waiter is a claim that waits, or is about to enter.
type Waiter struct {
	Claim *engine.Claim

	told    chan fence.Token // of a grant; 0: ask the store
	gone    chan struct{}    // closed when the claim was removed
	removed bool
	line    *line
	stored  bool // the store has said that the claim waits
}

// line is all claims of which one asks the store.
type line struct {
	key     string
	waiters int
	ask     time.Time // when the next one does
	asker   *Waiter   // the last claim that asked: the timers of the others may end later
}

// Ask asks the store for a claim. An Ask returns the grant, or after which time to ask again: 0 is a
// heartbeat.
type Ask func(context.Context) (engine.Grant, time.Duration, error)

// New returns an empty inbox.
func New(opts Options) *Inbox {
	return &Inbox{opts: opts, waiters: make(map[string]*Waiter), lines: make(map[string]*line)}
}

// expect returns the waiter of a claim, made when it is new.
func (b *Inbox) expect(c *engine.Claim) *Waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waiters[c.ID]
	if w != nil {
		return w
	}
	key := c.ID
	if b.opts.Together {
		key = c.Resource
	}
	l := b.lines[key]
	if l == nil {
		l = &line{key: key, ask: time.Now().Add(b.opts.Heartbeat)}
		b.lines[key] = l
	}
	l.waiters++
	w = &Waiter{Claim: c, gone: make(chan struct{}), told: make(chan fence.Token, 1), line: l}
	b.waiters[c.ID] = w
	return w
}

// Forget ends the waiting of a claim. Forget returns the waiter, or nil if the claim did not wait. Another claim of
// the line looks in place of the asker.
func (b *Inbox) Forget(claim string) *Waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waiters[claim]
	if w == nil {
		return nil
	}
	delete(b.waiters, claim)
	if w.line.waiters--; w.line.waiters == 0 {
		delete(b.lines, w.line.key)
	} else if w.line.asker == w {
		for _, next := range b.waiters {
			if next.line == w.line {
				w.line.asker = next
				next.Look()
				break
			}
		}
	}
	return w
}

// All returns the waiting claims.
func (b *Inbox) All() []*Waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.waiters))
}

// Waits reports whether a claim waits.
func (b *Inbox) Waits(claim string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiters[claim] != nil
}

// Len returns how many claims wait.
func (b *Inbox) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiters)
}

// WaitsFor reports whether a claim waits for the resource, where claims ask together.
func (b *Inbox) WaitsFor(resource string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines[resource] != nil
}

// Receive hands a message to its claim, and reports whether that claim waits here. The token is that
// of the grant; without a token the claim is to ask the store. Gone says that the claim was removed.
func (b *Inbox) Receive(claim string, token fence.Token, gone bool) bool {
	b.mu.Lock()
	w := b.waiters[claim]
	if w != nil && gone && !w.removed {
		w.removed = true
		close(w.gone)
	}
	b.mu.Unlock()
	switch {
	case w != nil:
		w.tell(token)
	case gone && b.opts.Gone != nil:
		b.opts.Gone(claim)
	}
	return w != nil
}

// Removed is closed when a message says that a waiting claim is gone. The channel is nil for a claim that does
// not wait.
func (b *Inbox) Removed(claim string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.waiters[claim]; w != nil {
		return w.gone
	}
	return nil
}

// Look has the claim ask the store, as after messages may have been lost.
func (w *Waiter) Look() { w.tell(0) }

func (w *Waiter) tell(token fence.Token) {
	select {
	case w.told <- token:
	default: // an earlier message has the claim ask or hold
	}
}

// Enter enters a claim by ask. A claim that is to wait is noted before, because the message of its
// grant may overtake the answer.
func (b *Inbox) Enter(ctx context.Context, c *engine.Claim, wait bool, ask Ask) (engine.Grant, error) {
	var w *Waiter
	if wait {
		w = b.expect(c)
	}
	grant, pause, err := ask(ctx)
	if wait && err == nil && !grant.Held() {
		b.rest(w, pause)
	} else {
		b.Forget(c.ID)
	}
	return grant, err
}

// Await waits for the grant of a claim, or for an error of ask. Await asks at once when it does not know
// since when the claim waits. After another error than [engine.ErrGone] the claim still waits.
func (b *Inbox) Await(ctx context.Context, c *engine.Claim, ask Ask) (engine.Grant, error) {
	w := b.expect(c)
	left, stored := b.left(w)
	if !stored {
		w.Look()
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	for {
		select {
		case token := <-w.told:
			if token != 0 && !b.opts.Verify {
				b.Forget(c.ID)
				return engine.Grant{Token: token}, nil
			}
		case <-timer.C:
			if left := b.due(w); left > 0 {
				timer.Reset(left)
				continue
			}
		case <-ctx.Done():
			return engine.Grant{}, context.Cause(ctx)
		}
		grant, pause, err := ask(ctx)
		switch {
		case grant.Held() || errors.Is(err, engine.ErrGone):
			b.Forget(c.ID)
			return grant, err
		case err != nil:
			w.Look() // what this look was for is still to be found out
			return grant, err
		}
		timer.Reset(b.rest(w, pause))
	}
}

// rest notes that the claim waits in the store, and returns how long its line waits before it asks.
func (b *Inbox) rest(w *Waiter, pause time.Duration) time.Duration {
	if pause == 0 || pause > b.opts.Heartbeat {
		pause = b.opts.Heartbeat
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	w.stored, w.line.ask, w.line.asker = true, time.Now().Add(pause), w
	return pause
}

// left returns the time until the line asks, and whether the claim is known to wait in the store.
func (b *Inbox) left(w *Waiter) (left time.Duration, stored bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Until(w.line.ask), w.stored
}

// due returns 0 to the one claim of a line that is to ask now, and else the time until one asks.
func (b *Inbox) due(w *Waiter) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if left := w.line.ask.Sub(now); left > 0 {
		return left
	}
	w.line.ask, w.line.asker = now.Add(b.opts.Heartbeat), w
	return 0
}
