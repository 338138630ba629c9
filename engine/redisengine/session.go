package redisengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/inbox"
	"github.com/pawl-go/pawl/internal/turn"
)

const us = "\x1f" // separates the fields that scripts take apart; no text of a claim has it

type session struct {
	engine *Engine
	id     string
	key    string // lives in Redis as long as the session does
	opts   engine.SessionOptions
	keep   string // how long keys outlive their last use, in ms

	life context.Context
	end  context.CancelFunc
	done sync.WaitGroup

	batch   batch
	members members // of a cluster
	known   known
	unsure  sync.Map // claims by id that may wait in the store, after a lost answer

	inbox *inbox.Inbox

	mu      sync.Mutex
	watched map[string]*watched // by head
	alarms  turn.Bell           // it is to look at watched claims; nil: nobody is told
	settled *time.Timer         // after a renewal
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	opts.Heartbeat = cmp.Or(opts.Heartbeat, opts.TTL/3)
	s := &session{engine: e, id: rand.Text(), opts: opts}
	s.inbox = inbox.New(inbox.Options{Heartbeat: opts.Heartbeat, Verify: e.wait > 0, Gone: opts.Gone})
	s.members.byName, s.known.names = make(map[string]*member), make(map[string]time.Time)
	s.key = e.prefix + "session:" + s.id
	s.keep = ms(keep(opts.TTL))
	s.life, s.end = context.WithCancel(context.Background())
	in, err := s.subscribe(ctx)
	if err != nil {
		s.end()
		return nil, failed(ctx, "open session", err)
	}
	if err := s.begin(ctx); err != nil {
		s.end()
		in.close()
		return nil, unchecked(ctx, "open session", err)
	}
	s.known.search.mark, s.known.touched = e.life.Load().mark, time.Now()
	if e.notices.join(s) {
		s.done.Go(s.attend)
	}
	e.opened.Store(s, nil)
	s.done.Go(func() { s.listen(in) })
	return s, nil
}

// keep is how long keys outlive their last use.
func keep(ttl time.Duration) time.Duration { return max(time.Hour, 4*ttl) }

func (s *session) ID() string { return s.id }

func (s *session) subscribe(ctx context.Context) (*subscription, error) {
	return s.engine.hub.listen(ctx, s.engine.prefix+"inbox:"+s.id, s.receive)
}

// listen keeps the inbox open. Messages sent while it was closed are lost, so
// every waiter looks after it is open again.
func (s *session) listen(in *subscription) {
	for {
		select {
		case <-in.life.Done():
		case <-s.life.Done():
		}
		in.close()
		for pause := 10 * time.Millisecond; ; pause = min(2*pause, s.opts.TTL/6) {
			if s.life.Err() != nil {
				return
			}
			var err error
			if in, err = s.subscribe(s.life); err == nil {
				// The peer may be another server, or a restarted server, which has to know
				// for how long clients may believe.
				if err = s.engine.check(s.life); err == nil || errors.Is(err, engine.ErrUnsupported) {
					break
				}
				in.close()
			}
			turn.Pause(s.life, pause) //nolint:errcheck // the loop ends with it
		}
		for _, w := range s.inbox.All() {
			w.Look()
		}
	}
}

// receive handles a message: g(ranted) id token, f(ree) id, x (gone) id.
func (s *session) receive(message string) {
	kind, rest, _ := strings.Cut(message, us)
	id, number, _ := strings.Cut(rest, us)
	token, _ := fence.ParseToken(number)
	s.inbox.Receive(id, token, kind == "x")
}

// Enter implements [engine.Session].
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	grant, err := s.inbox.Enter(ctx, c, wait, func(ctx context.Context) (engine.Grant, time.Duration, error) {
		if s.engine.cluster {
			return s.entered(ctx, c, s.enterIn(ctx, c, flag(wait)))
		}
		return s.entered(ctx, c, s.enterHere(ctx, c, flag(wait)))
	})
	if wait && err != nil && (ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable)) {
		s.unsure.Store(c.ID, c)
	}
	return grant, err
}

