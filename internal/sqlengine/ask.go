package sqlengine

import (
	"context"
	"maps"
	"time"

	"github.com/pawl-go/pawl/fence"
)

// waits counts who waits, and wakes who asks for them.
func (s *routines) waits(more int64) {
	if s.count.Add(more) != more {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ask tells all who wait in this process, by one query for them all, while no
// messages arrive.
func (s *routines) ask() {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		idle := tick.C
		if s.count.Load() == 0 {
			idle = nil
		}
		select {
		case <-idle:
		case <-s.next:
		case <-s.wake:
			continue
		case <-s.life.Done():
			return
		}
		if s.Told == nil || !s.Told() {
			ctx, cancel := context.WithTimeout(s.life, 100*askEvery)
			s.askOnce(ctx) //nolint:errcheck // the next time is soon
			cancel()
		}
	}
}

// answer is what became of a claim.
type answer struct {
	token fence.Token
	look  bool
}

// Ask asks once for all who wait: messages may have been lost.
func (e *Engine) Ask(ctx context.Context) error { return e.store.(*routines).askOnce(ctx) }

// left is called when a claim has left, or permits were added: the next one may be in this process.
func (s *routines) left(resource string) {
	if s.Told != nil && s.Told() {
		return
	}
	s.engine.sessions.Range(func(_, known any) bool {
		if !known.(*session).waitsFor(resource) {
			return true
		}
		select {
		case s.next <- struct{}{}:
		default:
		}
		return false
	})
}

// askOnce asks for those that waited before. Whoever is no longer there looks,
// and finds out.
func (s *routines) askOnce(ctx context.Context) error {
	waiters := make(map[string]*waiter)
	s.engine.sessions.Range(func(_, known any) bool {
		maps.Copy(waiters, known.(*session).waiting())
		return true
	})
	answers := make(map[string]answer)
	err := s.query(ctx, "ask", "waited", func(scan func(...any) error) error {
		var claim string
		var token fence.Token
		var waited int
		err := scan(&claim, &token, &waited)
		answers[claim] = answer{token, waited == 2}
		return err
	}, s.Client)
	if err != nil {
		return err
	}
	for claim, w := range waiters {
		if is, known := answers[claim]; !known || is.look || is.token != 0 {
			w.tell(is.token)
		}
	}
	return nil
}
