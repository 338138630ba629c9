package redisengine

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/pawl-go/pawl/internal/bounded"
)

// ending makes calls end with their ctx where the library does not. Late
// replies are dropped.
//
// That takes a goroutine for each call, which costs as much as a third of a round trip. So ending
// may trust the library as long as the server answers. rueidis looks at no ctx while it dials,
// which it does only after there was trouble.
type ending struct {
	Client
	trouble *atomic.Bool // the last call had no answer; nil: the library is never trusted
}

func (e ending) Do(ctx context.Context, cmd Command) Reply {
	return e.replies(ctx, 1, func() ([]Reply, error) { return []Reply{e.Client.Do(ctx, cmd)}, nil })[0]
}

func (e ending) Together(ctx context.Context, cmds []Command) []Reply {
	return e.replies(ctx, len(cmds), func() ([]Reply, error) { return e.Client.Together(ctx, cmds), nil })
}

func (e ending) Pipeline(ctx context.Context, cmds []Command) []Reply {
	return e.replies(ctx, len(cmds), func() ([]Reply, error) { return e.Client.Pipeline(ctx, cmds), nil })
}

func (e ending) replies(ctx context.Context, n int, do func() ([]Reply, error)) []Reply {
	if e.trouble != nil && !e.trouble.Load() {
		ctx = context.Background() // the call has no goroutine of its own
	}
	all, err := bounded.Call(ctx, do, nil)
	if err != nil {
		all = slices.Repeat([]Reply{{Err: err}}, n)
	}
	// A server's refusal counts as trouble, too: then the next call takes a goroutine and clears it.
	is := slices.ContainsFunc(all, func(r Reply) bool { return r.Err != nil })
	if e.trouble != nil && e.trouble.Load() != is {
		e.trouble.Store(is)
	}
	return all
}

func (e ending) Listen(ctx context.Context, receive func(channel, message string), confirmed func(string)) (*Listener, error) {
	return bounded.Call(ctx, func() (*Listener, error) { return e.Client.Listen(ctx, receive, confirmed) },
		func(in *Listener) { in.Close() })
}

func (e ending) Nodes(ctx context.Context) (map[string]Client, error) {
	nodes, err := bounded.Call(ctx, func() (map[string]Client, error) { return e.Client.Nodes(ctx) }, nil)
	for addr, node := range nodes {
		nodes[addr] = ending{node, e.trouble}
	}
	return nodes, err
}