// entered reads the answer of the script that enters a claim.
func (s *session) entered(ctx context.Context, c *engine.Claim, reply Reply) (grant engine.Grant, pause time.Duration, err error) {
	switch is := reply.Value.(type) {
	case []any:
		if len(is) == 4 {
			grace := graceOf(is[1:3])
			if is[0] == int64(-3) {
				return grant, 0, fmt.Errorf("enter: %w", &engine.GraceError{Grace: grace})
			}
			if token, _ := is[3].(int64); token > 0 {
				grant, err = s.granted(ctx, c, fence.Token(token), reply.short)
			}
			grant.Grace = grace
		}
		return grant, pauseOf(is), err
	case string:
		return grant, 0, fmt.Errorf("enter: %w", queue.Mismatch(parseSpec(is), c.Spec))
	}
	switch code, err := reply.number(); {
	case errors.Is(err, engine.ErrGone):
		return grant, 0, fmt.Errorf("enter: %w", err)
	case err != nil:
		return grant, 0, failed(ctx, "enter", err)
	case code == -1:
		return grant, 0, fmt.Errorf("enter: session: %w", engine.ErrGone)
	case code < 0:
		return grant, 0, fmt.Errorf("enter: %w", engine.ErrBusy)
	default:
		grant, err = s.granted(ctx, c, fence.Token(code), reply.short)
		return grant, 0, err
	}
}

// enterHere enters a claim on a single server. If that has another mark than was known, it is
// asked once more.
func (s *session) enterHere(ctx context.Context, c *engine.Claim, wish string) (r Reply) {
	for range 3 {
		r = s.step(ctx, enter, s.engine.keys(c.Resource, s.key), [4]string{s.record(c, s.id), wish, s.keep, form(c)})
		if r.Value != int64(-4) {
			return r
		}
		if err := s.engine.check(ctx); err != nil {
			return Reply{Err: err}
		}
	}
	return Reply{Err: errors.New("the server forgets again and again")}
}

// granted gives back at once a grant that too few replicas know. If that fails the caller
// gives it back, as after every unknown outcome.
func (s *session) granted(ctx context.Context, c *engine.Claim, token fence.Token, short error) (engine.Grant, error) {
	if short == nil {
		return engine.Grant{Token: token}, nil
	}
	s.giveBack(ctx, c)
	return engine.Grant{}, failed(ctx, "grant given back", short)
}

func (s *session) giveBack(ctx context.Context, c *engine.Claim) {
	e := s.engine
	result := e.run(ctx, leave, e.keys(c.Resource, ""), s.arguments(s.leaving(c.Resource, c.ID), "", ""), 0)
	if result.Err == nil {
		s.unsure.Delete(c.ID)
		s.left(c.Resource, c.ID)
	}
}

// form is the form that a resource may have whose claims are like this one.
func form(c *engine.Claim) string {
	if c.Weight == c.Capacity && c.Owner == c.ID && !c.Barging {
		return "X"
	}
	return "T"
}

// record is a claim as the scripts want it.
func (s *session) record(c *engine.Claim, as string) string {
	b := appendSpec(append(append(make([]byte, 0, 256), c.ID...), us...), c.Spec)
	b = append(append(append(append(append(b, us...), as...), us...), c.Owner...), us...)
	b = strconv.AppendInt(b, c.Weight, 10)
	return string(append(append(b, us...), c.Label...))
}

// Await implements [engine.Session].
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	return s.inbox.Await(ctx, c, func(ctx context.Context) (engine.Grant, time.Duration, error) {
		grant, pause, err := s.poll(ctx, c)
		if errors.Is(err, errForgotten) {
			err = s.whyGone(ctx, c.ID)
			s.inbox.Forget(c.ID)
		}
		return grant, pause, err
	})
}

// errForgotten says that the store does not know a claim that waits.
var errForgotten = errors.New("the store does not know the claim any more")

