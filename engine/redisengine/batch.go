package redisengine

import (
	"context"
	"slices"
	"sync"
)

// batch sends the steps of a session. A few go each by itself, at once. While so
// many are under way, later steps wait until one of these is
// back, and go together as one script. The busier the session, the fewer
// requests, each of which costs the client and the server more than a step does.
type batch struct {
	mu      sync.Mutex
	flying  int
	waiting []*step
}

const (
	maxFlying = 8  // requests under way
	maxSteps  = 32 // in one request, because nobody else is served meanwhile
)

// step is an Enter, a Leave or a look on its way.
type step struct {
	verb verb
	keys []string // as the script wants them
	args [4]string
	done chan Reply
}

// step runs the script of one step, alone or with others.
func (s *session) step(ctx context.Context, v verb, keys []string, args [4]string) Reply {
	if s.engine.cluster { // where the steps of a session are of many slots
		return s.engine.run(ctx, v, keys, s.arguments(args, "", ""), s.engine.wait)
	}
	b := &s.batch
	b.mu.Lock()
	if b.flying < maxFlying {
		b.flying++
		b.mu.Unlock()
		defer s.landed()
		return s.engine.run(ctx, v, keys, args[:], s.engine.wait)
	}
	st := &step{v, keys, args, make(chan Reply, 1)}
	b.waiting = append(b.waiting, st)
	b.mu.Unlock()
	select {
	case r := <-st.done:
		return r
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		b.waiting = slices.DeleteFunc(b.waiting, func(other *step) bool { return other == st })
		return Reply{Err: context.Cause(ctx)}
	}
}

// landed ends a request. Steps that wait take its place.
func (s *session) landed() {
	b := &s.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.life.Err() != nil {
		for _, st := range b.waiting {
			st.done <- Reply{Err: context.Cause(s.life)}
		}
		b.waiting = nil
	}
	if len(b.waiting) == 0 {
		b.flying--
		return
	}
	n := min(len(b.waiting), maxSteps)
	steps := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	s.done.Go(func() { s.fly(steps) })
}

func (s *session) fly(steps []*step) {
	defer s.landed()
	ctx, cancel := context.WithTimeout(s.life, s.opts.TTL)
	defer cancel()
	if len(steps) == 1 {
		steps[0].done <- s.engine.run(ctx, steps[0].verb, steps[0].keys, steps[0].args[:], s.engine.wait)
		return
	}
	keys := append(make([]string, 0, 4+3*len(steps)), steps[0].keys[:6]...)
	keys = append(keys, s.key)
	args := make([]string, 0, 5*len(steps))
	for i, st := range steps {
		if i > 0 {
			keys = append(keys, st.keys[:3]...)
		}
		args = append(append(args, letters[st.verb:st.verb+1]), st.args[:]...)
	}
	result := s.engine.run(ctx, many, keys, args, s.engine.wait)
	replies, err := result.list()
	for i, st := range steps {
		each := Reply{Err: err, short: result.short}
		if err == nil {
			each.Value = replies[i]
			each.Err, _ = replies[i].(error)
		}
		s.engine.suspect(each)
		st.done <- each
	}
}
