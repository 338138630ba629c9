package pawl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Options are the settings of a [Client]. The zero value of each field means
// its default.
type Options struct {
	// TTL is how long the store keeps the locks of a client after the last sign of life of that
	// client. Default 15 s. The least is 100 ms, or more if the store needs more; the most is 24 h.
	// A crashed holder's locks are free after one TTL. A short TTL costs more heartbeats (one per
	// client every TTL/3) and tolerates shorter pauses.
	TTL time.Duration

	// RequestTimeout bounds one request to the store: 10 ms to the TTL. Default: a third of the
	// TTL. After that time the client gives the request up, and retries if the call may still wait.
	// A call returns within 100 ms of the end of its ctx in any case.
	RequestTimeout time.Duration

	// LockDelay is how much longer the store keeps the locks of this client when the client dies or
	// is cut off. LockDelay is for resources that cannot check tokens: the requests of a dead or frozen
	// holder have time to end. 0 to 60 s; default 0. Locks that are released, or closed in order,
	// are free at once. The price: the client's waiting claims also block other waiters for so much
	// longer.
	LockDelay time.Duration

	// With Lazy, New sends no request: the first lock opens the session. Lazy is for programs that
	// only read: they leave nothing in the store.
	Lazy bool

	// Observe, when set, gets the events of this client's locks. The goroutine in which an event
	// happens calls Observe, with the context of the call if there is one. Observe must not block or
	// call [Client.Close], and must be safe for concurrent use. See package observe.
	Observe func(context.Context, Event)

	// Label names this client to an operator; up to 512 bytes without control
	// characters. Default: host name and process id.
	Label string
}

const (
	defaultTTL = 15 * time.Second
	minTTL     = 100 * time.Millisecond
	maxTTL     = 24 * time.Hour
	maxDelay   = time.Minute
	minRequest = 10 * time.Millisecond
)

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.TTL == 0 {
		opts.TTL = defaultTTL
	}
	if opts.RequestTimeout == 0 {
		opts.RequestTimeout = opts.TTL / 3
	}
	if opts.Label == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		opts.Label = fmt.Sprintf("%s pid %d", host, os.Getpid())
	}
	return opts
}

func (o *Options) validate(caps engine.Caps) error {
	if least := max(minTTL, caps.MinTTL); o.TTL < least || o.TTL > maxTTL {
		return invalid("Options.TTL is %v: %v to %v are allowed on %s", o.TTL, least, maxTTL, caps.Name)
	}
	if o.RequestTimeout < minRequest || o.RequestTimeout > o.TTL {
		return invalid("Options.RequestTimeout is %v: %v to the TTL of %v are allowed", o.RequestTimeout, minRequest, o.TTL)
	}
	if o.LockDelay < 0 || o.LockDelay > maxDelay {
		return invalid("Options.LockDelay is %v: 0 to %v are allowed", o.LockDelay, maxDelay)
	}
	if err := caps.RefuseFeature(engine.FeatureDelay); err != nil && o.LockDelay > 0 {
		return err
	}
	return checkText("Options.Label", o.Label)
}

// Client is one party's access to a store. A client keeps one session alive there, with one
// heartbeat for all its locks. A Client is safe for concurrent use. A program needs one client for
// each store.
type Client struct {
	engine  engine.Engine
	values  engine.Values  // nil if the capabilities refuse them
	resizer engine.Resizer // likewise
	caps    engine.Caps
	opts    Options
	margin  time.Duration

	life  context.Context // ends with Close, with ErrClosed as its cause
	close context.CancelCauseFunc
	tasks sync.WaitGroup // all goroutines of the client

	numbers numbers // of permits, set by operators for semaphores

	opening chan struct{} // held by the call that opens a session
	mu      sync.Mutex
	current *session
	trouble error // of the last request for the session; nil: the store answered
}