// whyGone tells an evicted claim from a claim that the store forgot, with all
// keys of its name or its session there. A forgotten claim may enter again. The message of an
// eviction may come a little later than the answer.
func (s *session) whyGone(ctx context.Context, claim string) error {
	select {
	case <-s.inbox.Removed(claim):
		return fmt.Errorf("await: %w", engine.ErrGone)
	case <-time.After(min(s.opts.Heartbeat/10, 100*time.Millisecond)):
		return engine.Unavailable("await", errForgotten)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// poll reads the state of a claim. A deadline of its own lets the client
// keep its fast path, which a context that can only be cancelled ends.
//
// Replicas acknowledge the writes of one connection; but the leaving holder wrote a grant that
// it handed over. So a claim that replicas have to know
// writes something when it looks: that write is behind its grant, and on the same server.
func (s *session) poll(ctx context.Context, c *engine.Claim) (engine.Grant, time.Duration, error) {
	bound, cancel := context.WithTimeout(ctx, s.opts.TTL)
	defer cancel()
	args := [4]string{c.ID, s.keep, s.record(c, s.as(c.Resource)), flag(s.engine.wait > 0)}
	reply := s.step(bound, poll, s.engine.keys(c.Resource, ""), args)
	if waits, ok := reply.Value.([]any); ok {
		return engine.Grant{}, pauseOf(waits), nil
	}
	token, err := reply.number()
	if err != nil {
		return engine.Grant{}, 0, failed(ctx, "await", err)
	}
	if token >= 0 {
		grant, err := s.granted(ctx, c, fence.Token(token), reply.short)
		return grant, 0, err
	}
	s.left(c.Resource, c.ID)
	switch {
	case token == -1 && s.engine.cluster: // the session has ended in this slot, and may live elsewhere
		err = s.atHome(ctx)
	case token == -1:
		err = engine.ErrGone
	}
	if errors.Is(err, engine.ErrGone) {
		return engine.Grant{}, 0, fmt.Errorf("await: session: %w", engine.ErrGone)
	}
	return engine.Grant{}, 0, errForgotten
}

// pauseOf is how long a waiter may rest: until the session that it waits for can end, 0 if that
// does not matter.
func pauseOf(reply []any) time.Duration {
	if ms, _ := reply[0].(int64); ms > 0 {
		return time.Duration(ms+1) * time.Millisecond
	}
	return 0
}

// Leave implements [engine.Session].
func (s *session) Leave(ctx context.Context, resource, claim string) error {
	keys := s.engine.keys(resource, "")
	s.unwatch(keys[0], claim)
	reply := s.step(ctx, leave, keys, s.leaving(resource, claim))
	left, err := reply.number()
	if err == nil {
		s.unsure.Delete(claim)
		s.left(resource, claim)
		err = reply.short
	}
	if err == nil && left == 0 {
		return fmt.Errorf("leave: %w", engine.ErrGone)
	}
	return failed(ctx, "leave", err)
}

// leaving are the arguments of the script for a claim that goes.
func (s *session) leaving(resource, claim string) [4]string {
	as, record := s.as(resource), ""
	if w := s.inbox.Forget(claim); w != nil {
		s.unsure.Store(claim, w.Claim)
	}
	if c, is := s.unsure.Load(claim); is {
		record = s.record(c.(*engine.Claim), as)
	}
	return [4]string{claim + us, us + as + us, s.keep, record}
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	for _, w := range s.inbox.All() {
		if err := s.Leave(ctx, w.Claim.Resource, w.Claim.ID); err != nil && !errors.Is(err, engine.ErrGone) {
			break // they go when it is their turn
		}
	}
	var err error
	for _, result := range s.engine.client.Pipeline(ctx, s.farewell()) {
		err = cmp.Or(err, result.Err)
	}
	s.engine.opened.Delete(s)
	s.batch.mu.Lock() // from now on no request starts
	s.end()
	s.batch.mu.Unlock()
	s.done.Wait()
	return failed(ctx, "close session", err)
}
