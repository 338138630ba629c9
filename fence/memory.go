package fence

import (
	"context"
	"sync"
)

// Memory is a [Guard] in this process. The zero Memory is ready; it must not be
// copied. A Memory is safe for concurrent use.
//
// Memory protects resources to which only this process writes: a map, a file, a device, a
// connection. With [Memory.Do] the check and the write are one step.
//
// Memory forgets when the process ends. The first token after that passes even if it is old. A
// frozen holder that wakes up after a restart is refused only after a newer holder was there.
// Nor does Memory know the tokens of another process, so a service of several replicas keeps
// its marks in their common database.
//
// Memory keeps a few words for each resource for ever, so names should be of a
// bounded set, not chosen by strangers.
type Memory struct {
	mu    sync.Mutex
	marks map[string]*mark
}

type mark struct {
	newest  Token
	active  Token         // of the writes that run in Do
	running int           // how many
	idle    chan struct{} // closed when no write runs any more
}

// Check implements [Guard]. Check does not wait for a Do that runs.
func (g *Memory) Check(_ context.Context, resource string, token Token) error {
	if err := Validate(resource, token); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.pass(resource, token)
	return err
}

// Do runs write if the token passes, as one step. While write runs, no write with a newer token
// starts, and no write with an older token ever will. Writes with equal tokens run beside one
// another, because they are of one holder. Do returns the error of write or of the check. If
// ctx ends while a write with an older token is still running, Do returns the cause of ctx.
func (g *Memory) Do(ctx context.Context, resource string, token Token, write func() error) error {
	if err := Validate(resource, token); err != nil {
		return err
	}
	m, err := g.enter(ctx, resource, token)
	if err != nil {
		return err
	}
	defer g.leave(m)
	return write()
}

// pass raises the mark. The caller holds the mutex.
func (g *Memory) pass(resource string, token Token) (*mark, error) {
	m := g.marks[resource]
	if m == nil {
		m = new(mark)
		if g.marks == nil {
			g.marks = make(map[string]*mark)
		}
		g.marks[resource] = m
	}
	if token < m.newest {
		return nil, Stale(resource, token)
	}
	m.newest = token
	return m, nil
}

// enter waits until nothing runs with an older token. enter raises the mark before
// it waits, so that a late write with an older token cannot hold it up.
func (g *Memory) enter(ctx context.Context, resource string, token Token) (*mark, error) {
	for {
		g.mu.Lock()
		m, err := g.pass(resource, token)
		if err != nil {
			g.mu.Unlock()
			return nil, err
		}
		if m.running == 0 {
			m.active, m.idle = token, make(chan struct{})
		}
		if m.active == token {
			m.running++
			g.mu.Unlock()
			return m, nil
		}
		idle := m.idle
		g.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (g *Memory) leave(m *mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.running--; m.running == 0 {
		close(m.idle)
	}
}
