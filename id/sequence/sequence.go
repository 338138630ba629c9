// Package sequence makes numbers in databases, as their auto-increment does: in one database,
// or in several of which some may fail. The package stands on package sqlmark.
//
// # What is promised
//
//   - Database i of a set with step s gives i, i+s, i+2s and so on. A number is given once,
//     over kills and restarts of clients and databases. A number counts when its COMMIT was
//     acknowledged by a database that flushes. A statement of unknown outcome leaves a gap. A
//     database that does not flush is refused, see package sqlmark.
//   - With one database numbers rise, over all processes. With several they rise for nobody.
//   - A database that fails, hangs, or takes no writes is skipped. A statement has a bound,
//     [Options.Timeout], and the callers whose statement takes an eighth of that go on with
//     another database. A failed database is looked at again in the background, after pauses
//     from 100 ms to 10 s. A call fails only when each database has failed since the call began.
//   - The set is recorded in each database: its members in their order, and its step. A
//     database at another place, of another set or with another step is refused. So is a
//     database of several that was replaced or emptied. A new set makes numbers only after each of its
//     databases was reached once, so that all agree on it.
//
// The step never changes, and is how many databases the set may grow to. To grow, name
// further databases behind the old ones. Clients that name only the first databases may go on
// for as long as they like. A set does not shrink.
//
// # What is not promised
//
// A database that is restored from a backup, or whose replica takes over without the last
// commits, repeats numbers. A set of one database that was emptied is a new set to the next
// program that starts, and begins at 1 again. No other database knows of the old set.
//
// Why not the means of the databases: AUTO_INCREMENT of MySQL 5.7 goes back after a restart,
// and REPLACE INTO deadlocks. A sequence of PostgreSQL writes 32 numbers ahead to its log. A
// transaction that gets one of them does not wait until the log is flushed. So the number is given
// again after a crash, as a test of this package shows. Here a number is an UPDATE of one row.
package sequence

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
)

// Database is a database of the set. A Database stays the caller's, and should have room for two
// connections of this package.
type Database struct {
	DB      *sql.DB
	Dialect dialect.Dialect // of DB
}

// Options change a [Sequence]. The zero value is the default.
type Options struct {
	// Step is the difference between two numbers of a database: from the number of
	// databases to 1,000,000. Step never changes, so it is how many databases there may ever be.
	// Default: 1 for one database; for several there is none.
	Step int64

	// Timeout is the bound of a statement: 10 ms to 1 min. Default 1 s.
	Timeout time.Duration

	// Table is the name of the table of sets, with its schema if it is not in the usual one.
	// The name has 1 to 61 ASCII letters, digits and underscores. The numbers are in a table whose name
	// has "_n" behind that. Default "pawl_sequences".
	Table string
}

const (
	maxStep = 1_000_000
	maxName = 160
)

// Sequence is a generator of numbers. Create it with [New]. A Sequence is safe for concurrent use.
type Sequence struct {
	step    int64
	timeout time.Duration
	name    string
	members []*member
	set     []string // ids of the members
	counts  []id.Counter

	base context.Context // until Close
	end  context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	since  time.Time // what the times of the plan count from
	plan   plan
	states []laneState
	queue  []*request
	ticks  uint64 // what happened so far: calls and failures
	asked  int64  // numbers that statements are to bring soon
	wake   *time.Timer
	closed bool
}

var _ id.Generator[int64] = (*Sequence)(nil)

// New returns the numbers of this name: 1 to 160 bytes of UTF-8 without control characters.
// New creates the tables where they are missing. A new set needs each database, and a set that
// grows its first and the new ones, else [pawl.ErrUnavailable]; any other needs one. A database that
// does not fit is [pawl.ErrMismatch], options out of range are [pawl.ErrInvalid]: then nothing was
// written. Nil opts are the defaults. The caller closes the Sequence.
func New(ctx context.Context, databases []Database, name string, opts *Options) (*Sequence, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := o.complete(databases, name); err != nil {
		return nil, err
	}
	s := &Sequence{step: o.Step, timeout: o.Timeout, name: name, since: time.Now(),
		plan: plan{lanes: make([]health, len(databases)), turn: len(databases) - 1}, states: make([]laneState, len(databases))}
	for i, d := range databases {
		m, err := newMember(d, name, o.Table)
		if err != nil {
			return nil, fmt.Errorf("database %d: %w", i+1, err)
		}
		s.members = append(s.members, m)
	}
	if err := s.form(ctx); err != nil {
		return nil, fmt.Errorf("sequence %q: %w", name, err)
	}
	s.base, s.end = context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kick()
	return s, nil
}

