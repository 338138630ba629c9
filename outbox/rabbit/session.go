package rabbit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl/outbox"
)

// link is a connection.
type link struct {
	conn    *amqp.Connection
	blocked atomic.Pointer[string] // why the broker reads nothing, nil if it reads
}

func newLink(conn *amqp.Connection) *link {
	l := &link{conn: conn}
	go func(changes <-chan amqp.Blocking) {
		for b := range changes {
			l.blocked.Store(map[bool]*string{true: &b.Reason}[b.Active])
		}
	}(conn.NotifyBlocked(make(chan amqp.Blocking, 8)))
	return l
}

// close closes the connection. The broker may answer within a time. The channel is closed at the end.
func (l *link) close(within time.Duration) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.conn.CloseDeadline(time.Now().Add(within)) //nolint:errcheck // confirmed is what counts
	}()
	return done
}

// session is a channel in confirm mode.
type session struct {
	link    *link
	ch      *amqp.Channel
	sends   chan *sending
	asks    chan chan struct{}
	drained chan struct{} // closed when no message is returned any more
	ended   chan struct{} // closed after err was set
	ending  sync.Once
	err     error

	mu     sync.Mutex
	flying map[string]*flight // by ID of the message
}

// sending is a message on its way.
type sending struct {
	exchange, key string
	mandatory     bool
	message       amqp.Publishing
	written       chan written
}

type written struct {
	confirm *amqp.DeferredConfirmation
	err     error
}

// flight is all calls for one ID. A returned message has no other mark, so all of them are taken as returned.
type flight struct {
	calls    int
	returned *amqp.Return
}

// exception is the error of a channel that the broker has closed because of a message.
type exception struct{ cause *amqp.Error }

func (e exception) Error() string { return fmt.Sprintf("%d %s", e.cause.Code, e.cause.Reason) }

// open opens a channel. The client library heeds no ctx, so a channel that comes later is closed.
func (l *link) open(ctx context.Context) (*session, error) {
	if l.conn.IsClosed() {
		return nil, amqp.ErrClosed
	}
	type result struct {
		s   *session
		err error
	}
	opened := make(chan result, 1)
	go func() {
		s, err := l.channel()
		opened <- result{s, err}
	}()
	select {
	case r := <-opened:
		return r.s, r.err
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				r.s.close()
			}
		}()
		return nil, ctx.Err()
	}
}

func (l *link) channel() (*session, error) {
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	s := &session{link: l, ch: ch, sends: make(chan *sending), asks: make(chan chan struct{}),
		drained: make(chan struct{}), ended: make(chan struct{}), flying: make(map[string]*flight)}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	// The library drops a returned message for which the buffer has had no place for 5 s.
	returns := ch.NotifyReturn(make(chan amqp.Return, 64))
	go func() {
		err := <-closed
		if err == nil {
			err = amqp.ErrClosed
		}
		if err.Server && err.Recover && !l.conn.IsClosed() {
			s.end(exception{err})
		}
		s.end(err)
	}()
	go s.drain(returns)
	if err := ch.Confirm(false); err != nil {
		s.close()
		return nil, err
	}
	go s.write()
	return s, nil
}

func (s *session) end(err error) {
	s.ending.Do(func() { s.err = err; close(s.ended) })
}

func (s *session) lives() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// close closes the channel, and not its connection.
func (s *session) close() {
	s.end(amqp.ErrClosed)
	go s.ch.Close() //nolint:errcheck // the connection goes on, or is lost
}

// write hands messages to the library, one at a time. The library blocks as long as the broker reads nothing. Then the
// library holds a lock without which it cannot close the connection, also when the heartbeat fails. So a write that
// takes too long ends the connection before the heartbeat does.
func (s *session) write() {
	limit := dialWithin
	if beat := s.link.conn.Config.Heartbeat; beat > 0 {
		limit = 2 * beat
	}
	stuck := time.AfterFunc(limit, func() {
		err := fmt.Errorf("the broker has read nothing for %v", limit)
		if reason := s.link.blocked.Load(); reason != nil {
			err = fmt.Errorf("%w: %s: %w", outbox.ErrBlocked, *reason, err)
		}
		s.end(err)
		s.link.close(0)
	})
	stuck.Stop()
	for {
		select {
		case x := <-s.sends:
			stuck.Reset(limit)
			confirm, err := s.ch.PublishWithDeferredConfirm(x.exchange, x.key, x.mandatory, false, x.message)
			stuck.Stop()
			x.written <- written{confirm, err}
		case <-s.ended:
			return
		}
	}
}

