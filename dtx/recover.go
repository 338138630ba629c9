package dtx

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/internal/protocol"
)

// sign is a beat of a coordinator, and when this process has first seen it.
type sign struct {
	beat  int64
	since time.Time
}

// Report says what a pass of recovery did.
type Report struct {
	Committed  int  // branches that this pass committed
	RolledBack int  // branches that this pass rolled back
	Waiting    int  // branches whose coordinators live, or whose connections do
	Unknown    []ID // transactions of coordinators that the log does not know: the log has lost rows, and an operator has to decide
}

// Recover makes one pass of recovery now, besides those in the background. A pass finishes the branches of
// dead coordinators, and the branches that this coordinator has left. A coordinator is dead if its beats have not changed
// for a lease, by the clock of this process. The error joins those of databases that cannot be reached.
func (c *Coordinator) Recover(ctx context.Context) (Report, error) { return c.recover(ctx, false) }

// recover is Recover. A pass that yields leaves other coordinators to other processes, if the pass before could not reach all databases.
func (c *Coordinator) recover(ctx context.Context, yields bool) (Report, error) {
	select {
	case c.passing <- struct{}{}:
		defer func() { <-c.passing }()
	case <-ctx.Done():
		return Report{}, failed("recover", context.Cause(ctx))
	}
	others, unlock := false, func() {}
	if !yields || !c.hindered {
		others, unlock = c.turn(ctx)
	}
	defer unlock()
	p := &pass{c: c, others: others, rows: make(map[int64]protocol.Row), records: make(map[ID]record)}
	err := p.run(ctx)
	c.hindered = others && err != nil && c.opts.Client != nil // the next turn is for a process that reaches all databases
	c.note(p, err)
	return p.report, failed("recover", err)
}

// turn reports whether this process recovers other coordinators now, and returns a function that ends its turn.
func (c *Coordinator) turn(ctx context.Context) (others bool, unlock func()) {
	if c.opts.Client == nil {
		return true, func() {}
	}
	asking, cancel := context.WithTimeout(ctx, c.opts.Settle)
	defer cancel()
	lease, err := c.opts.Client.Mutex(fmt.Sprintf("pawl/dtx/%x", c.identity)).TryLock(asking)
	switch {
	case err == nil:
		return true, func() { lease.Unlock(ctx) } //nolint:errcheck // the session ends it
	case errors.Is(err, pawl.ErrUnavailable), errors.Is(err, pawl.ErrGrace), asking.Err() != nil:
		return true, func() {} // nobody knows whether another process has the turn
	}
	return !errors.Is(err, pawl.ErrNotAcquired), func() {}
}

// pass is one pass of recovery.
type pass struct {
	c       *Coordinator
	others  bool // other coordinators too
	open    map[ID]bool
	own     map[int64]bool // this coordinator's rows, and whether they are retired
	unknown []ID           // listed, and of no coordinator
	rows    map[int64]protocol.Row
	records map[ID]record
	orders  map[ID]Heuristic
	last    map[*Resource][]listed
	report  Report
}

// run reads the list first, then the rows, then the records: a branch that comes later is found by the next pass.
func (p *pass) run(ctx context.Context) error {
	all, away := p.list(ctx)
	p.last = all
	silent, err := p.read(ctx)
	if away = errors.Join(away, silent); err != nil {
		return errors.Join(away, err)
	}
	for r, branches := range all {
		for _, b := range branches {
			if err := p.judge(ctx, r, b.branchID); err != nil {
				away = errors.Join(away, fmt.Errorf("%s: %v: %w", r.name, b, err))
				if !dialect.Said(err) { // the database hangs, or is away
					break
				}
			}
		}
	}
	if len(p.records)+len(p.unknown) == 0 {
		return away
	}
	left, err := p.list(ctx)
	p.last = left
	return errors.Join(away, err, p.forget(ctx, left))
}

// list reads the prepared branches of all resources that answer.
func (p *pass) list(ctx context.Context) (map[*Resource][]listed, error) {
	ctx, cancel := context.WithTimeout(ctx, p.c.opts.Settle)
	defer cancel()
	return listAll(ctx, p.c.identity, slices.Collect(maps.Values(p.c.resources)))
}

// listAll asks all resources at once, because a resource that hangs answers nothing until ctx ends.
func listAll(ctx context.Context, identity int64, resources []*Resource) (map[*Resource][]listed, error) {
	all := make(map[*Resource][]listed)
	var away error
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, r := range resources {
		if !r.prepares() {
			continue
		}
		group.Go(func() {
			branches, err := r.list(ctx, identity)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				away = errors.Join(away, fmt.Errorf("list the branches on %s: %w", r.name, err))
				return
			}
			all[r] = branches
		})
	}
	group.Wait()
	return all, away
}

// read reads the rows, fences those of the dead, and then reads the records.
func (p *pass) read(ctx context.Context) (away, err error) {
	p.open, p.own = p.c.mine()
	asking, cancel := context.WithTimeout(ctx, p.c.opts.Settle)
	defer cancel()
	beats, fenced, err := p.c.log.beating(asking)
	if err != nil {
		return nil, err
	}
	for _, id := range fenced {
		p.rows[id] = protocol.Fenced
	}
	silent := p.c.silent(beats)
	for id := range beats {
		p.rows[id] = protocol.Live
		if retired, own := p.own[id]; own && !retired || !own && !(p.others && silent[id]) {
			continue
		}
		if err := p.fence(ctx, id); err != nil { // by the next pass
			away = errors.Join(away, fmt.Errorf("fence coordinator %x: %w", id, err))
			continue
		}
		p.rows[id] = protocol.Fenced
	}
	asking, cancel = context.WithTimeout(ctx, p.c.opts.Settle)
	defer cancel()
	records, err := p.c.log.records(asking, p.c.identity)
	for _, r := range records {
		p.records[r.id] = r
	}
	if err == nil {
		p.orders, err = p.c.log.heuristics(asking, p.c.identity)
	}
	return away, err
}

