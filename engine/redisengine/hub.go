package redisengine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/pawl-go/pawl/internal/turn"
)

// hub is the one connection of an engine for all messages: the inboxes of
// its sessions, and the channels of watched values. The hub exists as long as
// somebody listens.
type hub struct {
	engine  *Engine
	dialing turn.Turn            // of the listener that dials for all
	line    atomic.Pointer[line] // nil: no connection
}

// line is one connection of a hub.
type line struct {
	hub  *hub
	in   *Listener
	life context.Context
	end  context.CancelFunc
	work turn.Bell // there is something to ask for

	mu       sync.Mutex
	lost     error
	channels map[string]*channel
}

// channel is a channel with its listeners.
type channel struct {
	ears  map[*subscription]func(message string)
	asked bool
	done  bool          // the server has confirmed, or the line is lost, because of err
	heard chan struct{} // closed then
	err   error
}

func (c *channel) settle(err error) {
	if !c.done {
		c.done, c.err = true, err
		close(c.heard)
	}
}

// subscription is one listener to one channel.
type subscription struct {
	broken chan error // says once that the connection ended: messages published meanwhile are lost
	close  func()     // ends it without waiting
}

// listen returns when the server has confirmed.
func (h *hub) listen(ctx context.Context, name string, receive func(message string)) (*subscription, error) {
	l, err := h.connected(ctx)
	if err != nil {
		return nil, err
	}
	sub := &subscription{broken: make(chan error, 1)}
	l.mu.Lock()
	if l.lost != nil { // ended meanwhile, as when nobody listened any more: there is another
		l.mu.Unlock()
		return h.listen(ctx, name, receive)
	}
	c := l.channels[name]
	if c == nil {
		c = &channel{ears: make(map[*subscription]func(string)), heard: make(chan struct{})}
		l.channels[name] = c
	}
	c.ears[sub] = receive
	l.mu.Unlock()
	l.work.Ring()
	sub.close = sync.OnceFunc(func() { l.leave(c, sub) })
	select {
	case <-c.heard:
		if c.err != nil {
			sub.close()
		}
		return sub, c.err
	case <-ctx.Done():
		sub.close()
		return nil, context.Cause(ctx)
	}
}

// connected returns the line, and makes it if there is none.
func (h *hub) connected(ctx context.Context) (*line, error) {
	if err := h.dialing.Take(ctx); err != nil {
		return nil, err
	}
	defer h.dialing.Give()
	if l := h.line.Load(); l != nil {
		return l, nil
	}
	l := &line{hub: h, work: make(turn.Bell, 1), channels: make(map[string]*channel)}
	in, err := h.engine.dialListener(ctx, l)
	if err != nil {
		return nil, err
	}
	l.in = in
	l.life, l.end = context.WithCancel(context.Background())
	h.line.Store(l)
	go l.keep()
	return l, nil
}

func (e *Engine) dialListener(ctx context.Context, l *line) (*Listener, error) {
	if !e.cluster {
		client, err := e.notices.connect(ctx)
		if err != nil {
			return nil, err
		}
		if client != nil {
			return listenOn(client, l.receive, l.confirmed), nil
		}
	}
	return e.client.Listen(ctx, l.receive, l.confirmed)
}

func (l *line) receive(name, message string) {
	l.mu.Lock()
	var ears []func(string)
	if c := l.channels[name]; c != nil {
		for _, ear := range c.ears {
			ears = append(ears, ear)
		}
	}
	l.mu.Unlock()
	for _, ear := range ears {
		ear(message)
	}
}

// confirmed notes that the server has subscribed a channel. If it does so again, the
// connection is another.
func (l *line) confirmed(name string) {
	l.mu.Lock()
	c := l.channels[name]
	again := c != nil && c.done
	if c != nil {
		c.settle(nil)
	}
	l.mu.Unlock()
	if again {
		go l.lose(errors.New("connection lost")) // this is where messages are read
	}
	l.work.Ring()
}

// leave ends one subscription.
func (l *line) leave(c *channel, sub *subscription) {
	l.mu.Lock()
	delete(c.ears, sub)
	l.mu.Unlock()
	l.work.Ring()
}

// keep subscribes channels, and unsubscribes channels to which nobody listens any more. keep ends
// when the line is lost or nobody listens to anything.
func (l *line) keep() {
	defer l.end()
	for {
		select {
		case <-l.work:
		case err := <-l.in.Broken:
			l.lose(errors.Join(errors.New("connection lost"), err))
			return
		}
		for l.step() {
		}
		if l.idle() {
			return
		}
	}
}

// step sends the pending requests, and reports whether there were any.
func (l *line) step() bool {
	var more, less []string
	l.mu.Lock()
	if l.lost != nil {
		l.mu.Unlock()
		return false
	}
	for name, c := range l.channels {
		switch {
		case len(c.ears) == 0 && (!c.asked || c.done):
			delete(l.channels, name)
			if c.asked {
				less = append(less, name)
			}
		case !c.asked:
			c.asked = true
			more = append(more, name)
		}
	}
	l.mu.Unlock()
	if len(less) > 0 { // first, because somebody may listen again to one of them
		l.ask(l.in.Unsubscribe, less) //nolint:errcheck // messages of these channels are dropped; a lost line says so
	}
	if len(more) == 0 {
		return len(less) > 0
	}
	if err := l.ask(l.in.Subscribe, more); err != nil {
		l.lose(err)
		return false
	}
	return true
}

// ask ends when the line does.
func (l *line) ask(what func(context.Context, []string) error, channels []string) error {
	done := make(chan error, 1)
	go func() { done <- what(l.life, channels) }()
	select {
	case err := <-done:
		return err
	case err := <-l.in.Broken:
		return errors.Join(errors.New("connection lost"), err)
	}
}

// idle ends the line when nobody listens.
func (l *line) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return true
	}
	for _, c := range l.channels {
		if len(c.ears) > 0 {
			return false
		}
	}
	l.lost = errors.New("nobody listened")
	l.hub.line.CompareAndSwap(l, nil)
	l.in.Close()
	return true
}

// lose tells all listeners.
func (l *line) lose(err error) {
	l.hub.line.CompareAndSwap(l, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return
	}
	l.lost = err
	for _, c := range l.channels {
		c.settle(err)
		for sub := range c.ears {
			sub.broken <- err
		}
	}
	l.in.Close()
	l.work.Ring()
}
