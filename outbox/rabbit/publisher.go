package rabbit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/outbox"
)

const (
	dialWithin  = 30 * time.Second       // for a dial and the handshake
	closeWithin = 5 * time.Second        // for the handshake at the end
	minPause    = 100 * time.Millisecond // between dials that fail
	maxPause    = 5 * time.Second
)

// Options are the settings of [New].
type Options struct {
	// Exchange takes all messages: 0 to 255 bytes. Default "", the default exchange, whose routing keys are the names of queues.
	Exchange string
	// Route chooses the exchange and the routing key of a message. Exchange is empty then. Several goroutines call it
	// at once. Default: Exchange, and Message.Topic as the routing key.
	Route func(m outbox.Message) (exchange, key string)
	// AllowUnroutable confirms messages that no queue takes; the broker drops those. Exchanges of the plugin for delayed
	// messages need it, because they return every message.
	AllowUnroutable bool
}

// Publisher is an [outbox.Publisher]. A Publisher is safe for concurrent use. Create it with [New], and close it.
type Publisher struct {
	dial DialFunc
	opts Options
	turn chan struct{} // held by the message that is sent alone

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	calls  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	current *session
	opening chan struct{} // closed when a session was opened, or failed to; nil if none is being opened
	failure error         // of the last opening
	pause   time.Duration // after the last opening
	next    time.Time     // no opening before
}

// New returns a publisher. Nothing is dialled before the first message. Nil opts are the defaults. The error matches
// [pawl.ErrInvalid].
func New(dial DialFunc, opts *Options) (*Publisher, error) {
	p := &Publisher{dial: dial, turn: make(chan struct{}, 1)}
	if opts != nil {
		p.opts = *opts
	}
	switch o := p.opts; {
	case dial == nil:
		return nil, fmt.Errorf("rabbitmq: %w: dial is nil", pawl.ErrInvalid)
	case len(o.Exchange) > maxShort:
		return nil, fmt.Errorf("rabbitmq: %w: Options.Exchange has %d bytes: 0 to %d are allowed", pawl.ErrInvalid, len(o.Exchange), maxShort)
	case o.Exchange != "" && o.Route != nil:
		return nil, fmt.Errorf("rabbitmq: %w: Options.Exchange is set beside Options.Route", pawl.ErrInvalid)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// Publish implements [outbox.Publisher]. After Close its error matches [pawl.ErrClosed].
func (p *Publisher) Publish(ctx context.Context, m outbox.Message) error {
	x, err := p.encode(m)
	if err == nil {
		err = p.publish(ctx, x)
	}
	if err != nil {
		return fmt.Errorf("rabbitmq: publish to exchange %q with routing key %q: %w", x.exchange, x.key, err)
	}
	return nil
}

func (p *Publisher) publish(ctx context.Context, x sending) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return fmt.Errorf("the publisher is %w", pawl.ErrClosed)
	}
	p.calls.Add(1)
	p.mu.Unlock()
	defer p.calls.Done()
	s, err := p.session(ctx)
	if err != nil {
		return err
	}
	if err = s.send(ctx, x); !errors.As(err, new(exception)) {
		return err
	}
	return p.sendAlone(ctx, x, err)
}

// sendAlone sends a message on a channel of its own. The broker has closed the channel of several messages, because
// it will never take one of them, and has not said which.
func (p *Publisher) sendAlone(ctx context.Context, x sending, before error) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", before, ctx.Err())
	}
	with, err := p.session(ctx)
	if err != nil {
		return err
	}
	s, err := with.link.open(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", before, err)
	}
	defer s.close()
	err = s.send(ctx, x)
	if e := new(exception); errors.As(err, e) {
		return fmt.Errorf("%w: %w", outbox.ErrRefused, *e)
	}
	return err
}

// session returns a channel for many messages, and opens one if there is none.
func (p *Publisher) session(ctx context.Context) (*session, error) {
	for {
		p.mu.Lock()
		switch {
		case p.current != nil && p.current.lives():
			defer p.mu.Unlock()
			return p.current, nil
		case p.opening == nil && time.Now().Before(p.next):
			defer p.mu.Unlock()
			return nil, fmt.Errorf("%w: connect: %w", outbox.ErrBlocked, p.failure)
		case p.opening == nil:
			p.opening = make(chan struct{})
			go p.open(p.current)
		}
		opening := p.opening
		p.mu.Unlock()
		select {
		case <-opening:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: not yet connected: %w", outbox.ErrBlocked, ctx.Err())
		}
	}
}

// open opens the next session, on the connection of the last one if that is there.
func (p *Publisher) open(last *session) {
	ctx, cancel := context.WithTimeout(p.ctx, dialWithin)
	defer cancel()
	var s *session
	err := net.ErrClosed
	if last != nil {
		if s, err = last.link.open(ctx); err != nil {
			last.link.close(closeWithin)
		}
	}
	if err != nil {
		s, err = p.connect(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.opening)
	p.opening, p.failure = nil, redact(err)
	switch {
	case err != nil:
		p.pause = min(max(2*p.pause, minPause), maxPause)
		p.next = time.Now().Add(p.pause/2 + rand.N(p.pause/2))
	case p.ctx.Err() != nil: // Close has not waited
		s.end(pawl.ErrClosed)
		s.link.close(closeWithin)
	default:
		p.current, p.pause = s, 0
	}
}

func (p *Publisher) connect(ctx context.Context) (*session, error) {
	conn, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	l := newLink(conn)
	s, err := l.open(ctx)
	if conn.IsRecoveryEnabled() {
		err = errors.New("the connection has the recovery of the client library, which loses confirms")
	}
	if err != nil {
		l.close(closeWithin)
		return nil, err
	}
	return s, nil
}

// Close waits for the calls of Publish until ctx ends, and closes the connection. All later calls fail. The error matches that
// of ctx if calls were in flight then: the broker may keep their messages, or not. A second Close does nothing more.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() { p.calls.Wait(); close(ended) }()
	err := wait(ctx, ended)
	p.cancel()
	p.mu.Lock()
	opening := p.opening
	p.mu.Unlock()
	if opening != nil {
		err = errors.Join(err, wait(ctx, opening))
	}
	p.mu.Lock()
	s := p.current
	p.mu.Unlock()
	if s != nil {
		s.end(pawl.ErrClosed)
		err = errors.Join(err, wait(ctx, s.link.close(closeWithin)))
	}
	if err != nil {
		return fmt.Errorf("rabbitmq: close: %w", context.Cause(ctx))
	}
	return nil
}

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
