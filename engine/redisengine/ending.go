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

func endingAfterTrouble(client Client) ending { return ending{client, new(atomic.Bool)} }

func (e ending) Do(ctx context.Context, cmd Command) Reply {
	return e.replies(ctx, 1, func() []Reply { return []Reply{e.Client.Do(ctx, cmd)} })[0]
}

func (e ending) Together(ctx context.Context, cmds []Command) []Reply {
	return e.replies(ctx, len(cmds), func() []Reply { return e.Client.Together(ctx, cmds) })
}

func (e ending) Pipeline(ctx context.Context, cmds []Command) []Reply {
	return e.replies(ctx, len(cmds), func() []Reply { return e.Client.Pipeline(ctx, cmds) })
}

func (e ending) replies(ctx context.Context, n int, do func() []Reply) []Reply {
	if e.trouble != nil && !e.trouble.Load() {
		all := do()
		e.note(all)
		return all
	}
	all, err := bounded.Call(ctx, func() ([]Reply, error) { return do(), nil }, nil)
	if err != nil {
		all = slices.Repeat([]Reply{{Err: err}}, n)
	}
	if e.trouble != nil {
		e.note(all)
	}
	return all
}

// note remembers whether there was trouble. A server's refusal counts as trouble
// too: then the next call takes a goroutine and clears it.
func (e ending) note(all []Reply) {
	is := slices.ContainsFunc(all, func(r Reply) bool { return r.Err != nil })
	if e.trouble.Load() != is {
		e.trouble.Store(is)
	}
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
