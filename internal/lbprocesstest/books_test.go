package lbprocesstest

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// The books judge by what the store and the clients say, because a busy machine delays both. Each excuse needs such a fact:
//
//   - The store has the session of the dead server for longer than the TTL.
//   - Each sweeper of the group is dead itself, or the store did not answer it less than a TTL ago. Such a sweeper takes nobody for dead.
//   - The store did not answer the balancers.
//   - The store took long for a list of the sessions and a write, which a sweeper needs too.
//
// A request that fails has an excuse while servers are listed that are dead for longer than the TTL and a second. Too many may be dead then.
// Why they are listed needs an excuse of its own.
//
// TestBooks holds the excuses to that. In each trial a list that is late is found late by the same books.

// watcher is the label of the client of all balancers.
const watcher = "balancer"

// listsARound is how many lists of the store an allowance is for. A death just after the list of one round is seen in the next. Both
// rounds have a list and a write, and read pages.
const listsARound = 6

// books are the requests to servers, and the deaths of servers.
type books struct {
	mu      sync.Mutex
	ttl     time.Duration
	death   map[string]time.Time
	expired map[string]time.Time   // when the store had ended the session
	gap     map[string]time.Time   // when the store did not answer a client, by label; the last
	gaps    map[string]int         // how often that was noted, by label
	unread  []time.Time            // when the store did not answer the watcher
	unswept map[string][]time.Time // when no sweeper of a group could take a member for dead
	lists   []list                 // of the sessions
	last    map[string]time.Time   // request of each balancer to each server
	failed  map[string]int         // by balancer
	excused map[string]int         // of the failures
	done    map[string]int
	why     error

	listed func(by string) (ids []string) // the servers that a balancer has now
}

// list is how long the store took for a list and a write.
type list struct {
	at   time.Time
	took time.Duration
}

func newBooks(ttl time.Duration) *books {
	return &books{ttl: ttl, death: make(map[string]time.Time), expired: make(map[string]time.Time), last: make(map[string]time.Time),
		gap: make(map[string]time.Time), gaps: make(map[string]int),
		failed: make(map[string]int), excused: make(map[string]int), done: make(map[string]int), unswept: make(map[string][]time.Time),
		listed: func(string) []string { return nil }}
}

func (b *books) died(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.death[id] = time.Now()
}

// silent notes that the store did not answer a client.
func (b *books) silent(label string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gaps[label]++
	if b.gap[label] = time.Now(); label == watcher {
		b.unread = append(b.unread, time.Now())
	}
}

// silences says how many servers had no answer of the store, and how often.
func (b *books) silences() (servers, times int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.gaps {
		times += n
	}
	return len(b.gaps), times
}

// dead is how many of these servers are dead.
func (b *books) dead(ids []string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		if !b.death[id].IsZero() {
			n++
		}
	}
	return n
}

// alive notes the servers whose sessions the store has, and how long the list and a write took.
func (b *books) alive(now map[string]bool, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lists = append(b.lists, list{time.Now(), took})
	for id := range b.death {
		if now[id] {
			delete(b.expired, id)
		} else if b.expired[id].IsZero() {
			b.expired[id] = time.Now()
		}
	}
}

// swept notes the sweepers of a group, whose locks the store has. A group without any is no excuse.
func (b *books) swept(kind string, by []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, label := range by {
		if gap, ok := b.gap[label]; b.death[label].IsZero() && !(ok && time.Since(gap) < b.ttl) {
			return
		}
	}
	if len(by) > 0 {
		b.unswept[kind] = append(b.unswept[kind], time.Now())
	}
}

// sent notes a request to a server.
func (b *books) sent(by, id string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if key := by + " to " + id; at.After(b.last[key]) {
		b.last[key] = at
	}
}

// ended notes how a request ended, and if there was an excuse when it began.
func (b *books) ended(by string, excused bool, err error) {
	excused = excused || b.overdue(by)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done[by]++; err == nil {
		return
	}
	if b.failed[by]++; excused {
		b.excused[by]++
	} else if by != naive && by != slow {
		b.why = fmt.Errorf("%s: %w", by, err)
	}
}

// overdue reports whether a balancer has servers that should not be listed any more.
func (b *books) overdue(by string) bool {
	ids := b.listed(by)
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(ids, func(id string) bool { return !b.death[id].IsZero() && time.Since(b.death[id]) > b.ttl+time.Second })
}

// verdict is what the books say about the requests of a balancer to dead servers.
type verdict struct {
	late    []string      // requests without an excuse
	most    time.Duration // the longest time from a death to the last request there
	excused []string      // requests with an excuse
}

// judge looks at each death. A server is dead for its TTL, and then for a second. The second begins anew at each excuse.
func (b *books) judge(by string) (v verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kind := web
	if by == calls {
		kind = rpc
	}
	excuses := slices.Concat(b.unswept[kind], b.unread)
	slices.SortFunc(excuses, time.Time.Compare)
	for id, died := range b.death {
		last, end := b.last[by+" to "+id], died.Add(b.ttl)
		if b.expired[id].After(end) {
			end = b.expired[id]
		}
		end, allowed := b.due(died, end, excuses)
		v.most = max(v.most, last.Sub(died))
		switch {
		case last.Sub(end) > allowed:
			v.late = append(v.late, fmt.Sprintf("%s: a request %v after the death, and %v after the last excuse, with %v allowed", id, last.Sub(died), last.Sub(end), allowed))
		case last.Sub(died) > b.ttl+time.Second:
			v.excused = append(v.excused, fmt.Sprintf("%v after the death, of which facts excuse %v and slow lists %v",
				last.Sub(died).Round(time.Millisecond), end.Sub(died.Add(b.ttl)).Round(time.Millisecond), (allowed-time.Second).Round(time.Millisecond)))
		}
	}
	return v
}

// due is when a dead server has to be off the list: some time after the last fact that excuses it. A list that came later excuses nothing.
func (b *books) due(died, end time.Time, excuses []time.Time) (last time.Time, allowed time.Duration) {
	for allowed = time.Second; ; {
		was := end.Add(allowed)
		for _, at := range excuses {
			if at.After(end) && at.Before(end.Add(allowed)) {
				end = at
			}
		}
		if allowed = time.Second + listsARound*b.slowest(died, end.Add(allowed)); !end.Add(allowed).After(was) {
			return end, allowed
		}
	}
}

// slowest is the longest that the store took for a list in this time.
func (b *books) slowest(from, to time.Time) (most time.Duration) {
	for _, is := range b.lists {
		if is.at.After(from) && is.at.Add(-is.took).Before(to) {
			most = max(most, is.took)
		}
	}
	return most
}

// found reports whether the books find a balancer wrong.
func (b *books) found(by string) bool { return len(b.judge(by).late) > 0 }

// served is how many requests of a balancer have ended.
func (b *books) served(by string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done[by]
}

// allExpired reports whether the store has ended the sessions of all dead servers.
func (b *books) allExpired() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.expired) == len(b.death)
}