// fence waits for a decision that is being written, but not for long.
func (p *pass) fence(ctx context.Context, id int64) error {
	ctx, cancel := context.WithTimeout(ctx, p.c.opts.Settle)
	defer cancel()
	return p.c.log.fence(ctx, id)
}

// row is the row of a transaction's coordinator.
func (p *pass) row(id ID) protocol.Row {
	row := p.rows[id.coordinator]
	if retired, own := p.own[id.coordinator]; own {
		row = protocol.Own(p.open[id], retired, row)
	}
	return row
}

// judge finishes a listed branch if the log says how.
func (p *pass) judge(ctx context.Context, r *Resource, b branchID) error {
	_, decided := p.records[b.ID]
	verdict := protocol.Judge(p.row(b.ID), decided)
	if order, ordered := p.orders[b.ID]; ordered && verdict == protocol.Refuse {
		verdict = map[bool]protocol.Verdict{true: protocol.Complete, false: protocol.Undo}[order.Commit]
	}
	switch verdict {
	case protocol.Wait:
		p.report.Waiting++
		return nil
	case protocol.Refuse:
		p.unknown = append(p.unknown, b.ID)
		return nil
	}
	if !p.others && p.row(b.ID) == protocol.Fenced && !p.isOwn(b.ID) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.c.opts.Settle)
	defer cancel()
	switch err := r.finish(ctx, b.name(), verdict == protocol.Complete); {
	case errors.Is(err, errOwned):
		p.report.Waiting++
	case errors.Is(err, errGone): // the coordinator or another pass has finished the branch since it was listed
	case err != nil:
		return err
	case verdict == protocol.Complete:
		p.report.Committed++
	default:
		p.report.RolledBack++
	}
	return nil
}

func (p *pass) isOwn(id ID) bool { _, own := p.own[id.coordinator]; return own }

// forget deletes the records whose branches are all gone. Left was listed after the records were read.
func (p *pass) forget(ctx context.Context, left map[*Resource][]listed) error {
	still := make(map[ID]bool)
	answered := make(map[string]bool)
	for r, branches := range left {
		answered[r.name] = true
		for _, b := range branches {
			still[b.ID] = true
		}
	}
	for _, id := range p.unknown { // a coordinator that closed meanwhile had nothing prepared
		if still[id] && !slices.Contains(p.report.Unknown, id) {
			p.report.Unknown = append(p.report.Unknown, id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.c.opts.Settle)
	defer cancel()
	var failed error
	for id, r := range p.records {
		all := !slices.ContainsFunc(r.resources, func(name string) bool { return !answered[name] })
		if all && !still[id] && protocol.CanForget(p.row(id)) {
			failed = errors.Join(failed, p.c.log.forget(ctx, id.coordinator, []int64{id.number}))
		}
	}
	return failed
}

// mine returns the open transactions of this coordinator, and its rows with whether they are retired.
func (c *Coordinator) mine() (open map[ID]bool, own map[int64]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	open, own = make(map[ID]bool), make(map[int64]bool)
	for id, r := range c.rows {
		own[id] = r.retired
		for number := range r.open {
			open[ID{c.identity, id, number}] = true
		}
	}
	return open, own
}

// silent returns the coordinators whose beats have not changed for a lease.
func (c *Coordinator) silent(beats map[int64]int64) map[int64]bool {
	silent := make(map[int64]bool)
	for id := range c.seen {
		if _, live := beats[id]; !live {
			delete(c.seen, id)
		}
	}
	for id, beat := range beats {
		last, known := c.seen[id]
		if !known || last.beat != beat {
			c.seen[id] = sign{beat, time.Now()}
		} else if time.Since(last.since) >= c.opts.Lease {
			silent[id] = true
		}
	}
	return silent
}

// unregister deletes the rows of a coordinator that has nothing left to do. Other rows stay: the beats end, so recovery fences them.
func (c *Coordinator) unregister(ctx context.Context) error {
	c.beat(ctx)    // which deletes records
	c.Recover(ctx) //nolint:errcheck // recovery of others does the rest
	all, err := (&pass{c: c}).list(ctx)
	if err != nil {
		return nil //nolint:nilerr // recovery does the rest
	}
	busy := make(map[int64]bool)
	for _, branches := range all {
		for _, b := range branches {
			busy[b.coordinator] = true
		}
	}
	for id := range c.rows { // nothing runs any more
		if r := c.rows[id]; !busy[id] && !r.retired && !r.late && len(r.over) == 0 {
			err = errors.Join(err, c.drop(ctx, id))
		}
	}
	return failed("close", err)
}

func (c *Coordinator) drop(ctx context.Context, id int64) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Settle)
	defer cancel()
	return c.log.unregister(ctx, id)
}

// pause waits a moment. pause returns false if ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-time.After(20 * time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}
