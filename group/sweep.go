package group

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
)

// sweepEvery is how often the locks of all members are looked at.
const sweepEvery = 250 * time.Millisecond

// sweepers is how many clients sweep. Each takes dead sweepers off the list in time. All of them would have to die within a TTL for
// the list to be late.
const sweepers = 3

// sweeper takes dead members off the list, as one of the clients that do so. The others sweep when one
// is dead itself.
type sweeper struct {
	*Group
	witness *pawl.Lease               // lost when the store does not know this client any more
	gap     atomic.Pointer[time.Time] // when the store did not answer this client
	beside  sync.WaitGroup            // of what goes on beside the sweeping
}

// sweep sweeps until ctx ends.
func (g *Group) sweep(ctx context.Context) {
	s := &sweeper{Group: g}
	defer s.beside.Wait()
	s.beside.Go(func() { s.listen(ctx) })
	for going := true; going; {
		err := s.testify(ctx)
		if err == nil {
			err = s.serve(ctx)
		}
		going = s.pause(ctx, err)
	}
}

// leave releases a lease at the end of ctx, beside others: each release waits for a store that hangs.
func (s *sweeper) leave(ctx context.Context, lease *pawl.Lease) {
	s.beside.Go(func() {
		within, stop := lease.Within(ctx)
		defer stop()
		<-within.Done()
		lease.Unlock(ctx) //nolint:errcheck // the heartbeat tells the store again
	})
}

// listen notes when the heartbeat of the client gets no answer, also while the sweeper waits for its turn.
func (s *sweeper) listen(ctx context.Context) {
	tick := time.NewTicker(min(100*time.Millisecond, s.client.TTL()/20))
	defer tick.Stop()
	for ctx.Err() == nil {
		if s.client.Err() != nil {
			s.missed()
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (s *sweeper) missed() {
	now := time.Now()
	s.gap.Store(&now)
}

// testify holds a lock that is lost with the session of the client.
func (s *sweeper) testify(ctx context.Context) error {
	if s.witness != nil && s.witness.Err() == nil {
		return nil
	}
	lease, err := s.sweeps.Mutex(s.name + "/witness/" + rand.Text()).Lock(ctx)
	if err == nil {
		s.witness = lease
		s.leave(ctx, lease)
		s.missed()
	}
	return err
}

// pause waits a moment, and reports whether the sweeper goes on.
func (s *sweeper) pause(ctx context.Context, err error) bool {
	if errors.Is(err, pawl.ErrClosed) || errors.Is(err, pawl.ErrUnsupported) {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(sweepEvery):
		return true
	}
}

// turn returns the lock of one of the sweepers, which is released at the end of ctx. A client waits for all these locks, because each
// dead sweeper needs a follower at once. If all die within a TTL, a follower of the last only would take the first off the list a TTL late.
func (s *sweeper) turn(ctx context.Context) (*pawl.Lease, error) {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	type answer struct {
		lease *pawl.Lease
		err   error
	}
	answers := make(chan answer, sweepers)
	for i := range sweepers {
		go func() {
			lease, err := s.sweeps.Mutex(fmt.Sprintf("%s/%d", s.name, i)).Lock(asking)
			answers <- answer{lease, err}
		}()
	}
	var turn answer
	for range sweepers {
		is := <-answers
		stop()
		switch {
		case is.err == nil && turn.lease != nil:
			s.leave(asking, is.lease)
		case is.err == nil:
			turn = is
			s.leave(ctx, is.lease) // before the others withdraw, because ctx may end meanwhile
		case turn.err == nil && turn.lease == nil:
			turn = is
		}
	}
	return turn.lease, turn.err
}

// serve waits for a turn and sweeps while this client has the turn. An outage may have ended the sessions of members, and these
// need time to join again. So a gap in the answers of the store begins a TTL in which nobody is swept.
func (s *sweeper) serve(ctx context.Context) error {
	ctx, end := s.witness.Within(ctx) // so that a client which lost its session has a new witness before its turn comes
	defer end()
	turn, err := s.turn(ctx)
	if err != nil {
		return err
	}
	work, stop := turn.Within(ctx)
	defer stop()
	r := &round{sweeper: s, list: newList(s.Group)}
	for work.Err() == nil && s.witness.Err() == nil {
		began := time.Now()
		err := r.sweep(work)
		if errors.Is(err, pawl.ErrUnavailable) {
			s.missed()
		} else if err != nil {
			return err
		}
		select {
		case <-work.Done():
		case <-time.After(rest(time.Since(began))):
		}
	}
	return nil
}

// round is a turn of a sweeper.
type round struct {
	*sweeper
	list  *list
	whole time.Time            // when all pages were read
	known map[string]time.Time // what held said of the members
	opens time.Time            // when a store in its restart grace grants locks again
}

// quiet returns how long the store has answered without a gap, and has granted locks.
func (r *round) quiet(now time.Time) time.Duration {
	return min(now.Sub(*r.gap.Load()), now.Sub(r.opens))
}

// sweep takes all members that are dead now off the list.
func (r *round) sweep(ctx context.Context) error {
	began, ttl := time.Now(), r.client.TTL()
	all := began.Sub(r.whole) >= ttl/3
	lost, err := r.list.read(ctx, all)
	if err != nil {
		return err
	}
	if lost {
		r.missed()
	}
	if all {
		r.whole = began
	}
	if err := r.ask(ctx, began); err != nil {
		return err
	}
	for page, entries := range r.list.entries {
		locks := dead(entries, r.known, r.quiet(began), ttl)
		if len(locks) == 0 || r.witness.Err() != nil {
			continue
		}
		if is, err := r.probe(ctx); err != nil || is.Grace.On() { // a store that has forgotten its locks is no sign of death
			r.opens = time.Now().Add(is.Grace.Left)
			return err
		}
		if err := r.without(ctx, page, func(e entry) bool { return slices.Contains(locks, e.Lock) }); err != nil {
			return err
		}
	}
	return nil
}

// ask learns which members hold their locks. ask asks for a lock again when the session of its holder may have ended, and for no lock while nobody
// may be swept. Answers that came before an error are kept.
func (r *round) ask(ctx context.Context, now time.Time) error {
	known, locks := make(map[string]time.Time), []string{}
	for _, entries := range r.list.entries {
		for _, lock := range suspects(entries, r.quiet(now), r.client.TTL()) {
			if until := r.known[lock]; now.Before(until) {
				known[lock] = until
			} else {
				locks = append(locks, lock)
			}
		}
	}
	held, err := r.held(ctx, locks)
	maps.Copy(known, held)
	r.known = known
	return err
}
