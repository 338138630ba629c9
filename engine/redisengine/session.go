package redisengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
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

	mu      sync.Mutex
	waiting map[string]*waiter  // by claim id
	watched map[string]*watched // by head
	alarms  chan struct{}       // nil: nobody is told; see notice.go
	settled *time.Timer         // after a renewal
}

// waiter is a claim that may be told something: its token, or 0 to look.
type waiter struct {
	claim   *engine.Claim
	news    chan fence.Token
	look    time.Time   // when it looks by itself
	evicted atomic.Bool // a message said that the claim is gone
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	opts.Heartbeat = cmp.Or(opts.Heartbeat, opts.TTL/3)
	s := &session{engine: e, id: rand.Text(), opts: opts, waiting: make(map[string]*waiter)}
	s.members.byName = make(map[string]*member)
	s.key = e.prefix + "session:" + s.id
	s.keep = ms(keep(opts.TTL))
	for ttl := opts.TTL.Milliseconds(); ; {
		if is := e.ttl.Load(); is >= ttl || e.ttl.CompareAndSwap(is, ttl) {
			break
		}
	}
	s.life, s.end = context.WithCancel(context.Background())
	in, err := s.subscribe(ctx)
	if err != nil {
		s.end()
		return nil, failed(ctx, "open session", err)
	}
	if err := s.begin(ctx); err != nil {
		s.end()
		in.Close()
		if errors.Is(err, engine.ErrUnsupported) {
			return nil, fmt.Errorf("open session: %w", err)
		}
		return nil, failed(ctx, "open session", err)
	}
	s.known.mark, s.known.touched = e.life.Load().mark, time.Now()
	e.opened.add(s)
	s.done.Go(func() { s.listen(in) })
	if e.notices.join(s) {
		s.done.Go(s.attend)
	}
	return s, nil
}

// keep is how long keys outlive their last use.
func keep(ttl time.Duration) time.Duration { return max(time.Hour, 4*ttl) }

func (s *session) ID() string { return s.id }

func (s *session) subscribe(ctx context.Context) (*Subscription, error) {
	return s.engine.hub.listen(ctx, s.engine.prefix+"inbox:"+s.id, s.receive)
}

// listen keeps the inbox open. Messages sent while it was closed are lost, so
// every waiter looks after it is open again.
func (s *session) listen(in *Subscription) {
	for {
		select {
		case <-in.Broken:
		case <-s.life.Done():
		}
		in.Close()
		for pause := 10 * time.Millisecond; ; pause = min(2*pause, s.opts.TTL/6) {
			if s.life.Err() != nil {
				return
			}
			var err error
			if in, err = s.subscribe(s.life); err == nil {
				// It may be another server, or a restarted server, which has to know
				// for how long clients may believe.
				if err = s.engine.check(s.life); err == nil || errors.Is(err, engine.ErrUnsupported) {
					break
				}
				in.Close()
			}
			select {
			case <-time.After(pause):
			case <-s.life.Done():
			}
		}
		s.mu.Lock()
		for _, w := range s.waiting {
			w.tell(0)
		}
		s.mu.Unlock()
	}
}

func (w *waiter) tell(token fence.Token) {
	select {
	case w.news <- token:
	default: // it has news already and will look
	}
}

// receive handles a message: g(ranted) id token, f(ree) id, x (gone) id.
func (s *session) receive(message string) {
	kind, rest, _ := strings.Cut(message, us)
	id, number, _ := strings.Cut(rest, us)
	token, _ := fence.ParseToken(number)
	s.mu.Lock()
	w := s.waiting[id]
	s.mu.Unlock()
	switch {
	case w != nil:
		w.evicted.Store(kind == "x")
		w.tell(token)
	case kind == "x" && s.opts.Gone != nil:
		s.opts.Gone(id)
	}
}

// Enter implements [engine.Session].
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	var w *waiter
	wish := "0"
	if wait {
		wish = "1"
		w = s.awaits(c)
	}
	var reply reply
	if s.engine.cluster {
		reply = s.enterIn(ctx, c, wish)
	} else {
		reply = s.enterHere(ctx, c, wish)
	}
	if errors.Is(reply.Err, engine.ErrGone) {
		s.forget(c.ID)
		return engine.Grant{}, fmt.Errorf("enter: %w", reply.Err)
	}
	switch is := reply.Value.(type) {
	case []any:
		var grace engine.Grace
		if len(is) == 3 {
			grace = graceOf(is[1:])
		}
		if is[0] == int64(-3) {
			s.forget(c.ID)
			return engine.Grant{}, fmt.Errorf("enter: %w", &engine.GraceError{Grace: grace})
		}
		w.look = s.look(is)
		return engine.Grant{Grace: grace}, nil
	case string:
		s.forget(c.ID)
		return engine.Grant{}, fmt.Errorf("enter: %w", queue.Mismatch(parseSpec(is), c.Spec))
	}
	s.forget(c.ID)
	switch code, err := reply.number(); {
	case err != nil:
		return engine.Grant{}, failed(ctx, "enter", err)
	case code == -1:
		return engine.Grant{}, fmt.Errorf("enter: session: %w", engine.ErrGone)
	case code < 0:
		return engine.Grant{}, fmt.Errorf("enter: %w", engine.ErrBusy)
	default:
		return s.granted(ctx, c, fence.Token(code), reply.short)
	}
}