// New returns a client of the store behind eng and opens its session there. A store that does not
// answer is known at once: [ErrUnavailable]. With Options.Lazy, New sends no request. ctx bounds
// the opening only. Nil opts are the defaults.
//
// The engine stays the caller's: the caller closes it after the client.
func New(ctx context.Context, eng engine.Engine, opts *Options) (*Client, error) {
	c := &Client{engine: eng, caps: eng.Caps(), opts: opts.withDefaults(), opening: make(chan struct{}, 1)}
	c.findParts()
	if err := c.opts.validate(c.caps); err != nil {
		return nil, err
	}
	c.margin = min(c.opts.TTL/10, time.Second)
	c.life, c.close = context.WithCancelCause(context.Background())
	if c.opts.Lazy {
		return c, nil
	}
	if _, err := c.open(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// findParts finds the optional parts of the engine. A part may be missing without a reason in the
// engine's capabilities, as behind a wrapper that hides the part. Then that part is refused as
// well.
func (c *Client) findParts() {
	var hasValues, resizes bool
	c.values, hasValues = c.engine.(engine.Values)
	c.resizer, resizes = c.engine.(engine.Resizer)
	for feature, has := range map[engine.Feature]bool{engine.FeatureValues: hasValues, engine.FeatureResize: resizes} {
		if !has && c.caps.RefuseFeature(feature) == nil {
			c.caps.Lacks = maps.Clone(c.caps.Lacks)
			if c.caps.Lacks == nil {
				c.caps.Lacks = make(map[engine.Feature]string)
			}
			c.caps.Lacks[feature] = "the engine does not implement them"
		}
	}
}

// Close releases every lock and every place in a line, ends the session in the store and waits for
// all goroutines of the client. Contexts of leases end with cause [ErrClosed]. ctx, and one TTL,
// bound these last requests. The requests end at the first request that the store does not answer. Claims
// that the store still has expire within a TTL. So after a Close with an ended ctx all locks stay taken for up to a TTL.
// A second Close returns nil.
//
// An observer gets the events of these releases before the requests, and without an error: the error of Close is that of the
// last request.
func (c *Client) Close(ctx context.Context) error {
	c.close(ErrClosed)
	c.opening <- struct{}{} // a call that was opening a session has opened it by now, or failed
	<-c.opening
	c.mu.Lock()
	s := c.current
	c.current = nil
	c.mu.Unlock()
	var err error
	if s != nil {
		ctx, cancel := context.WithTimeout(ctx, c.opts.TTL)
		defer cancel()
		err = s.closeStore(ctx)
	}
	c.tasks.Wait()
	return err
}

// Caps returns the promises of the client's store, and needs no request.
func (c *Client) Caps() engine.Caps { return c.caps }

// session returns the live session, and opens a new session where the last was lost. session
// tolerates trouble with the store for one TTL when the caller may wait.
func (c *Client) session(ctx context.Context, wait bool) (*session, error) {
	if s := c.live(); s != nil {
		return s, nil
	}
	giveUp := time.Now().Add(c.opts.TTL)
	for pause := newBackoff(c.opts.TTL); ; {
		s, err := c.open(ctx)
		if err == nil || !wait || !errors.Is(err, ErrUnavailable) || time.Now().After(giveUp) {
			return s, err
		}
		if !pause.sleep(ctx, c.life) {
			return nil, err
		}
	}
}

// stopped returns why a call ends: Close, the end of ctx, or else err.
func (c *Client) stopped(ctx context.Context, err error) error {
	switch {
	case c.life.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return notAcquired(ctx, err)
	}
	return err
}

// TTL returns the TTL of the client: the option, or the default.
func (c *Client) TTL() time.Duration { return c.opts.TTL }

// Retry calls ask until ask fails no longer with [ErrUnavailable]. The pauses grow from 10 ms to a
// sixth of the TTL. Retry ends after the time most (0: no bound), when ctx ends, or when the client
// is closed. Retry returns the last error of ask unchanged. If ctx has ended, Retry joins its
// error. A closed client returns [ErrClosed]. The store may have served a failed request, so ask
// must be a request that may be served twice.
func (c *Client) Retry(ctx context.Context, most time.Duration, ask func() error) error {
	giveUp := time.Now().Add(most)
	for pause := newBackoff(c.opts.TTL); ; {
		err := ask()
		switch {
		case !errors.Is(err, ErrUnavailable) || most > 0 && time.Now().After(giveUp):
			return err
		case !pause.sleep(ctx, c.life):
			return c.ended(ctx, err)
		}
	}
}

// live returns the session unless that session has ended. Only after a grant the clock says whether
// the session may be trusted.
func (c *Client) live() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.current.life.Err() == nil {
		return c.current
	}
	return nil
}

// open opens a session unless another call did so meanwhile. A call waits for the other no longer
// than an opening may take, because many calls wait for each other at a store that hangs.
func (c *Client) open(ctx context.Context) (*session, error) {
	turn := time.NewTimer(c.opts.TTL - c.margin)
	defer turn.Stop()
	select {
	case c.opening <- struct{}{}:
		defer func() { <-c.opening }()
	case <-turn.C:
		return nil, engine.Unavailable("open session", errors.New("other calls wait for the session, and the store does not answer"))
	case <-ctx.Done():
		return nil, engine.Unavailable("open session", context.Cause(ctx))
	case <-c.life.Done():
		return nil, ErrClosed
	}
	if c.life.Err() != nil { // Close does not wait for a goroutine that would start now
		return nil, ErrClosed
	}
	if s := c.live(); s != nil {
		return s, nil
	}
	// A store that hangs is unavailable. A session that took longer to open than the trust window
	// is worthless.
	bound, cancel := c.bounded(ctx, c.opts.TTL-c.margin)
	defer cancel()
	s, err := openSession(bound, c)
	if err == nil || ctx.Err() == nil { // else the caller did not wait for an answer
		c.hears(err)
	}
	if err != nil {
		if c.life.Err() != nil {
			err = errors.Join(ErrClosed, err)
		}
		return nil, fmt.Errorf("open session: %w", err)
	}
	c.mu.Lock()
	if c.life.Err() == nil {
		c.current = s
		c.mu.Unlock()
		return s, nil
	}
	c.mu.Unlock()
	last, end := context.WithTimeout(context.WithoutCancel(ctx), farewellTime) // bound has ended with the client
	defer end()
	return nil, errors.Join(ErrClosed, s.closeStore(last))
}

// bounded returns a context that ends with ctx, when the client closes, or after d.
func (c *Client) bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	joined, cancel := join(ctx, c.life)
	bound, stop := context.WithTimeout(joined, d)
	return bound, func() { stop(); cancel() }
}
