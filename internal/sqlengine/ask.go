package sqlengine

import (
	"context"
	"time"

	"github.com/pawl-go/pawl/internal/inbox"
	"github.com/pawl-go/pawl/internal/turn"
)

// awaits counts the claims that are awaited. A new one may have a shorter heartbeat than those before.
func (e *Engine) awaits(more int64) {
	if e.count.Add(more) == 0 || more > 0 {
		e.wake.Ring()
	}
}

// ask tells all waiters of this Engine: the news, again and again while no messages arrive. ask asks
// for the state of all claims once a heartbeat, because a message may be lost.
func (e *Engine) ask() {
	all := time.Now() // when that was last
	last := all       // when anything was
	for {
		told, every := e.store.told()
		due := last.Add(every)
		if told {
			due = all.Add(e.heartbeat())
		}
		idle := time.After(time.Until(due))
		if e.count.Load() == 0 {
			idle = nil
		}
		everything := false
		select {
		case <-idle:
		case <-e.next:
		case <-e.full:
			everything = true
		case <-e.wake:
			if idle == nil { // else a constant stream of claims would put the request off
				all = time.Now()
				last = all
			}
			continue
		case <-e.life.Done():
			return
		}
		everything = everything || !time.Now().Before(all.Add(e.heartbeat()))
		ctx, cancel := context.WithTimeout(e.life, pollEvery*20)
		if err := e.askOnce(ctx, everything); everything {
			if all = time.Now(); err != nil {
				e.full.Ring()
				turn.Pause(e.life, pollEvery) //nolint:errcheck // the loop ends with it
			}
		}
		last = time.Now()
		cancel()
	}
}

// heartbeat is the shortest of the sessions that wait.
func (e *Engine) heartbeat() time.Duration {
	beat := time.Hour
	for _, known := range e.sessions.Range {
		if s := known.(*session); s.inbox.Len() > 0 {
			beat = min(beat, s.opts.Heartbeat)
		}
	}
	return beat
}

// Ask has all waiters asked for: messages may have been lost.
func Ask(e *Engine) { e.full.Ring() }

// left is called when a claim has left, or permits were added: the next one may be in this process.
func (e *Engine) left(resource string) {
	if told, _ := e.store.told(); told {
		return
	}
	for _, known := range e.sessions.Range {
		if known.(*session).inbox.WaitsFor(resource) {
			e.next.Ring()
			return
		}
	}
}

// askOnce asks for the claims that waited before. A waiter whose claim is gone looks, and finds
// out.
func (e *Engine) askOnce(ctx context.Context, all bool) error {
	var waiting []*inbox.Waiter
	var sessions []string
	for id, known := range e.sessions.Range {
		if is := known.(*session).inbox.All(); len(is) > 0 {
			sessions, waiting = append(sessions, id.(string)), append(waiting, is...)
		}
	}
	if len(sessions) == 0 {
		return nil
	}
	answers, err := e.store.news(ctx, sessions, all)
	if err != nil {
		return err
	}
	for claim, is := range answers {
		if is.look || is.token != 0 {
			e.sessions.Range(func(_, known any) bool {
				return !known.(*session).inbox.Receive(claim, is.token, false)
			})
		}
	}
	if !all {
		return nil
	}
	for _, w := range waiting {
		if _, known := answers[w.Claim.ID]; !known {
			w.Look()
		}
	}
	return nil
}
