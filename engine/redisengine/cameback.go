package redisengine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// known is a session's knowledge of its claims in the store.
type known struct {
	mu      sync.Mutex
	touched time.Time            // when their keys were kept from expiring
	names   map[string]time.Time // where claims left lately, and until when that counts
	more    time.Time            // until when there may be others
	search  search
}

// search looks for claims that came back with a life of the database. An interrupted search goes on
// with the next renewal.
type search struct {
	mark   string        // of the life in which it began
	heads  []string      // keys of names, which are left to look at
	cursor string        // where to go on reading all of them; "": nowhere
	found  [][2]string   // names and claims that Renew is to report
	round  chan struct{} // ends with the goroutine that searches; nil: none does
}

// maxKnown bounds how many names a session remembers.
const maxKnown = 256

// leaves notes that a claim left a name. The claim comes back with a snapshot that has it. If
// its session lives in that snapshot, the snapshot is younger than the TTL.
func (k *known) leaves(name string, ttl time.Duration) {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, is := k.names[name]; !is && len(k.names) >= maxKnown {
		maps.DeleteFunc(k.names, func(_ string, until time.Time) bool { return now.After(until) })
		if len(k.names) >= maxKnown {
			k.more = now.Add(2 * ttl)
			clear(k.names)
		}
	}
	k.names[name] = now.Add(2 * ttl)
}

// reconcile reports claims that came back with old data on names that this session left lately. A search
// for these begins where the mark is another than last time. No renewal depends on the search, which may
// take longer than the TTL where there are many names. reconcile waits a little, because most searches are short.
//
// A claim that is gone may wait again: old data are from before its grant. The next renewals search its name.
func (s *session) reconcile(ctx context.Context, held, gone []*engine.Claim, mark string) {
	if s.opts.Found == nil {
		return
	}
	if round := s.searching(mark); round != nil {
		wait := s.opts.Heartbeat / 8
		if end, is := ctx.Deadline(); is {
			wait = min(wait, time.Until(end)/2)
		}
		select {
		case <-round:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	s.known.mu.Lock()
	found := s.known.search.found
	s.known.search.found = nil
	for _, c := range gone {
		s.known.search.heads = append(s.known.search.heads, s.engine.keys(c.Resource, "")[0])
	}
	s.known.mu.Unlock()
	for _, f := range found {
		if !s.inbox.Waits(f[1]) && !slices.ContainsFunc(held, func(h *engine.Claim) bool { return h.ID == f[1] }) {
			s.opts.Found(f[0], f[1])
		}
	}
}

// searching returns the round of a search, if there is something to look at.
func (s *session) searching(mark string) <-chan struct{} {
	k, now := &s.known, time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.search.mark != mark {
		k.search.mark = mark
		for name, until := range k.names {
			if now.Before(until) {
				k.search.heads = append(k.search.heads, s.engine.keys(name, "")[0])
			}
		}
		if now.Before(k.more) {
			k.search.cursor = "0"
		}
	}
	if k.search.round == nil && !k.search.over() {
		s.batch.mu.Lock() // Close waits for no more goroutines
		if s.life.Err() == nil {
			k.search.round = make(chan struct{})
			s.done.Go(func() {
				for s.searchOn() {
				}
			})
		}
		s.batch.mu.Unlock()
	}
	return k.search.round
}

func (is *search) over() bool { return len(is.heads) == 0 && is.cursor == "" }

// searchOn looks at some names, or reads some more. searchOn reports false at the end of the search, and
// where the server does not answer.
func (s *session) searchOn() bool {
	ctx, cancel := context.WithTimeout(s.life, s.opts.TTL)
	defer cancel()
	k, all := &s.known, s.engine.prefix+"{"
	k.mu.Lock()
	was := k.search
	k.mu.Unlock()
	part := was.heads[:min(len(was.heads), perRenewal)]
	found, more, next := [][2]string(nil), []string(nil), was.cursor
	give, err := s.engine.place(ctx)
	if err == nil {
		if len(part) > 0 {
			found, err = s.cameBack(ctx, part)
		} else {
			more, next, err = page(ctx, s.engine.client, glob.Replace(all)+"*}", was.cursor)
		}
		give()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	is := &k.search
	if is.found = append(is.found, found...); err == nil {
		is.heads = append(is.heads[len(part):], more...)
		if is.mark == was.mark { // else all are read again
			is.cursor = next
		}
	}
	if err != nil || is.over() {
		close(is.round)
		is.round = nil
		return false
	}
	return true
}

// cameBack returns the claims of this session on some names, with the names. A claim alone on a name
// stands in the head, so that no script is needed for most names.
func (s *session) cameBack(ctx context.Context, heads []string) (found [][2]string, err error) {
	e := s.engine
	gets := make([]Command, len(heads))
	for i, head := range heads {
		gets[i] = read("GET", head)
	}
	var names []string
	var looks []Command
	for i, r := range e.client.Pipeline(ctx, gets) {
		if r.Err != nil && !r.unreadable() {
			return nil, r.Err
		}
		if head, _ := r.Value.(string); strings.HasPrefix(head, "F") || strings.HasPrefix(head, "W") || strings.Contains(head, s.id) {
			name := nameIn(heads[i], e.prefix+"{")
			names, looks = append(names, name), append(looks, s.look(name, "0", "1000000000"))
		}
	}
	for i, r := range e.client.Pipeline(ctx, looks) {
		if r.Err != nil && !r.unreadable() {
			return nil, r.Err
		}
		is, _ := r.Value.([]any)
		for _, id := range is[min(1, len(is)):] {
			found = append(found, [2]string{names[i], id.(string)})
		}
	}
	return found, nil
}

// look looks for the claims of this session on a name, or in a part of so many claims from a place on.
func (s *session) look(name, from, most string) Command {
	return eval(mineLua, s.engine.keys(name, "")[:3], s.id, from, most)
}

// unreadable reports whether the server answered that a key is none of a name, or that a script met a
// broken value.
func (r Reply) unreadable() bool {
	return r.Err != nil && (r.says("WRONGTYPE") || strings.Contains(r.Err.Error(), "user_script"))
}
