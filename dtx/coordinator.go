package dtx

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
)

// Options are the settings of [New].
type Options struct {
	// Lease is how long a coordinator may be silent before recovery takes it for dead: 1 s to 1 h. All coordinators of a log
	// have the same lease. A coordinator that was taken for dead loses its open transactions, and nothing else. Servers roll a branch
	// back whose connection is silent for the lease, so fn must use each branch that often. Default 10 s.
	Lease time.Duration
	// Settle is how long Run waits for each answer of the log and, after the decision, of a database. Recovery waits as long for
	// each answer. 100 ms to 1 min. Default 5 s.
	Settle time.Duration
	// Client lets the processes of a log take turns in recovery, by a lock. That saves requests and nothing
	// else: recovery is safe without it, and goes on while the store of the locks is away. Default: none.
	Client *pawl.Client
}

// Coordinator runs transactions over several databases, and finishes the branches of dead coordinators of the same log. A process
// needs one. A Coordinator is safe for concurrent use.
type Coordinator struct {
	log       *Log
	identity  int64
	name      string
	resources map[string]*Resource
	opts      Options

	rooms    []room        // of the pools that are limited
	entering chan struct{} // has an element while a row is registered

	mu     sync.Mutex
	row    *row           // nil: the next transaction registers one
	rows   map[int64]*row // with open transactions or work left, and the row above
	closed bool
	status Status               // of recovery
	met    map[string]time.Time // when a pass first saw a prepared branch

	passing  chan struct{} // has an element during a pass of recovery
	seen     map[int64]sign
	hindered bool // the last pass had the turn, and could not reach all databases

	stop context.CancelFunc
	work sync.WaitGroup // in the background
}

// row is a row of this coordinator in the log.
type row struct {
	id      int64
	last    int64          // number of the last transaction
	open    map[int64]bool // numbers of transactions in Run
	over    []int64        // numbers of records to delete
	retired bool           // no transaction begins with it
	late    bool           // a server may still prepare a branch
}

