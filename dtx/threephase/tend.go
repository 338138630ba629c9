package threephase

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// tend gives time-outs to transactions, and sweeps.
func (a *Agent) tend() {
	tick := time.NewTicker(a.opts.Timeout / 20)
	defer tick.Stop()
	var scanned time.Time
	for {
		for _, t := range a.transactions() {
			a.remind(t)
		}
		if time.Since(scanned) >= a.opts.Timeout {
			scanned = time.Now()
			a.spawn(a.sweep)
		}
		select {
		case <-tick.C:
		case <-a.ctx.Done():
			return
		}
	}
}

func (a *Agent) transactions() (all []*transaction) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.all {
		all = append(all, t)
	}
	return all
}

// remind gives a time-out to a transaction that waits for too long, and tells a decision to peers that may not know it.
func (a *Agent) remind(t *transaction) {
	if !t.mu.TryLock() { // a step is at work
		return
	}
	defer t.mu.Unlock()
	now := time.Now()
	switch {
	case !t.state.Phase.Final() && now.After(t.waits):
		t.waits = now.Add(a.patience(t.state))
		a.spawn(func() { a.note(a.step(t, protocol.Message{Kind: protocol.TimeOut})) })
	case t.state.Phase.Final() && t.id.agent == a.name && len(t.told) < len(t.names)-1 && now.After(t.tells):
		a.tell(t)
	}
}

// sweep obeys operators, ends late work and forgets old transactions. One sweep runs at a time.
func (a *Agent) sweep() {
	if !a.sweeping.TryLock() {
		return
	}
	defer a.sweeping.Unlock()
	ctx, cancel := a.within()
	defer cancel()
	err := a.log.mine(ctx)
	var orders map[ID]*Heuristic
	if err == nil {
		orders, err = a.log.orders(ctx)
	}
	if err == nil {
		err = a.obey(orders)
	}
	if a.handler != nil && err == nil {
		err = a.settle(ctx, orders)
	}
	err = errors.Join(err, a.forget(ctx))
	if a.ctx.Err() == nil {
		a.mu.Lock()
		a.trouble = nil
		a.mu.Unlock()
	}
	a.note(err)
	a.greet(ctx)
}

// obey takes the decisions of operators.
func (a *Agent) obey(orders map[ID]*Heuristic) (err error) {
	for _, t := range a.transactions() {
		if h := orders[t.id]; h != nil {
			kind := protocol.Abort
			if h.Commit {
				kind = protocol.Commit
			}
			err = errors.Join(err, a.step(t, protocol.Message{Kind: kind}))
		}
	}
	return err
}

// settle ends prepared work that came after its decision: a database may prepare late what a lost connection asked for. Work of
// transactions that are over at all agents is such work too. The rest is left to an operator.
func (a *Agent) settle(ctx context.Context, orders map[ID]*Heuristic) error {
	prepared, err := a.handler.Prepared(ctx)
	var unknown []ID
	for _, id := range prepared {
		a.mu.Lock()
		t := a.all[id]
		forgotten := a.forgot(id)
		a.mu.Unlock()
		commit := false
		if t != nil {
			t.mu.Lock()
			finished := t.finished
			commit = t.state.Phase == protocol.Committed
			t.mu.Unlock()
			if !finished {
				continue
			}
		} else if h := orders[id]; !forgotten && h != nil {
			commit = h.Commit
		} else if !forgotten {
			unknown = append(unknown, id)
			continue
		}
		err = errors.Join(err, a.end(id, commit))
	}
	a.mu.Lock()
	a.unknown = unknown
	a.mu.Unlock()
	return err
}

// forget deletes the transactions that are over at all agents.
func (a *Agent) forget(ctx context.Context) error {
	a.mu.Lock()
	marks := map[string]known{a.name: {a.log.identity, a.last + 1}}
	is := map[string]int64{a.name: a.mark}
	for name, p := range a.peers {
		marks[name], is[name] = known{p.log, p.heard}, p.mark
	}
	all := make(map[ID]*transaction, len(a.all))
	for id, t := range a.all {
		all[id] = t
	}
	a.mu.Unlock()
	for id, t := range all {
		ends := t.done
		if id.agent == a.name {
			ends = t.over
		}
		select {
		case <-ends:
		default:
			if m := marks[id.agent]; m.log == id.log && id.number < m.mark {
				marks[id.agent] = known{m.log, id.number}
			}
		}
	}
	var failed error
	for name, m := range marks {
		if m.mark <= is[name] || m.log == 0 {
			continue
		}
		if err := a.log.forget(ctx, name, m); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		a.forgotten(name, m)
	}
	return failed
}

// forgotten removes from memory what the log has forgotten.
func (a *Agent) forgotten(name string, m known) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if name == a.name {
		a.mark = m.mark
	} else if p := a.peers[name]; p.log == m.log {
		p.mark = m.mark
	}
	for id := range a.all {
		if id.agent == name && m.forgot(id) {
			delete(a.all, id)
		}
	}
}
