package redisengine

import (
	"context"
	"slices"
)

// ending makes calls end with their ctx where the library does not. What they get
// later is dropped.
type ending struct{ Client }

func (e ending) Do(ctx context.Context, cmd Command) Reply {
	return replies(ctx, 1, func() []Reply { return []Reply{e.Client.Do(ctx, cmd)} })[0]
}

func (e ending) Together(ctx context.Context, cmds []Command) []Reply {
	return replies(ctx, len(cmds), func() []Reply { return e.Client.Together(ctx, cmds) })
}

func (e ending) Pipeline(ctx context.Context, cmds []Command) []Reply {
	return replies(ctx, len(cmds), func() []Reply { return e.Client.Pipeline(ctx, cmds) })
}

func replies(ctx context.Context, n int, do func() []Reply) []Reply {
	all, err := within(ctx, func() ([]Reply, error) { return do(), nil }, nil)
	if err != nil {
		return slices.Repeat([]Reply{{Err: err}}, n)
	}
	return all
}

func (e ending) Listen(ctx context.Context, receive func(channel, message string), confirmed func(string)) (*Listener, error) {
	return within(ctx, func() (*Listener, error) { return e.Client.Listen(ctx, receive, confirmed) },
		func(in *Listener) { in.Close() })
}

func (e ending) Nodes(ctx context.Context) (map[string]Client, error) {
	nodes, err := within(ctx, func() (map[string]Client, error) { return e.Client.Nodes(ctx) }, nil)
	for addr, node := range nodes {
		nodes[addr] = ending{node}
	}
	return nodes, err
}

// within ends with ctx. What is made after that goes to late.
func within[T any](ctx context.Context, do func() (T, error), late func(T)) (made T, err error) {
	if ctx.Done() == nil {
		return do()
	}
	if ctx.Err() != nil {
		return made, context.Cause(ctx)
	}
	var got T
	done := make(chan error)
	go func() {
		var failed error
		got, failed = do()
		select {
		case done <- failed:
		case <-ctx.Done():
			if late != nil && failed == nil {
				late(got)
			}
		}
	}()
	select {
	case err = <-done:
		return got, err
	case <-ctx.Done():
		return made, context.Cause(ctx)
	}
}