// New returns a coordinator of a log, whose tables exist. The resources are all databases that take part in
// its transactions, under the same names in every process. A database that cannot prepare is refused with an error that
// matches [pawl.ErrUnsupported] and names the setting. Of a limited pool one connection stays free of
// transactions, so that others are decided and recovered. Resources that share a limited pool take a connection each,
// so Run refuses a transaction for which the pool is too small. Nil opts are the defaults. New begins to beat and to
// recover in the background; call Close in the end.
func New(ctx context.Context, log *Log, resources []*Resource, opts *Options) (*Coordinator, error) {
	o, err := opts.complete()
	if err != nil {
		return nil, err
	}
	c := &Coordinator{log: log, opts: o, name: processName(), resources: make(map[string]*Resource), rows: make(map[int64]*row), seen: make(map[int64]sign), entering: make(chan struct{}, 1), passing: make(chan struct{}, 1)}
	for _, r := range resources {
		if err := r.validate(); err != nil {
			return nil, err
		}
		if c.resources[r.name] != nil {
			return nil, fmt.Errorf("dtx: %w: two resources have the name %s", pawl.ErrInvalid, r.name)
		}
		c.resources[r.name] = r
	}
	if c.identity, err = log.sound(ctx); err != nil {
		return nil, err
	}
	for _, r := range resources {
		if err := c.owns(ctx, r); err != nil {
			return nil, err
		}
		if err := r.Check(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.makeRooms(); err != nil {
		return nil, err
	}
	r, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	if err := log.probe(ctx, r.id); err != nil {
		log.unregister(ctx, r.id) //nolint:errcheck // else recovery fences the row
		return nil, err
	}
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	c.work.Go(func() { c.every(ctx, c.beat) })
	c.work.Go(func() {
		c.recover(ctx, true)                                             //nolint:errcheck // the next pass tries again
		c.every(ctx, func(ctx context.Context) { c.recover(ctx, true) }) //nolint:errcheck // as above
	})
	return c, nil
}

func (o *Options) complete() (Options, error) {
	all := Options{}
	if o != nil {
		all = *o
	}
	if all.Lease == 0 {
		all.Lease = 10 * time.Second
	}
	if all.Settle == 0 {
		all.Settle = 5 * time.Second
	}
	switch {
	case all.Lease < time.Second || all.Lease > time.Hour:
		return all, fmt.Errorf("dtx: %w: Options.Lease is %v: 1s to 1h are allowed", pawl.ErrInvalid, all.Lease)
	case all.Settle < 100*time.Millisecond || all.Settle > time.Minute:
		return all, fmt.Errorf("dtx: %w: Options.Settle is %v: 100ms to 1m are allowed", pawl.ErrInvalid, all.Settle)
	}
	return all, nil
}

// processName tells an operator which process a row is of.
func processName() string {
	host, _ := os.Hostname() //nolint:errcheck // an empty name does
	return fmt.Sprintf("%.200s %d", host, os.Getpid())
}

// enter returns the row of new transactions, and registers one if there is none.
func (c *Coordinator) enter(ctx context.Context) (*row, error) {
	select {
	case c.entering <- struct{}{}:
		defer func() { <-c.entering }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.mu.Lock()
	r, closed := c.row, c.closed
	c.mu.Unlock()
	if r != nil || closed { // begin says so
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.Settle)
	defer cancel()
	id, err := c.log.register(ctx, c.identity, c.name)
	if err != nil {
		return nil, err
	}
	r = &row{id: id, open: make(map[int64]bool)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row, c.rows[id] = r, r
	return r, nil
}

// begin gives a transaction its ID.
func (c *Coordinator) begin(ctx context.Context) (ID, error) {
	for {
		r, err := c.enter(ctx)
		if err != nil {
			return ID{}, err
		}
		c.mu.Lock()
		closed, retired := c.closed, r != nil && r.retired
		if !closed && !retired {
			r.last++
			r.open[r.last] = true
			id := ID{c.identity, r.id, r.last}
			c.mu.Unlock()
			return id, nil
		}
		c.mu.Unlock()
		if closed {
			return ID{}, fmt.Errorf("dtx: %w", pawl.ErrClosed)
		}
	}
}

// retire lets the next transaction register a new row. This row is, or will be, fenced.
func (c *Coordinator) retire(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.rows[id]; r != nil {
		r.retired = true
	}
	if c.row != nil && c.row.id == id {
		c.row = nil
	}
}

// linger keeps a row in the log when the coordinator closes. A server may prepare a branch after its connection was lost, and
// recovery then needs the row.
func (c *Coordinator) linger(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows[id].late = true // a row with an open transaction stays
}

// leave ends a transaction. Forget says that all branches are committed, so a record is to be deleted.
func (c *Coordinator) leave(id ID, forget bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.rows[id.coordinator]
	delete(r.open, id.number)
	if forget {
		r.over = append(r.over, id.number)
	}
}

// every calls f three times in a lease, until the coordinator is closed. Beats do not wait for recovery, because a database may hang.
func (c *Coordinator) every(ctx context.Context, f func(context.Context)) {
	tick := time.NewTicker(c.opts.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f(ctx)
	}
}

// beat tells recovery that this coordinator lives, and deletes records that are no longer needed.
func (c *Coordinator) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Lease)
	defer cancel()
	c.mu.Lock()
	now := c.row
	over := make(map[int64][]int64)
	for id, r := range c.rows {
		over[id], r.over = r.over, nil
	}
	c.mu.Unlock()
	if now != nil {
		if fenced, err := c.log.beat(ctx, now.id); err == nil && fenced {
			c.retire(now.id)
		}
	}
	for id, numbers := range over {
		err := c.log.forget(ctx, id, numbers)
		c.mu.Lock()
		switch r := c.rows[id]; {
		case err != nil:
			r.over = append(r.over, numbers...)
		case r.retired && len(r.open)+len(r.over) == 0:
			delete(c.rows, id) // recovery finishes the rest as that of any coordinator
		}
		c.mu.Unlock()
	}
}

// Close ends the background work. Transactions in Run go on to their end, and no new ones begin. Close waits for them until ctx ends. If
// nothing is left to do, Close deletes the coordinator's row. Otherwise recovery fences the row after a lease.
func (c *Coordinator) Close(ctx context.Context) error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if !first {
		return nil
	}
	for c.busy() { // recovery and beats go on meanwhile
		select {
		case <-ctx.Done():
			c.stop()
			c.work.Wait()
			return fmt.Errorf("dtx: close: transactions are still open: %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
	c.stop()
	c.work.Wait()
	return c.unregister(ctx)
}

// busy reports whether a transaction is open, or about to have a row.
func (c *Coordinator) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entering) > 0 { // a later one finds the coordinator closed
		return true
	}
	for _, r := range c.rows {
		if len(r.open) > 0 {
			return true
		}
	}
	return false
}
