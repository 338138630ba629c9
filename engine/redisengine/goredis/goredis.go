// Package goredis lets redisengine speak to Redis through a client of
// github.com/redis/go-redis/v9. Locks are the same as through rueidis, and clients of
// both share them.
//
// Each request under way takes a connection of the client's pool, while rueidis sends all requests
// over one. A client with MaxRetries -1, and DialerRetries 1 where it has that option, reports
// sooner that a server is away. After as many failures as its pool has connections, the client does
// not dial for up to a second. So a TTL should be some seconds.
package goredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pawl-go/pawl/engine/redisengine"
)

// New returns the engine of a client, which stays the caller's: of one server, of the master that
// Sentinels name, or of a Redis Cluster. All sessions and watchers take one connection besides
// those of its pool. Nil opts are the defaults.
//
// Some clients may not see the holder of a lock, and are refused: a [redis.Ring], and a client of a
// cluster that reads from replicas. So is a client that is told its slots, and a pool of one
// connection.
func New(of redis.UniversalClient, opts *redisengine.Options) (*redisengine.Engine, error) {
	var pool int
	switch of := of.(type) {
	case *redis.Client:
		pool = of.Options().PoolSize
	case *redis.ClusterClient:
		o := of.Options()
		if pool = o.PoolSize; o.ReadOnly || o.ClusterSlots != nil {
			return nil, errors.New("goredis: a client that reads from replicas, or is told its slots, may not see the holder of a lock")
		}
	default:
		return nil, fmt.Errorf("goredis: %T is refused: use a *redis.Client or a *redis.ClusterClient. The servers of a Ring do not know of one another, so two clients could get one lock there", of)
	}
	if pool < 2 {
		return nil, errors.New("goredis: a PoolSize of 1 is refused: a renewal would wait for other requests, and locks be lost")
	}
	var o redisengine.Options
	if opts != nil {
		o = *opts
	}
	o.Requests = cmp.Or(o.Requests, pool-1)
	return redisengine.NewOn(client{of}, &o), nil
}

type client struct{ of redis.UniversalClient }

func (c client) Cluster() bool { _, is := c.of.(*redis.ClusterClient); return is }

func (c client) Do(ctx context.Context, cmd redisengine.Command) redisengine.Reply {
	return c.Together(ctx, []redisengine.Command{cmd})[0]
}

func (c client) Pipeline(ctx context.Context, cmds []redisengine.Command) []redisengine.Reply {
	return send(ctx, c.of.Pipeline(), cmds)
}

// Together takes a Conn, which is one connection. go-redis retries by itself, also
// when only the answer was lost; but a Conn that broke stays broken.
func (c client) Together(ctx context.Context, cmds []redisengine.Command) []redisengine.Reply {
	node, _ := c.of.(*redis.Client)
	if cluster, is := c.of.(*redis.ClusterClient); is {
		var err error
		if node, err = cluster.MasterForKey(ctx, cmds[0].Keys[0]); err != nil {
			return slices.Repeat([]redisengine.Reply{{Err: err}}, len(cmds))
		}
	}
	conn := node.Conn()
	defer conn.Close() //nolint:errcheck // it goes back to its pool
	return send(ctx, conn.Pipeline(), cmds)
}

func send(ctx context.Context, p redis.Pipeliner, cmds []redisengine.Command) []redisengine.Reply {
	sent, replies := make([]*redis.Cmd, len(cmds)), make([]redisengine.Reply, len(cmds))
	for i, cmd := range cmds {
		words := make([]any, 0, len(cmd.Head)+len(cmd.Keys)+len(cmd.Args))
		for _, word := range slices.Concat(cmd.Head, cmd.Keys, cmd.Args) {
			words = append(words, word)
		}
		sent[i] = p.Do(ctx, words...)
		sent[i].SetFirstKeyPos(int8(len(cmd.Head)))
	}
	_, failed := p.Exec(ctx)
	for i, cmd := range sent {
		switch value, err := cmd.Result(); {
		case value == nil && err == nil: // there was no connection
			replies[i].Err = failed
		case !errors.Is(err, redis.Nil):
			replies[i] = redisengine.Reply{Value: value, Err: err}
		}
	}
	return replies
}

// Listen: go-redis connects again by itself, and the server then confirms all channels again.
func (c client) Listen(ctx context.Context, receive func(channel, message string), confirmed func(string)) (*redisengine.Listener, error) {
	pubsub := c.of.Subscribe(ctx)
	go func() {
		for event := range pubsub.ChannelWithSubscriptions() {
			if m, is := event.(*redis.Message); is {
				receive(m.Channel, m.Payload)
			} else if s, is := event.(*redis.Subscription); is && s.Kind == "subscribe" {
				confirmed(s.Channel)
			}
		}
	}()
	return &redisengine.Listener{
		Subscribe:   func(ctx context.Context, channels []string) error { return pubsub.Subscribe(ctx, channels...) },
		Unsubscribe: func(ctx context.Context, channels []string) error { return pubsub.Unsubscribe(ctx, channels...) },
		Close:       func() { go pubsub.Close() },
	}, nil
}

func (c client) Nodes(ctx context.Context) (map[string]redisengine.Client, error) {
	var mu sync.Mutex
	nodes := make(map[string]redisengine.Client)
	return nodes, c.of.(*redis.ClusterClient).ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes[node.Options().Addr] = client{node}
		return nil
	})
}
