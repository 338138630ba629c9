package redlockengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// wait is one Await: a goroutine on each node where the claim waits.
type wait struct {
	*session
	cl       *claim
	ctx      context.Context
	watching context.Context // of those of now: they end when the claim is left
	stop     context.CancelFunc
	watchers sync.WaitGroup
	watched  []bool
	gone     []bool // nodes that say that the claim is not there
	news     chan news
}

// news is what a node said of a claim that waits there.
type news struct {
	node    int
	session engine.Session
	grant   engine.Grant
	err     error
}

// Await implements [engine.Session]. Who is granted by some nodes but no majority
// may be one of several that wait for one another: after a short time it leaves
// everywhere, and after a random pause waits again.
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	s.mu.Lock()
	cl := s.claims[c.ID]
	s.mu.Unlock()
	if cl == nil {
		return engine.Grant{}, fmt.Errorf("await: %w", engine.ErrGone)
	}
	n := len(s.nodes)
	w := &wait{session: s, cl: cl, watched: make([]bool, n), gone: make([]bool, n), news: make(chan news, n)}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(ctx)
	w.watching, w.stop = context.WithCancel(w.ctx)
	defer w.watchers.Wait()
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	return w.run(ctx)
}

func (w *wait) run(ctx context.Context) (engine.Grant, error) {
	look := time.NewTicker(w.opts.TTL / 3)
	defer look.Stop()
	patience := w.timeout / 8
	var impatient <-chan time.Time
	if err := w.again(); err != nil { // an Await that was given up may have yielded
		return engine.Grant{}, err
	}
	for {
		if w.granted(w.cl) {
			return w.take(ctx)
		}
		if err := w.over(); err != nil {
			return engine.Grant{}, err
		}
		if !w.watch() {
			impatient = nil
		} else if impatient == nil {
			impatient = time.After(patience + rand.N(patience+1))
		}
		select {
		case n := <-w.news:
			w.note(n)
		case <-impatient:
			w.yield(patience)
			impatient, patience = nil, min(2*patience, w.opts.TTL/3)
		case <-look.C:
			if err := w.again(); err != nil {
				return engine.Grant{}, err
			}
		case <-w.ctx.Done():
			if ctx.Err() == nil {
				return engine.Grant{}, fmt.Errorf("await: session: %w", engine.ErrGone)
			}
			return engine.Grant{}, context.Cause(ctx)
		}
	}
}

// take makes a grant of what a majority granted.
func (w *wait) take(ctx context.Context) (engine.Grant, error) {
	nodes, err := w.up()
	if err != nil {
		return engine.Grant{}, fmt.Errorf("await: %w", err)
	}
	var marks []mark
	var unread []error
	if !w.engine.opts.NoTokens {
		marks, unread = w.marks(ctx, nodes, w.cl.Resource)
	}
	return w.grant(ctx, w.cl, marks, unread)
}

// over reports whether no majority can have the claim any more.
func (w *wait) over() error {
	gone := 0
	for _, is := range w.gone {
		if is {
			gone++
		}
	}
	w.mu.Lock()
	left := w.claims[w.cl.ID] != w.cl
	if !left && !w.dead && len(w.gone)-gone >= w.engine.quorum {
		w.mu.Unlock()
		return nil
	}
	if !left {
		w.forget(w.cl)
	}
	w.mu.Unlock()
	return fmt.Errorf("await: %w", engine.ErrGone)
}

// watch awaits the claim on each node where it waits, and reports whether some
// nodes grant it.
func (w *wait) watch() (some bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, at := range w.cl.at {
		is := w.nodes[i].session
		some = some || at.token != 0
		if !at.in || at.token != 0 || is == nil || w.watched[i] || w.nodes[i].down {
			continue
		}
		w.watched[i] = true
		w.watchers.Go(func() {
			grant, err := is.Await(w.watching, &w.cl.Claim)
			w.news <- news{i, is, grant, err}
		})
	}
	return some
}

// note keeps what a node said.
func (w *wait) note(n news) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched[n.node] = false
	at := &w.cl.at[n.node]
	switch {
	case w.nodes[n.node].session != n.session: // which has ended meanwhile
	case n.err == nil:
		if n.grant.Token > at.past {
			at.token = n.grant.Token
		}
	case errors.Is(n.err, engine.ErrGone):
		at.in, w.gone[n.node] = false, true
	case w.ctx.Err() == nil:
		w.nodes[n.node].down = true
	}
}

// yield leaves everywhere, so that others find a majority, and after a random
// pause waits again.
func (w *wait) yield(patience time.Duration) {
	w.stop()
	w.watchers.Wait()
	for len(w.news) > 0 {
		<-w.news
	}
	clear(w.watched)
	w.watching, w.stop = context.WithCancel(w.ctx)
	var nodes []int
	w.mu.Lock()
	for i, at := range w.cl.at {
		if at.in && w.nodes[i].session != nil {
			nodes = append(nodes, i)
		}
	}
	w.mu.Unlock()
	w.ask(w.ctx, nodes, func(ctx context.Context, i int, is engine.Session) error {
		err := is.Leave(ctx, w.cl.Resource, w.cl.ID)
		w.mu.Lock()
		defer w.mu.Unlock()
		at := &w.cl.at[i]
		if err != nil && !answered(err) {
			at.doubt = time.Now().Add(w.opts.TTL)
		} else {
			at.past = max(at.past, at.token)
		}
		at.in, at.token = false, 0
		return err
	})
	if sleep(w.ctx, w.life, rand.N(patience+1)) {
		w.enterOn(nodes)
	}
}

// again enters the claim where it is not, as on a node that was away, and fails
// when fewer than a majority have it.
func (w *wait) again() error {
	var nodes []int
	have := 0
	w.mu.Lock()
	for i, at := range w.cl.at {
		n := w.nodes[i]
		if at.in && !n.down && n.session != nil {
			have++
		} else if n.session != nil {
			nodes = append(nodes, i)
		}
	}
	w.mu.Unlock()
	if len(nodes) == 0 {
		return nil
	}
	errs := w.enterOn(nodes)
	if have += count(errs, nil); have < w.engine.quorum {
		return w.engine.unreached(w.ctx, "await", failed(errs))
	}
	return nil
}

func (w *wait) enterOn(nodes []int) []error {
	return w.ask(w.ctx, nodes, func(ctx context.Context, i int, is engine.Session) error {
		err := w.enter(ctx, i, is, w.cl, true)
		w.mu.Lock()
		w.gone[i] = false
		if err == nil {
			w.nodes[i].down = false
		}
		w.mu.Unlock()
		if errors.Is(err, engine.ErrGone) {
			w.lost(i, is)
		}
		return err
	})
}

// sleep reports whether the whole pause has passed.
func sleep(ctx, life context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-life.Done():
	}
	return false
}
