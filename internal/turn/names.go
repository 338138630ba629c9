package turn

import (
	"context"
	"sync"
)

// Names has a [Turn] for each name that a caller has or waits for. Create it with [NewNames]. Names is
// safe for concurrent use.
type Names struct {
	places int

	mu    sync.Mutex
	turns map[string]*named
}

type named struct {
	turn  Turn
	users int // callers that have a place or wait for one
}

// NewNames returns Names of so many places each.
func NewNames(places int) *Names { return &Names{places: places, turns: make(map[string]*named)} }

// Take waits for a place of a name, or returns the cause of ctx. The caller gives the place back with
// give.
func (n *Names) Take(ctx context.Context, name string) (give func(), err error) {
	n.mu.Lock()
	t := n.turns[name]
	if t == nil {
		t = &named{turn: New(n.places)}
		n.turns[name] = t
	}
	t.users++
	n.mu.Unlock()
	leave := func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(n.turns, name)
		}
	}
	if err := t.turn.Take(ctx); err != nil {
		leave()
		return nil, err
	}
	return func() { t.turn.Give(); leave() }, nil
}
