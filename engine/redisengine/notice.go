package redisengine

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/bounded"
	"github.com/pawl-go/pawl/internal/turn"
)

// notices is a client that the server tells when any command changes or deletes a key of ours that
// the client has read. See https://redis.io/docs/latest/develop/reference/client-side-caching/. That client
// is a client of its own, because a client with such a hook has no fast path. On a single server
// its one connection is that of the hub as well; in a cluster it is made when it is needed.
type notices struct {
	engine  *Engine                              // whose sessions are told
	option  atomic.Pointer[rueidis.ClientOption] // nil: the server tells nothing
	dialing turn.Turn                            // of the caller that makes the client
	client  rueidis.Client                       // nil: not yet
}

// watched is the head of a name on which a session holds claims.
type watched struct {
	claims  []*engine.Claim
	asked   time.Time // to be told of it
	on      bool      // the next change will be told
	suspect bool      // it was changed: the claims are to be looked for
}

// kept is how long the client remembers a key that it read. The server tells of a change
// at any time.
const kept = 24 * time.Hour

// join reports whether the session may be told anything.
func (n *notices) join(s *session) bool {
	if n.option.Load() == nil || s.opts.Gone == nil {
		return false
	}
	s.alarms, s.settled = make(turn.Bell, 1), time.NewTimer(s.opts.TTL)
	return true
}

// connect returns the client, and makes it if there is none; it returns nil without an error
// when the server gives no notices.
func (n *notices) connect(ctx context.Context) (rueidis.Client, error) {
	if err := n.dialing.Take(ctx); err != nil {
		return nil, err
	}
	defer n.dialing.Give()
	given := n.option.Load()
	if n.client != nil || given == nil {
		return n.client, nil
	}
	option := *given
	option.DisableCache, option.PipelineMultiplex = false, -1 // one connection
	option.OnInvalidations = n.changed
	client, err := bounded.Call(ctx, func() (rueidis.Client, error) { return rueidis.NewClient(option) }, rueidis.Client.Close)
	if errors.Is(err, rueidis.ErrNoCache) { // it cannot, or this user may not
		n.option.Store(nil)
		return nil, nil
	}
	if err == nil {
		n.client = client
	}
	return n.client, err
}

// changed makes sessions look that hold these heads. With nil, all sessions look, because all keys
// are gone, or the connection. The reader of messages calls it.
func (n *notices) changed(keys []rueidis.RedisMessage) {
	for is := range n.engine.opened.Range {
		s := is.(*session)
		s.mu.Lock()
		if keys == nil {
			for _, w := range s.watched {
				w.on, w.suspect = false, true
			}
		}
		for _, key := range keys {
			head, _ := key.ToString()
			if w := s.watched[head]; w != nil {
				w.on, w.suspect = false, true
			}
		}
		s.mu.Unlock()
		s.alarms.Ring()
	}
}

// watch notes the held claims, to ask for notices of those still held a little later. A client with
// many short holds always has some that are not.
func (s *session) watch(held []*engine.Claim) {
	if s.alarms == nil {
		return
	}
	now := make(map[string]*watched, len(held))
	s.mu.Lock()
	for _, c := range held {
		head := s.engine.keys(c.Resource, "")[0]
		w := now[head]
		if w == nil {
			if w = s.watched[head]; w == nil {
				w = &watched{}
			}
			now[head], w.claims = w, nil
		}
		w.claims = append(w.claims, c)
	}
	s.watched = now
	s.mu.Unlock()
	s.settled.Reset(s.opts.TTL / 30)
}

// unwatch forgets a claim that leaves by itself.
func (s *session) unwatch(head, claim string) {
	if s.alarms == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watched[head]; w != nil {
		if w.claims = slices.DeleteFunc(w.claims, func(c *engine.Claim) bool { return c.ID == claim }); len(w.claims) == 0 {
			delete(s.watched, head)
		}
	}
}

// attend looks after each alarm, as long as the session lives.
func (s *session) attend() {
	for {
		select {
		case <-s.alarms:
		case <-s.settled.C:
		case <-s.life.Done():
			s.settled.Stop()
			return
		}
		s.mu.Lock()
		holds := len(s.watched) > 0
		s.mu.Unlock()
		if !holds {
			continue // and needs no connection
		}
		if client, err := s.engine.notices.connect(s.life); err == nil && client != nil {
			s.inspect(client)
		}
	}
}

// inspect asks for notices of the watched claims, and looks for the claims whose heads were
// changed. inspect reports only lost claims. A head that changes again and again, as that of a
// semaphore, is asked for no more than twice between two heartbeats.
func (s *session) inspect(client rueidis.Client) {
	ctx, cancel := context.WithTimeout(s.life, s.opts.TTL/3)
	defer cancel()
	var asked []*watched
	var reads []rueidis.CacheableTTL
	s.mu.Lock()
	for head, w := range s.watched {
		if !w.on && time.Since(w.asked) >= s.opts.TTL/30 {
			w.on, w.asked = true, time.Now()
			asked = append(asked, w)
			reads = append(reads, rueidis.CT(client.B().Get().Key(head).Cache(), kept))
		}
	}
	s.mu.Unlock()
	replies := client.DoMultiCache(ctx, reads...) // none for none
	s.mu.Lock()
	for i, reply := range replies {
		switch err := reply.Error(); {
		case rueidis.IsRedisNil(err): // since the renewal looked
			asked[i].suspect = true
		case err != nil:
			asked[i].on = false
		}
	}
	var suspects []*engine.Claim
	for _, w := range s.watched {
		if w.suspect {
			w.suspect, suspects = false, append(suspects, w.claims...)
		}
	}
	s.mu.Unlock()
	gone, _ := s.missing(ctx, suspects) // the next renewal asks for the rest
	for _, c := range gone {
		s.opts.Gone(c.ID)
	}
}

func (n *notices) close() {
	n.dialing.Take(context.Background()) //nolint:errcheck // sessions have ended, and so has each dial
	defer n.dialing.Give()               // later calls find a closed client, and a second Close ends
	if n.client != nil {
		n.client.Close()
	}
}
