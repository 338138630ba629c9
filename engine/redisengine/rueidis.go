package redisengine

import (
	"context"
	"slices"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/internal/bounded"
)

// onRueidis is a [Client] of that library. Commands keep its fast path, which plain
// ones have whose ctx cannot be cancelled, or ends by itself.
type onRueidis struct{ client rueidis.Client }

func (c onRueidis) Cluster() bool {
	return c.client != nil && c.client.Mode() == rueidis.ClientModeCluster
}

func (c onRueidis) build(cmd Command) rueidis.Completed {
	all := c.client.B().Arbitrary(cmd.Head...).Keys(cmd.Keys...).Args(cmd.Args...)
	if cmd.Reads {
		// Pinned: the client sends a read again when a connection broke. The client may take its memory for
		// another command while the broken one still looks at it.
		return all.ReadOnly().Pin()
	}
	return all.Build()
}

func answered(result rueidis.RedisResult) Reply {
	value, err := result.ToAny()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return Reply{Value: value, Err: err}
}

func (c onRueidis) Do(ctx context.Context, cmd Command) Reply {
	return answered(c.client.Do(ctx, c.build(cmd)))
}

func (c onRueidis) Pipeline(ctx context.Context, cmds []Command) []Reply {
	return answers(c.client.DoMulti(ctx, c.all(cmds)...))
}

func (c onRueidis) all(cmds []Command) []rueidis.Completed {
	all := make([]rueidis.Completed, len(cmds))
	for i, cmd := range cmds {
		all[i] = c.build(cmd)
	}
	return all
}

func answers(results []rueidis.RedisResult) []Reply {
	replies := make([]Reply, len(results))
	for i, result := range results {
		replies[i] = answered(result)
	}
	return replies
}

// Together: the client of a cluster, when it is sent elsewhere, would follow with
// the first command only, so it gets to know of none.
func (c onRueidis) Together(ctx context.Context, cmds []Command) []Reply {
	last := cmds[len(cmds)-1]
	if last.Head[0] != "WAIT" { // which blocks the connection
		return c.Pipeline(ctx, cmds)
	}
	all := append(c.all(cmds[:len(cmds)-1]),
		c.client.B().Arbitrary(last.Head...).Keys(last.Keys...).Args(last.Args...).Blocking())
	if !c.Cluster() {
		return answers(c.client.DoMulti(ctx, all...))
	}
	conn, release := c.client.Dedicate()
	results := conn.DoMulti(ctx, all...)
	if slices.ContainsFunc(results, func(r rueidis.RedisResult) bool { return r.NonRedisError() != nil }) {
		release = conn.Close // an answer may still come
	}
	release()
	return answers(results)
}

// Listen: the connection is closed in the end, not given back to the pool. To unsubscribe takes an
// answer of a server that may be frozen.
func (c onRueidis) Listen(ctx context.Context, receive func(channel, message string), confirmed func(string)) (*Listener, error) {
	conn, err := bounded.Call(ctx, func() (rueidis.DedicatedClient, error) {
		conn, _ := c.client.Dedicate() // which does not look at a context while it dials
		return conn, nil
	}, rueidis.DedicatedClient.Close)
	if err != nil {
		return nil, err
	}
	broken := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage:      func(m rueidis.PubSubMessage) { receive(m.Channel, m.Message) },
		OnSubscription: func(s rueidis.PubSubSubscription) { subscribed(s, confirmed) },
	})
	return &Listener{
		Subscribe: func(ctx context.Context, channels []string) error {
			return conn.Do(ctx, conn.B().Subscribe().Channel(channels...).Build()).Error()
		},
		Unsubscribe: func(ctx context.Context, channels []string) error {
			return conn.Do(ctx, conn.B().Unsubscribe().Channel(channels...).Build()).Error()
		},
		Broken: broken,
		Close:  conn.Close,
	}, nil
}

func subscribed(s rueidis.PubSubSubscription, confirmed func(string)) {
	if s.Kind == "subscribe" {
		confirmed(s.Channel)
	}
}

// listenOn is Listen over the one connection of a client that does nothing else. The client
// knows each channel by itself.
func listenOn(client rueidis.Client, receive func(channel, message string), confirmed func(string)) *Listener {
	life, end := context.WithCancel(context.Background())
	hooked := rueidis.WithOnSubscriptionHook(life, func(s rueidis.PubSubSubscription) { subscribed(s, confirmed) })
	broken := make(chan error, 1)
	return &Listener{
		Subscribe: func(_ context.Context, channels []string) error {
			for _, channel := range channels {
				go func() {
					err := client.Receive(hooked, client.B().Subscribe().Channel(channel).Build(),
						func(m rueidis.PubSubMessage) { receive(m.Channel, m.Message) })
					if err != nil && life.Err() == nil {
						select {
						case broken <- err:
						default:
						}
					}
				}()
			}
			return nil
		},
		Unsubscribe: func(ctx context.Context, channels []string) error {
			return client.Do(ctx, client.B().Unsubscribe().Channel(channels...).Build()).Error()
		},
		Broken: broken,
		Close:  end,
	}
}

func (c onRueidis) Nodes(context.Context) (map[string]Client, error) {
	nodes := make(map[string]Client)
	for addr, node := range c.client.Nodes() {
		nodes[addr] = onRueidis{node}
	}
	return nodes, nil
}
