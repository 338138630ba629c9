package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// users are how many goroutines send requests, each after the answer to its last.
const users = 24

// trial is one policy at work.
type trial struct {
	plan
	crew   *crew
	client *pawl.Client
	set    *lb.Set
	http   *http.Client
	seen   chan struct{} // closed when all first servers are seen

	mu    sync.Mutex
	tally tally
	lives map[string]bool   // what the group says
	fate  map[string]string // what happened to a server
	stale bool
	began time.Time
}

// try runs a policy with servers and a group of its own, and draws the spread meanwhile.
func try(ctx context.Context, p plan, policy lb.Policy, out io.Writer) (is tally, err error) {
	client, end, err := connect(ctx, p.store, p.ttl)
	if err != nil {
		return is, err
	}
	defer end()
	name := "fleet/" + policy.String()
	t := &trial{plan: p, client: client, seen: make(chan struct{}), lives: make(map[string]bool), fate: map[string]string{slow: "slow"},
		tally: tally{policy: policy, served: make(map[string]int)},
		crew:  &crew{settings: settings{Store: p.store, TTL: p.ttl, Group: name}, all: make(map[string]*process)}}
	through, err := t.balance(policy)
	if err != nil {
		return is, err
	}
	defer through.CloseIdleConnections()
	defer func() { err = errors.Join(err, t.crew.end()) }()
	if err := t.crew.start(ctx, early...); err != nil {
		return is, err
	}
	watching, stop := context.WithCancel(ctx)
	followed := make(chan error, 1)
	go func() { followed <- t.follow(watching, group.New(client, name)) }()
	defer func() { stop(); err = errors.Join(err, <-followed) }()
	select {
	case <-t.seen:
	case <-ctx.Done():
		return is, ctx.Err()
	}
	if err := t.run(ctx, out); err != nil {
		return is, err
	}
	return t.tally, nil
}

// balance makes the client that balances.
func (t *trial) balance(policy lb.Policy) (*httplb.Transport, error) {
	opts, of := &httplb.Options{Tries: len(early) + len(late), Key: func(r *http.Request) string { return r.Header.Get("User") }, Observe: t.note}, &lb.SetOptions{}
	if t.naive {
		opts.Tries, of.EjectAfter = 1, -1
	}
	var err error
	if t.set, err = lb.NewSet(of); err != nil {
		return nil, err
	}
	b, err := lb.New(t.set, policy, &lb.Options{Tau: time.Second})
	if err != nil {
		return nil, err
	}
	through, err := httplb.NewTransport(b, opts)
	t.http = &http.Client{Transport: through}
	return through, err
}

// follow keeps the set as the group is.
func (t *trial) follow(ctx context.Context, g *group.Group) error {
	whole := sync.OnceFunc(func() { close(t.seen) })
	for view, err := range g.Watch(ctx) {
		if err != nil {
			return err
		}
		var nodes []lb.Node
		lives := make(map[string]bool)
		for _, m := range view.Members {
			nodes, lives[m.ID] = append(nodes, lb.Node{ID: m.ID, Addr: m.Addr, Weight: m.Weight}), true
		}
		t.mu.Lock()
		t.lives, t.stale = lives, view.Stale
		frozen := t.naive && !t.began.IsZero()
		t.mu.Unlock()
		if !frozen {
			if err := t.set.Update(nodes...); err != nil {
				return err
			}
		}
		if len(nodes) == len(early) {
			whole()
		}
	}
	return nil
}

// run sends requests while the story goes on.
func (t *trial) run(ctx context.Context, out io.Writer) error {
	t.mu.Lock()
	t.began = time.Now()
	t.mu.Unlock()
	loading, stop := context.WithTimeout(ctx, t.time)
	defer stop()
	var running sync.WaitGroup
	for range users {
		running.Go(func() {
			for loading.Err() == nil {
				t.send(ctx)
			}
		})
	}
	story := make(chan error, 1)
	go func() { story <- t.story(ctx) }()
	pen := newPen(out)
	for tick := time.NewTicker(100 * time.Millisecond); loading.Err() == nil; {
		select {
		case <-tick.C:
			pen.draw(t.frame())
		case <-loading.Done():
			tick.Stop()
		}
	}
	running.Wait()
	err := <-story
	pen.last(t.frame())
	return errors.Join(err, ctx.Err())
}

// story kills a server after a third of the time, and starts two after two thirds.
func (t *trial) story(ctx context.Context) error {
	for _, next := range []func() error{
		func() error {
			t.happened("killed", doomed)
			return t.crew.kill(doomed)
		},
		func() error {
			t.happened("joined", late...)
			return t.crew.start(ctx, late...)
		},
	} {
		select {
		case <-time.After(t.time / 3):
		case <-ctx.Done():
			return nil
		}
		if err := next(); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) happened(what string, ids ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		t.fate[id] = what
	}
}

// send sends one request, and notes how long the whole answer took.
func (t *trial) send(ctx context.Context) {
	began := time.Now()
	err := t.get(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		t.tally.failed++
	default:
		t.tally.took = append(t.tally.took, time.Since(began))
	}
}

func (t *trial) get(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://fleet/", nil)
	if err != nil {
		return err
	}
	r.Header.Set("User", strconv.Itoa(rand.IntN(200)))
	res, err := t.http.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the status is %s", res.Status)
	}
	return nil
}

// note notes one try of a request.
func (t *trial) note(is httplb.Try) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if is.N > 1 {
		t.tally.repeated++
	}
	if is.Result == lb.Succeeded {
		t.tally.served[is.Node.ID]++
	}
}
