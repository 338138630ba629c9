package redisengine

import (
	"context"
	"errors"
	"sync"

	"github.com/pawl-go/pawl/internal/bounded"
	"github.com/pawl-go/pawl/internal/turn"
)

// hub is the one connection of an engine for all messages: the inboxes of
// its sessions, and the channels of watched values. The hub exists as long as
// somebody listens.
type hub struct {
	engine  *Engine
	dialing turn.Turn // of the listener that dials for all, and guards the line
	line    *line     // the last one; nil: none yet
}

// line is one connection of a hub.
type line struct {
	in   *Listener
	life context.Context // ends with the connection; its cause says why
	end  context.CancelCauseFunc
	work turn.Bell // there is something to ask for

	mu       sync.Mutex
	channels map[string]*channel
}

// channel is a channel with its listeners.
type channel struct {
	ears  map[*subscription]func(message string)
	asked bool
	done  bool          // the server has confirmed
	heard chan struct{} // closed then
}

// subscription is one listener to one channel.
type subscription struct {
	life  context.Context // of the connection: messages published after its end are lost
	close func()          // ends it without waiting
}

// listen returns when the server has confirmed.
func (h *hub) listen(ctx context.Context, name string, receive func(message string)) (*subscription, error) {
	l, err := h.connected(ctx)
	if err != nil {
		return nil, err
	}
	sub := &subscription{life: l.life}
	l.mu.Lock()
	if l.life.Err() != nil { // ended meanwhile, as when nobody listened any more: there is another
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
		return sub, nil
	case <-l.life.Done():
		err = context.Cause(l.life)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	sub.close()
	return nil, err
}

// connected returns the line, and makes it if there is none.
func (h *hub) connected(ctx context.Context) (*line, error) {
	if err := h.dialing.Take(ctx); err != nil {
		return nil, err
	}
	defer h.dialing.Give()
	if h.line != nil && h.line.life.Err() == nil {
		return h.line, nil
	}
	l := &line{work: make(turn.Bell, 1), channels: make(map[string]*channel)}
	in, err := h.engine.dialListener(ctx, l)
	if err != nil {
		return nil, err
	}
	l.in = in
	l.life, l.end = context.WithCancelCause(context.Background())
	h.line = l
	go l.keep()
	go func() {
		select {
		case err := <-in.Broken:
			l.end(errors.Join(errors.New("connection lost"), err))
		case <-l.life.Done():
		}
	}()
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
	if c != nil && !c.done {
		c.done = true
		close(c.heard)
	}
	l.mu.Unlock()
	if again {
		l.end(errors.New("connection lost"))
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
	defer l.in.Close()
	for {
		select {
		case <-l.work:
			for l.step() {
			}
			l.idle()
		case <-l.life.Done():
			return
		}
	}
}

// step sends the pending requests, and reports whether there were any.
func (l *line) step() bool {
	var more, less []string
	l.mu.Lock()
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
	err := l.ask(l.in.Subscribe, more)
	if err != nil {
		l.end(err)
	}
	return err == nil
}

// ask ends when the line does.
func (l *line) ask(what func(context.Context, []string) error, channels []string) error {
	_, err := bounded.Call(l.life, func() (struct{}, error) { return struct{}{}, what(l.life, channels) }, nil)
	return err
}

// idle ends the line when nobody listens.
func (l *line) idle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.channels {
		if len(c.ears) > 0 {
			return
		}
	}
	l.end(errors.New("nobody listened"))
}
