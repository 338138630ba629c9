package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl"
)

// fleet is what a relay sees of all relays of the table.
type fleet struct {
	held    int // partitions that this relay holds and has not given up
	hold    int // partitions that this relay may hold
	relays  int // relays that hold a partition or wait for a partition, with this relay
	waiting int // other relays that wait for a partition
	free    int // partitions that nobody holds
}

// move is what a relay does next about its partitions.
type move struct {
	give int  // partitions to give up
	wait bool // wait for a partition
	try  bool // take a partition if one is free
}

// decide keeps partitions at a fair share. A relay waits for partitions below its share. Above its share, a
// relay gives up half of the surplus while others wait, and takes only partitions that nobody waits for. A relay that may hold
// less than its share does not wait, so that the others keep the rest.
func (f fleet) decide() move {
	share := (Partitions + f.relays - 1) / max(f.relays, 1)
	m := move{wait: f.held < min(f.hold, share)}
	if f.waiting > 0 && f.held > share {
		m.give = (f.held - share + 1) / 2
	}
	m.try = !m.wait && f.held < f.hold && f.free > 0 && f.waiting == 0
	return m
}

// look asks the lock store for the relays that hold partitions or wait for partitions.
func (r *Relay) look(ctx context.Context, slots *pawl.Slots, waits bool) (f fleet, err error) {
	is, err := r.client.Show(ctx, "pawl:slots/"+slots.Name())
	if err != nil {
		return f, err
	}
	sessions, mine := make(map[string]bool), r.tokens()
	f = fleet{held: len(mine), hold: r.opts.Hold, free: Partitions - len(is.Holders)}
	own := "" // the session of this relay
	for _, p := range is.Holders {
		sessions[p.Session] = true
		if mine[uint64(p.Token)] {
			own = p.Session
		}
	}
	for _, p := range is.Waiters {
		sessions[p.Session] = true
		if p.Session != own || own == "" {
			f.waiting++
		}
	}
	f.relays = len(sessions)
	if own == "" && !waits { // else the session is among the waiters
		f.relays++
	}
	return f, nil
}

// tokens returns the tokens of the partitions that this relay has not given up.
func (r *Relay) tokens() map[uint64]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[uint64]bool)
	for o := range r.owners {
		all[uint64(o.token)] = true
	}
	return all
}

// owned counts the partitions that this relay has not given up, and whose rows have its tokens. Failing is how many messages wait there after
// a failure of the broker.
func (r *Relay) owned() (n, failing int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.owners {
		if o.owned.Load() {
			n++
		}
		failing += int(o.failing.Load())
	}
	return n, failing
}

// giveUp gives up n partitions, after the messages that are under way there have a result.
func (r *Relay) giveUp(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.owners {
		if n--; n < 0 {
			return
		}
		delete(r.owners, o)
		close(o.leave)
	}
}

// keeps reports whether the relay has not given up the partition of an owner.
func (r *Relay) keeps(o *owner) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owners[o]
}

// balance takes partitions and gives them up until ctx ends. A store that cannot keep partitions ends the relay.
func (r *Relay) balance(ctx context.Context, end context.CancelCauseFunc, slots *pawl.Slots, start func(*pawl.Slot)) {
	taken := make(chan bool, 1) // whether the Take that has ended brought a partition
	var cancel context.CancelFunc
	tick := time.NewTicker(r.opts.Balance)
	defer tick.Stop()
	for ctx.Err() == nil {
		f, err := r.look(ctx, slots, cancel != nil)
		if err != nil && ctx.Err() == nil && r.opts.OnError != nil {
			r.opts.OnError(err)
		}
		m := f.decide()
		if err != nil { // nobody knows how many relays there are, but a partition may be free
			m = move{wait: len(r.tokens()) < r.opts.Hold && cancel != nil}
		}
		r.giveUp(m.give)
		switch {
		case m.wait && cancel == nil:
			var taking context.Context
			taking, cancel = context.WithCancel(ctx)
			go func() { taken <- r.take(taking, end, slots.Take, start) }()
		case !m.wait && cancel != nil:
			cancel()
		case m.try && r.take(ctx, end, slots.TryTake, start):
			continue
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case ok := <-taken:
			cancel()
			if cancel = nil; !ok { // the store need not hear of that at once again
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		}
	}
	if cancel != nil {
		cancel()
		<-taken
	}
}

// take takes a partition, and reports whether that went well.
func (r *Relay) take(ctx context.Context, end context.CancelCauseFunc, take func(context.Context) (*pawl.Slot, error), start func(*pawl.Slot)) bool {
	for tries := 1; ; tries++ {
		slot, err := take(ctx)
		if err == nil {
			start(slot)
			return true
		}
		if errors.Is(err, pawl.ErrUnsupported) {
			end(err)
		}
		if ctx.Err() != nil || errors.Is(err, pawl.ErrNotAcquired) {
			return false
		}
		r.failed(ctx, err, tries)
	}
}