// drain keeps the returns of messages in flight.
func (s *session) drain(returns <-chan amqp.Return) {
	defer close(s.drained)
	for {
		select {
		case r, ok := <-returns:
			if !ok {
				return
			}
			s.keep(&r)
		case asked := <-s.asks:
			for n := len(returns); n > 0; n-- {
				if r, ok := <-returns; ok {
					s.keep(&r)
				}
			}
			close(asked)
		}
	}
}

func (s *session) keep(r *amqp.Return) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flying[r.MessageId]; f != nil {
		r.Body = nil // it may be large
		f.returned = r
	}
}

// settle waits until all returns are kept that the library has read. The broker returns a message before it confirms.
func (s *session) settle() {
	asked := make(chan struct{})
	select {
	case s.asks <- asked:
		<-asked
	case <-s.drained:
	}
}

func (s *session) takeOff(id string) (f *flight, land func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f = s.flying[id]; f == nil {
		f = new(flight)
		s.flying[id] = f
	}
	f.calls++
	return f, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.calls--; f.calls == 0 {
			delete(s.flying, id)
		}
	}
}

// send sends a message and waits for its confirm. The error has an exception if the broker has closed the channel
// because of this message or of another.
func (s *session) send(ctx context.Context, x sending) error {
	if reason := s.link.blocked.Load(); reason != nil {
		return fmt.Errorf("%w: %s", outbox.ErrBlocked, *reason)
	}
	f, land := s.takeOff(x.message.MessageId)
	defer land()
	x.written = make(chan written, 1)
	select {
	case s.sends <- &x:
	case <-ctx.Done():
		return fmt.Errorf("%w: nothing is sent: %w", outbox.ErrBlocked, ctx.Err())
	case <-s.ended:
		return fmt.Errorf("%w: nothing is sent: %w", outbox.ErrBlocked, s.err)
	}
	var confirm *amqp.DeferredConfirmation
	select {
	case w := <-x.written:
		if confirm = w.confirm; w.err != nil {
			return s.failed(ctx, w.err)
		}
	case <-ctx.Done():
		return s.unknown(ctx)
	case <-s.ended:
		return s.lost()
	}
	select {
	case <-confirm.Done():
	case <-ctx.Done():
	case <-s.ended:
	}
	s.settle()
	s.mu.Lock()
	returned := f.returned
	s.mu.Unlock()
	switch {
	case returned != nil:
		return fmt.Errorf("%w: it is unroutable: %d %s", outbox.ErrRefused, returned.ReplyCode, returned.ReplyText)
	case confirm.Acked():
		return nil
	case !isDone(confirm) && s.lives():
		return s.unknown(ctx)
	case !isDone(confirm) || s.ch.IsClosed(): // the end of a channel looks like a rejection
		return s.failed(ctx, amqp.ErrClosed)
	}
	return fmt.Errorf("%w: a queue has rejected the message, as a full queue may", outbox.ErrBlocked)
}

func isDone(confirm *amqp.DeferredConfirmation) bool {
	select {
	case <-confirm.Done():
		return true
	default:
		return false
	}
}

// failed waits until it is known why a channel is closed.
func (s *session) failed(ctx context.Context, err error) error {
	select {
	case <-s.ended:
		return s.lost()
	case <-ctx.Done():
		return fmt.Errorf("no confirm: %w: %w", err, ctx.Err())
	}
}

func (s *session) lost() error { return fmt.Errorf("no confirm: %w", s.err) }

// unknown is the error of a message that was written, and of which nothing is known when ctx ends.
func (s *session) unknown(ctx context.Context) error {
	if reason := s.link.blocked.Load(); reason != nil {
		return fmt.Errorf("%w: %s: %w", outbox.ErrBlocked, *reason, ctx.Err())
	}
	return fmt.Errorf("no confirm: %w", ctx.Err())
}
