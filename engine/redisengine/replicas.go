package redisengine

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// maxAck is how long replicas may take to say that they know a step.
const maxAck = time.Second

// acked sends a command, then waits on the same connection until so many replicas
// know its effect; short says how many do, if too few in time. That connection
// serves nobody else meanwhile, so an absent replica delays nobody else.
func (e *Engine) acked(ctx context.Context, cmd Command, wait int64) (result Reply, short error) {
	if e.requests != nil { // so few that renewals have a connection
		if err := e.requests.Take(ctx); err != nil {
			return Reply{Err: err}, nil
		}
		defer e.requests.Give()
	}
	return e.ackedNow(ctx, cmd, wait)
}

// ackedNow is acked for the commands that keep a session alive.
func (e *Engine) ackedNow(ctx context.Context, cmd Command, wait int64) (result Reply, short error) {
	defer func() { e.suspect(result) }()
	if wait <= 0 {
		return e.do(ctx, cmd), nil
	}
	within := maxAck
	if ttl := time.Duration(e.ttl.Load()) * time.Millisecond; ttl > 0 {
		within = min(within, ttl/3)
	}
	cmds := []Command{cmd, command("WAIT", "", strconv.FormatInt(wait, 10), ms(within))}
	replies := e.follow(ctx, e.client.Together(ctx, cmds), cmds)
	n, err := replies[1].number()
	switch {
	case err != nil:
		short = fmt.Errorf("wait for replicas: %w", err)
	case n < wait:
		short = fmt.Errorf("%d of %d replicas acknowledged it within %v", n, wait, within)
	}
	return replies[0], short
}

// ackedEach is acked for several commands, in one pipeline where that is possible.
func (e *Engine) ackedEach(ctx context.Context, cmds []Command) []reply {
	replies := make([]reply, len(cmds))
	if e.wait <= 0 {
		for i, result := range e.client.Pipeline(ctx, cmds) {
			replies[i] = replied(result, nil)
		}
		return replies
	}
	for i, cmd := range cmds {
		replies[i] = replied(e.ackedNow(ctx, cmd, e.wait))
	}
	return replies
}
