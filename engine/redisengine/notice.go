package redisengine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
)

// notices is a client that the server tells when a key of ours that it has read
// is changed or deleted, by whom- and whatever:
// https://redis.io/docs/latest/develop/reference/client-side-caching/. It is a
// client of its own, for one with such a hook has no fast path, and is made when it is
// needed: short holds do not pay for it.
type notices struct {
	option *rueidis.ClientOption // nil: the server tells nothing
	tasks  sync.WaitGroup

	mu       sync.Mutex
	client   rueidis.Client // nil: not yet
	dialing  bool
	sessions map[*session]struct{}
}

// watched is the head of a name on which a session holds a claim.
type watched struct {
	claim string
	asked time.Time // to be told of it
	on    bool      // the next change will be told
}

// kept is how long the client remembers what it read. It tells of a change
// however long that is.
const kept = 24 * time.Hour

func (n *notices) join(s *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sessions == nil {
		n.sessions = make(map[*session]struct{})
	}
	n.sessions[s] = struct{}{}
}

func (n *notices) part(s *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sessions, s)
}

// ready returns the client once there is one. It does not wait for it: those who
// hold are told to ask again.
func (n *notices) ready() rueidis.Client {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client == nil && n.option != nil && !n.dialing {
		n.dialing = true
		n.tasks.Go(n.dial)
	}
	return n.client
}

func (n *notices) dial() {
	option := *n.option
	option.DisableCache, option.PipelineMultiplex = false, -1 // one connection
	option.OnInvalidations = n.changed
	client, err := rueidis.NewClient(option)
	n.mu.Lock()
	n.dialing = false
	switch {
	case err == nil:
		n.client = client
	case errors.Is(err, rueidis.ErrNoCache): // it cannot, or this user may not
		n.option = nil
	}
	n.mu.Unlock()
	if err == nil {
		n.changed(nil)
	}
}

// changed tells who holds to look: those who hold these heads, or all, for nil is
// that all keys are gone, or the connection. It is called where messages are read.
func (n *notices) changed(keys []rueidis.RedisMessage) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.sessions {
		s.mu.Lock()
		if keys == nil {
			for _, w := range s.watched {
				s.suspect(w)
			}
		}
		for _, key := range keys {
			head, _ := key.ToString()
			if w := s.watched[head]; w != nil && w.on {
				s.suspect(w)
			}
		}
		s.mu.Unlock()
	}
}

// suspect gives a hint, by which the session is renewed.
func (s *session) suspect(w *watched) {
	w.on = false
	if s.opts.Gone != nil {
		s.opts.Gone(w.claim)
	}
}

// watch asks to be told of changes of what is held. One that changes again and again, as
// when readers come and go, is asked for no more than twice between two
// heartbeats.
func (s *session) watch(held []*engine.Claim) {
	client := s.engine.notices.ready()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.watched
	s.watched = make(map[string]*watched, len(held))
	var ask []rueidis.CacheableTTL
	for _, c := range held {
		head := s.engine.keys(c.Resource, "")[0]
		w := before[head]
		if w == nil {
			w = &watched{}
		}
		w.claim, s.watched[head] = c.ID, w
		if client == nil || w.on || time.Since(w.asked) < s.opts.TTL/30 {
			continue
		}
		w.on, w.asked = true, time.Now()
		ask = append(ask, rueidis.CT(client.B().Get().Key(head).Cache(), kept))
	}
	if heads := s.watched; len(ask) > 0 && s.life.Err() == nil {
		s.done.Go(func() { s.read(client, heads, ask) })
	}
}

// read reads heads, of whose changes the server tells from then on. It is beside
// the renewal, which does not depend on it.
func (s *session) read(client rueidis.Client, heads map[string]*watched, ask []rueidis.CacheableTTL) {
	ctx, cancel := context.WithTimeout(s.life, s.opts.TTL/3)
	defer cancel()
	keys := make([]string, len(ask))
	for i, a := range ask {
		keys[i] = a.Cmd.Commands()[1]
	}
	for i, result := range client.DoMultiCache(ctx, ask...) {
		s.mu.Lock()
		switch w, err := heads[keys[i]], result.Error(); {
		case rueidis.IsRedisNil(err): // since the renewal looked
			s.suspect(w)
		case err != nil:
			w.on = false
		}
		s.mu.Unlock()
	}
}

func (n *notices) close() {
	n.tasks.Wait()
	if n.client != nil {
		n.client.Close()
	}
}
