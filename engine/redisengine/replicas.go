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
	results := e.client.DoMulti(ctx, cmd, e.client.B().Wait().Numreplicas(wait).Timeout(within.Milliseconds()).Build())
	n, err := results[1].AsInt64()
	switch {
	case err != nil:
		short = fmt.Errorf("wait for replicas: %w", err)
	case n < wait:
		short = fmt.Errorf("%d of %d replicas acknowledged it within %v", n, wait, within)
	}
	return results[0], short
}
