package redisengine

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// maxAck is how long replicas may take to say that they know a step.
const maxAck = time.Second

// acked sends a command, then waits on the same connection until so many replicas
// know what it did; short says how many do, if too few in time. That connection
// serves nobody else meanwhile, so a replica that is away delays nobody else.
func (e *Engine) acked(ctx context.Context, cmd rueidis.Completed, wait int64) (result rueidis.RedisResult, short error) {
	if wait <= 0 {
		return e.client.Do(ctx, cmd), nil
	}
	within := maxAck
	if ttl := time.Duration(e.ttl.Load()) * time.Millisecond; ttl > 0 {
		within = min(within, ttl/3)
	}
	// The client takes a connection of its pool for both, as the second one blocks.
	results := e.together(ctx, cmd, e.client.B().Wait().Numreplicas(wait).Timeout(within.Milliseconds()).Build())
	n, err := results[1].AsInt64()
	switch {
	case err != nil:
		short = fmt.Errorf("wait for replicas: %w", err)
	case n < wait:
		short = fmt.Errorf("%d of %d replicas acknowledged it within %v", n, wait, within)
	}
	return results[0], short
}

// together sends a command and what speaks of it over one connection. The client
// of a cluster, when it is sent elsewhere, would follow with the first of the two
// only; so here it follows none by itself.
func (e *Engine) together(ctx context.Context, cmd, then rueidis.Completed) []rueidis.RedisResult {
	if !e.cluster {
		return e.client.DoMulti(ctx, cmd, then)
	}
	cmd, then = cmd.Pin(), then.Pin() // they may be sent more than once
	conn, release := e.client.Dedicate()
	results := conn.DoMulti(ctx, cmd, then)
	if results[0].NonRedisError() != nil || results[1].NonRedisError() != nil {
		conn.Close() // an answer may still come
		return results
	}
	release()
	for range 3 {
		err, ok := rueidis.IsRedisErr(results[0].Error())
		if !ok {
			break
		}
		addr, moved := err.IsMoved()
		asking := false
		if !moved {
			addr, asking = err.IsAsk()
		}
		node := e.client.Nodes()[addr]
		switch {
		case node == nil:
			return results
		case asking:
			results = node.DoMulti(ctx, node.B().Arbitrary("ASKING").Build(), cmd, then)[1:]
		default:
			results = node.DoMulti(ctx, cmd, then)
		}
	}
	return results
}

// ackedEach is acked for several commands, in one pipeline where that is possible.
func (e *Engine) ackedEach(ctx context.Context, cmds rueidis.Commands) []reply {
	replies := make([]reply, len(cmds))
	if e.wait <= 0 {
		for i, result := range e.client.DoMulti(ctx, cmds...) {
			replies[i] = replied(result, nil)
		}
		return replies
	}
	for i, cmd := range cmds {
		replies[i] = replied(e.acked(ctx, cmd, e.wait))
	}
	return replies
}
