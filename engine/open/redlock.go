package open

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/internal/turn"
)

func openRedlock(ctx context.Context, u *url.URL) (engine.Engine, error) {
	if u.Opaque != "" {
		u.Host, u.Opaque = u.Opaque, ""
	}
	option, err := redisOption(u, "6379") // of every node
	if err != nil {
		return nil, err
	}
	addrs := option.InitAddress
	if strings.Trim(u.Path, "/") != "" {
		return nil, wrong("it has a path")
	}
	var opts redlockengine.Options
	switch tokens := u.Query().Get("tokens"); {
	case tokens == "off":
		opts.NoTokens = true
	case tokens != "" && tokens != "on":
		return nil, wrong("tokens is %q: on or off is allowed", tokens)
	}
	grace, err := graceIn(u)
	if err != nil {
		return nil, err
	}
	if grace > 0 { // sessions live longer on a node
		query := u.Query()
		query.Set("grace", redlockengine.NodeTTL(grace).String())
		u.RawQuery = query.Encode()
	}
	var all redlockNodes
	var nodes []engine.Engine
	for i, addr := range addrs {
		if slices.Contains(addrs[:i], addr) {
			return nil, wrong("%q is named twice: it would vote twice", addr)
		}
		n := newRedlockNode(u, addr)
		all, nodes = append(all, n), append(nodes, n)
	}
	eng, err := redlockengine.New(nodes, &opts)
	if err != nil {
		return nil, wrong("%v", err)
	}
	if err := all.connect(ctx); err != nil {
		return nil, errors.Join(err, all.Close())
	}
	return withParts(opened{Engine: eng, closeClient: all.Close, init: all.init}), nil
}

// redlockNode is a Redis server that may be down when the engine is opened. The node is then
// connected at its first use.
type redlockNode struct {
	open func(context.Context) (engine.Engine, error)
	turn turn.Turn // of the call that connects
	eng  atomic.Pointer[wholeEngine]
}

// wholeEngine is an engine with all parts, as that of a Redis server is.
type wholeEngine interface {
	engine.Engine
	engine.Values
	engine.Resizer
}

func newRedlockNode(u *url.URL, addr string) *redlockNode {
	one := url.URL{Scheme: "redis", User: u.User, Host: addr, RawQuery: u.RawQuery}
	return &redlockNode{
		open: func(ctx context.Context) (engine.Engine, error) { return redisEngine(redisServer)(ctx, &one) },
		turn: turn.New(1),
	}
}

// engine returns the server's engine, connected.
func (n *redlockNode) engine(ctx context.Context) (wholeEngine, error) {
	if eng := n.eng.Load(); eng != nil {
		return *eng, nil
	}
	if err := n.turn.Take(ctx); err != nil {
		return nil, engine.Unavailable("connect", err)
	}
	defer n.turn.Give()
	if eng := n.eng.Load(); eng != nil {
		return *eng, nil
	}
	opened, err := n.open(ctx)
	if err != nil {
		return nil, err
	}
	eng := opened.(wholeEngine)
	n.eng.Store(&eng)
	return eng, nil
}

func (n *redlockNode) Caps() engine.Caps { return redisengine.New(nil, nil).Caps() }

func (n *redlockNode) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	eng, err := n.engine(ctx)
	if err != nil {
		return nil, err
	}
	return eng.Open(ctx, opts)
}

func (n *redlockNode) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	eng, err := n.engine(ctx)
	if err != nil {
		return func(yield func(string, error) bool) { yield("", err) }
	}
	return eng.List(ctx, prefix)
}

func (n *redlockNode) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	eng, err := n.engine(ctx)
	if err != nil {
		return func(yield func(string, error) bool) { yield("", err) }
	}
	return eng.ListValues(ctx, prefix)
}

func (n *redlockNode) Show(ctx context.Context, name string) (engine.Resource, error) {
	eng, err := n.engine(ctx)
	if err != nil {
		return engine.Resource{}, err
	}
	return eng.Show(ctx, name)
}

func (n *redlockNode) Evict(ctx context.Context, resource, claim string) error {
	eng, err := n.engine(ctx)
	if err != nil {
		return err
	}
	return eng.Evict(ctx, resource, claim)
}

func (n *redlockNode) Resize(ctx context.Context, name string, capacity int64) error {
	eng, err := n.engine(ctx)
	if err != nil {
		return err
	}
	return eng.Resize(ctx, name, capacity)
}

func (n *redlockNode) Get(ctx context.Context, key string) (engine.Value, error) {
	eng, err := n.engine(ctx)
	if err != nil {
		return engine.Value{}, err
	}
	return eng.Get(ctx, key)
}

func (n *redlockNode) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	eng, err := n.engine(ctx)
	if err != nil {
		return 0, err
	}
	return eng.Put(ctx, key, data, version)
}

func (n *redlockNode) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	eng, err := n.engine(ctx)
	if err != nil {
		return engine.Value{}, err
	}
	return eng.Watch(ctx, key, version)
}

func (n *redlockNode) Close() error {
	if eng := n.eng.Load(); eng != nil {
		return (*eng).Close()
	}
	return nil
}

type redlockNodes []*redlockNode

// connect connects to all nodes at once; a majority must answer.
func (nodes redlockNodes) connect(ctx context.Context) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { _, errs[i] = n.engine(ctx) })
	}
	wg.Wait()
	failures := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(failures) > len(nodes)/2 {
		return fmt.Errorf("%d of %d nodes: %w", len(failures), len(nodes), failures[0]) // in one line
	}
	return nil
}

// init marks each node as new. When init fails, it may have marked some nodes.
func (nodes redlockNodes) init(ctx context.Context) error {
	var errs []error
	for _, n := range nodes {
		eng, err := n.engine(ctx)
		if err == nil {
			_, err = Init(ctx, eng)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Close closes the connections.
func (nodes redlockNodes) Close() error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}
