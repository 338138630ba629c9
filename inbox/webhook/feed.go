package webhook

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawl-go/pawl/inbox"
)

const (
	mostDead = 1000            // dead letters in memory; a message whose letter has no room runs again
	untold   = time.Hour       // for which a dead letter waits for its first request
	told     = 2 * time.Minute // for which it waits for the next one; a relay asks MaxAttempts times, a minute apart at most by default
)

// letter is a dead letter. The letter is forgotten some time after the last request, because an operator may send the message again.
type letter struct {
	reason string
	until  time.Time
}

// delivery is a message for which requests wait.
type delivery struct {
	source *Source
	m      inbox.Message
	sum    [sha256.Size]byte
	done   chan struct{} // closed when the message is settled

	// The source's mutex guards the fields below.
	waiters int
	handed  bool // to a consumer
	settled bool
	answer  answer
}

// sum tells messages apart that have the same ID.
func sum(m inbox.Message) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %d %s", m.ID, m.Key, m.Time.Unix(), m.Payload))
}

// join puts a message into the queue. A repeat waits for the message that is here.
func (s *Source) join(m inbox.Message) (*delivery, answer) {
	sum := sum(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, is := s.dead[sum]; is && time.Now().Before(l.until) {
		s.keep(sum, l.reason, told)
		return nil, answer{refused, l.reason}
	}
	d := s.held[m.ID]
	switch {
	case s.feeds == 0:
		return nil, idle
	case d == nil && len(s.held) >= s.opts.Requests:
		return nil, full
	case d == nil:
		d = &delivery{source: s, m: m, sum: sum, done: make(chan struct{})}
		s.held[m.ID] = d
		s.queue = append(s.queue, d)
		s.ring()
	case d.sum != sum:
		return nil, occupied
	}
	d.waiters++
	return d, answer{}
}

// leave ends the wait of a request. A message that no request waits for leaves the queue: its sender sends it again.
func (s *Source) leave(d *delivery) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.waiters--
	if d.settled {
		return d.answer
	}
	if d.waiters == 0 && !d.handed {
		delete(s.held, d.m.ID)
		s.queue = slices.DeleteFunc(s.queue, func(other *delivery) bool { return other == d })
	}
	return unready
}

// settle answers all requests of a message.
func (d *delivery) settle(a answer) {
	s := d.source
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.settled {
		return
	}
	d.settled, d.answer = true, a
	delete(s.held, d.m.ID)
	if a.verdict == refused {
		hold := untold
		if d.waiters > 0 {
			hold = told
		}
		s.keep(d.sum, a.reason, hold)
	}
	close(d.done)
}

// keep keeps a dead letter. The source's mutex is held. A letter makes room only if its time is over or all others live.
func (s *Source) keep(sum [sha256.Size]byte, reason string, hold time.Duration) {
	now := time.Now()
	if _, is := s.dead[sum]; !is && len(s.dead) >= mostDead {
		maps.DeleteFunc(s.dead, func(_ [sha256.Size]byte, l letter) bool { return !now.Before(l.until) })
		for other := range s.dead {
			if len(s.dead) < mostDead {
				break
			}
			delete(s.dead, other)
		}
	}
	s.dead[sum] = letter{reason, now.Add(hold)}
}

func (s *Source) ring() {
	select {
	case s.bell <- struct{}{}:
	default:
	}
}

// Open implements [inbox.Source].
func (s *Source) Open(context.Context, bool) (inbox.Feed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feeds++
	return &feed{s}, nil
}

// feed is the queue as a consumer reads it.
type feed struct{ *Source }

// Receive implements [inbox.Feed].
func (f *feed) Receive(ctx context.Context, most int) ([]inbox.Delivery, error) {
	for {
		if got := f.hand(most); len(got) > 0 {
			return got, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-f.bell:
		}
	}
}

func (s *Source) hand(most int) (got []inbox.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(most, len(s.queue))
	for _, d := range s.queue[:n] {
		d.handed = true
		got = append(got, d)
	}
	if s.queue = slices.Delete(s.queue, 0, n); len(s.queue) > 0 { // another feed may wait
		s.ring()
	}
	return got
}

// Hold implements [inbox.Feed].
func (f *feed) Hold() time.Duration { return 0 }

// Extend implements [inbox.Feed].
func (f *feed) Extend(context.Context) error { return nil }

// Close implements [inbox.Feed].
func (f *feed) Close(context.Context) error {
	f.mu.Lock()
	var rest []*delivery
	if f.feeds--; f.feeds == 0 {
		rest, f.queue = f.queue, nil
	}
	f.mu.Unlock()
	for _, d := range rest {
		d.settle(idle)
	}
	return nil
}

// Message implements [inbox.Delivery].
func (d *delivery) Message() inbox.Message { return d.m }

// Unload implements [inbox.Delivery]. Nobody else has the content.
func (d *delivery) Unload() {}

// Load implements [inbox.Delivery].
func (d *delivery) Load(context.Context) (inbox.Message, error) { return d.m, nil }

// Count implements [inbox.Delivery].
func (d *delivery) Count() int { return 1 }

// Ack implements [inbox.Delivery].
func (d *delivery) Ack(context.Context) error {
	d.settle(answer{verdict: took})
	return nil
}

// Nack implements [inbox.Delivery]. The sender decides when the message comes again.
func (d *delivery) Nack(context.Context) error {
	d.settle(returned)
	return nil
}

// Dead implements [inbox.Delivery]. The sender has the dead letter, once a request has the answer.
func (d *delivery) Dead(_ context.Context, reason string) error {
	d.settle(answer{refused, fmt.Sprintf("%.300s", reason)})
	return nil
}
