package redisengine

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/turn"
)

// maxAck is how long replicas may take to say that they know a step.
const maxAck = time.Second

// acked sends a command, then waits on the same connection until so many replicas
// know its effect. That connection serves nobody else meanwhile, so an absent replica
// delays nobody else.
func (e *Engine) acked(ctx context.Context, cmd Command, wait int64) Reply {
	give, err := e.place(ctx)
	if err != nil {
		return Reply{Err: err}
	}
	defer give()
	return e.ackedNow(ctx, cmd, wait)
}

// place takes a place among the requests under way, which are so few that renewals have a connection.
func (e *Engine) place(ctx context.Context) (give func(), err error) {
	if e.requests == nil {
		return func() {}, nil
	}
	return e.requests.Give, e.requests.Take(ctx)
}

// ackedNow is acked for the commands that keep a session alive.
func (e *Engine) ackedNow(ctx context.Context, cmd Command, wait int64) (result Reply) {
	defer func() { e.suspect(result) }()
	if wait <= 0 {
		return e.do(ctx, cmd)
	}
	within := min(maxAck, cmp.Or(e.belief()/3, maxAck))
	cmds := []Command{cmd, command("WAIT", "", strconv.FormatInt(wait, 10), ms(within))}
	replies := e.follow(ctx, e.client.Together(ctx, cmds), cmds)
	result = replies[0]
	n, err := replies[1].number()
	switch {
	case err != nil:
		result.short = fmt.Errorf("wait for replicas: %w", err)
	case n < wait:
		result.short = fmt.Errorf("%d of %d replicas acknowledged it within %v", n, wait, within)
	}
	return result
}

// maxEach is how many commands that keep a session alive wait for replicas at once.
const maxEach = 16

// ackedEach is ackedNow for several commands, in one pipeline where that is possible. After a command has
// failed, ackedEach sends no later one.
func (e *Engine) ackedEach(ctx context.Context, cmds []Command) []Reply {
	if e.wait <= 0 {
		return e.client.Pipeline(ctx, cmds)
	}
	replies := make([]Reply, len(cmds))
	var all sync.WaitGroup
	var broken atomic.Bool
	places := turn.New(maxEach)
	for i, cmd := range cmds {
		if places.Take(ctx) != nil || broken.Load() {
			break
		}
		all.Go(func() {
			defer places.Give()
			if replies[i] = e.ackedNow(ctx, cmd, e.wait); replies[i].failed() != nil {
				broken.Store(true)
			}
		})
	}
	all.Wait()
	return replies
}