func (o *Options) complete(databases []Database, name string) error {
	n := int64(len(databases))
	if o.Step == 0 && n == 1 {
		o.Step = 1
	}
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	if o.Table == "" {
		o.Table = "pawl_sequences"
	}
	if err := id.CheckName(name); err != nil {
		return err
	}
	switch {
	case len(name) > maxName:
		return fmt.Errorf("%w: the name has %d bytes: 1 to %d are allowed", pawl.ErrInvalid, len(name), maxName)
	case n == 0:
		return fmt.Errorf("%w: there are 0 databases: 1 to Step are needed", pawl.ErrInvalid)
	case o.Step < n || o.Step > maxStep:
		return fmt.Errorf("%w: Step %d: %d to %d are allowed for %d databases", pawl.ErrInvalid, o.Step, n, maxStep, n)
	case o.Timeout < 10*time.Millisecond || o.Timeout > time.Minute:
		return fmt.Errorf("%w: Timeout %v: 10ms to 1m are allowed", pawl.ErrInvalid, o.Timeout)
	}
	for i, d := range databases {
		if d.DB == nil {
			return fmt.Errorf("%w: database %d: DB is nil", pawl.ErrInvalid, i+1)
		}
	}
	return nil
}

// Next returns a number. Next waits while databases are tried that may answer, bounded by ctx.
func (s *Sequence) Next(ctx context.Context) (int64, error) {
	var one [1]int64
	_, err := s.NextN(ctx, one[:])
	return one[0], err
}

// NextN implements [id.Generator]. The numbers are those of one statement, of a few when a
// database failed meanwhile.
func (s *Sequence) NextN(ctx context.Context, dst []int64) (int, error) {
	if len(dst) == 0 {
		return 0, nil
	}
	if ctx.Err() != nil {
		return 0, fmt.Errorf("sequence %q: %w", s.name, context.Cause(ctx))
	}
	r := &request{want: len(dst), done: make(chan struct{})}
	if !s.enqueue(r) {
		return 0, fmt.Errorf("sequence %q: %w", s.name, pawl.ErrClosed)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		s.withdraw(r, s.why(ctx))
	}
	n := copy(dst, r.got)
	if r.err != nil {
		return n, fmt.Errorf("sequence %q: %w", s.name, r.err)
	}
	return n, nil
}

// State is the knowledge of a database.
type State struct {
	Good bool  // it is asked for numbers
	Err  error // why it failed last; nil when it is good
}

// States returns the states of the databases, in their order.
func (s *Sequence) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]State, len(s.states))
	for i, h := range s.plan.lanes {
		if all[i].Good = h.good; !h.good {
			all[i].Err = s.states[i].err
		}
	}
	return all
}

// Close ends calls that wait, by [pawl.ErrClosed], and all work in the background. Close waits
// for that, until 100 ms after the end of ctx. The databases stay open.
func (s *Sequence) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.end()
	if s.wake != nil {
		s.wake.Stop()
	}
	for _, r := range s.queue {
		r.finish(pawl.ErrClosed)
	}
	s.queue = nil
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	last, stop := pawl.Linger(ctx)
	defer stop()
	select {
	case <-done:
		return nil
	case <-last.Done():
		return fmt.Errorf("close sequence %q: %w", s.name, context.Cause(ctx))
	}
}

// number returns the last of some numbers of a database by how many it has counted.
func (s *Sequence) number(i int, count int64) (int64, error) {
	if count > (math.MaxInt64-int64(i)-1)/s.step+1 {
		return 0, fmt.Errorf("%w: number %d of a database with step %d", id.ErrExhausted, count, s.step)
	}
	return int64(i) + 1 + (count-1)*s.step, nil
}
