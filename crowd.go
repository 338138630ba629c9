package pawl

import "time"

// crowd are the calls of one client that lost a request for the same name. Each call asks again
// until the store answers, and gives up after a TTL without an answer. In a large crowd a request
// waits behind many others. So an answer to any of them counts for all: that store is well.
type crowd struct {
	calls    int
	answered time.Time // when the store last answered a request for the name
}

// joinCrowd counts one more call until leaveCrowd.
func (s *session) joinCrowd(name string) *crowd {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.crowds[name]
	if c == nil {
		c = new(crowd)
		s.crowds[name] = c
		s.crowded.Store(true)
	}
	c.calls++
	return c
}

func (s *session) leaveCrowd(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.crowds[name]; c.calls > 1 {
		c.calls--
	} else {
		delete(s.crowds, name)
		s.crowded.Store(len(s.crowds) > 0)
	}
}

// heard returns when the store last answered a request for the name, from the caller or from
// another call of the crowd.
func (s *session) heard(c *crowd, caller time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.answered.After(caller) {
		return c.answered
	}
	return caller
}

// answered notes that the store answered a request to enter a claim of this name. While no call has
// lost a request, answered costs nothing.
func (s *session) answered(name string) {
	if !s.crowded.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.crowds[name]; c != nil {
		c.answered = time.Now()
	}
}