// enterHere enters a claim on a single server. If that has another mark than was known, it is
// asked once more.
func (s *session) enterHere(ctx context.Context, c *engine.Claim, wish string) (r reply) {
	for range 3 {
		r = s.step(ctx, enter, s.engine.keys(c.Resource, s.key), [4]string{s.record(c, s.id), wish, s.keep, form(c)})
		if r.Value != int64(-4) {
			return r
		}
		if err := s.engine.check(ctx); err != nil {
			return reply{Reply: Reply{Err: err}}
		}
	}
	return reply{Reply: Reply{Err: errors.New("the server forgets again and again")}}
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
	result, _ := e.run(ctx, leave, e.keys(c.Resource, ""), s.arguments(s.leaving(c.Resource, c.ID), "", ""), 0)
	if result.Err == nil {
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

// awaits returns the waiter of a claim, which exists before the claim enters, because its grant
// may overtake the reply.
func (s *session) awaits(c *engine.Claim) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[c.ID]
	if w == nil {
		w = &waiter{claim: c, news: make(chan fence.Token, 1)}
		s.waiting[c.ID] = w
	}
	return w
}

// forget ends the waiting of a claim and returns it, if it waited here.
func (s *session) forget(id string) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[id]
	delete(s.waiting, id)
	return w
}

// Await implements [engine.Session].
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	w := s.awaits(c)
	timer := time.NewTimer(time.Until(w.look))
	defer timer.Stop()
	for {
		select {
		case token := <-w.news:
			if token != 0 && s.engine.wait <= 0 {
				s.forget(c.ID)
				return engine.Grant{Token: token}, nil
			}
		case <-timer.C:
		case <-ctx.Done():
			return engine.Grant{}, context.Cause(ctx)
		}
		grant, err := s.poll(ctx, c, w)
		if errors.Is(err, errForgotten) {
			err = s.whyGone(ctx, w)
		}
		if err != nil || grant.Held() {
			return grant, err
		}
		timer.Reset(time.Until(w.look))
	}
}

// errForgotten says that the store does not know a claim that waits.
var errForgotten = errors.New("the store does not know the claim any more")

// whyGone tells an evicted claim from a claim that the store forgot, with all
// keys of its name or its session there. A forgotten claim may enter again. The message of an
// eviction may come a little later than the answer.
func (s *session) whyGone(ctx context.Context, w *waiter) error {
	timer := time.NewTimer(min(s.opts.Heartbeat/10, 100*time.Millisecond))
	defer timer.Stop()
	for !w.evicted.Load() {
		select {
		case <-w.news:
		case <-timer.C:
			return engine.Unavailable("await", errForgotten)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("await: %w", engine.ErrGone)
}

// poll reads the state of a claim. A deadline of its own lets the client
// keep its fast path, which a context that can only be cancelled ends.
//
// Replicas acknowledge the writes of one connection; but the leaving holder wrote a grant that
// it handed over. So a claim that replicas have to know
// writes something when it looks: that write is behind its grant, and on the same server.
func (s *session) poll(ctx context.Context, c *engine.Claim, w *waiter) (engine.Grant, error) {
	bound, cancel := context.WithTimeout(ctx, s.opts.TTL)
	defer cancel()
	write := "0"
	if s.engine.wait > 0 {
		write = "1"
	}
	reply := s.step(bound, poll, s.engine.keys(c.Resource, ""), [4]string{c.ID, s.keep, s.record(c, s.as(c.Resource)), write})
	if reply.Err != nil {
		return engine.Grant{}, failed(ctx, "await", reply.Err)
	}
	if waits, ok := reply.Value.([]any); ok {
		w.look = s.look(waits)
		return engine.Grant{}, nil
	}
	s.forget(c.ID)
	token, err := reply.number()
	if err == nil && token < 0 {
		s.left(c.Resource, c.ID)
		if token == -1 && s.engine.cluster { // the session has ended here, and may live elsewhere
			err = s.atHome(ctx)
		} else if token == -1 {
			err = engine.ErrGone
		}
		if errors.Is(err, engine.ErrGone) {
			return engine.Grant{}, fmt.Errorf("await: session: %w", engine.ErrGone)
		}
		return engine.Grant{}, errForgotten
	}
	if err != nil {
		return engine.Grant{}, failed(ctx, "await", err)
	}
	return s.granted(ctx, c, fence.Token(token), reply.short)
}

// look is the time at which a waiter looks by itself: when the
// session that it waits for can end, at most after one heartbeat.
func (s *session) look(reply []any) time.Time {
	pause := s.opts.Heartbeat
	if len(reply) > 0 {
		if ms, _ := reply[0].(int64); ms > 0 {
			pause = min(pause, time.Duration(ms+1)*time.Millisecond)
		}
	}
	return time.Now().Add(pause)
}

// Leave implements [engine.Session].
func (s *session) Leave(ctx context.Context, resource, claim string) error {
	keys := s.engine.keys(resource, "")
	s.unwatch(keys[0], claim)
	reply := s.step(ctx, leave, keys, s.leaving(resource, claim))
	left, err := reply.number()
	if err == nil {
		s.left(resource, claim)
		s.known.leaves(resource, s.opts.TTL)
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
	if w := s.forget(claim); w != nil {
		record = s.record(w.claim, as)
	}
	return [4]string{claim + us, us + as + us, s.keep, record}
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	waiting := maps.Clone(s.waiting)
	s.mu.Unlock()
	for id, w := range waiting {
		if err := s.Leave(ctx, w.claim.Resource, id); err != nil && !errors.Is(err, engine.ErrGone) {
			break // they go when it is their turn
		}
	}
	var err error
	for _, result := range s.engine.client.Pipeline(ctx, s.farewell()) {
		err = cmp.Or(err, result.Err)
	}
	s.engine.notices.part(s)
	s.engine.opened.remove(s)
	s.batch.mu.Lock() // from now on no request starts
	s.end()
	s.batch.mu.Unlock()
	s.done.Wait()
	return failed(ctx, "close session", err)
}
