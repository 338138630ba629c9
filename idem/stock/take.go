package stock

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// Take takes n units, 1 to MaxUnits, in the caller's transaction, by one statement in the common
// case. The error of Take matches [ErrSoldOut] or [ErrNotFound], and then nothing was taken. The
// transaction may go on, but holds the locks of all parts until its end. After an error of
// the database the caller rolls back. See the package for several calls in a transaction.
func (t *Table) Take(ctx context.Context, tx dialect.DB, name string, n int64) error {
	err := checkIn(tx, name, n)
	if err == nil {
		err = t.take(ctx, tx, name, n)
	}
	return t.failed("take", name, n, err)
}

func (t *Table) take(ctx context.Context, tx dialect.DB, name string, n int64) error {
	if !t.estimates.large(name, n) {
		if done, err := t.add(ctx, tx, name, -n, n); err != nil || done {
			return err
		}
	}
	return t.sweep(ctx, tx, name, n)
}

// sweep takes n units of all parts, which it locks in order.
func (t *Table) sweep(ctx context.Context, tx dialect.DB, name string, n int64) error {
	var left int64
	for range 2 { // the parts that a Rebalance made are seen by a statement that begins when it has ended
		is, err := t.lock(ctx, tx, name)
		if err != nil {
			return err
		}
		var changed []amount
		var each int64
		var ok bool
		left, changed, each, ok = draw(is, n)
		if t.estimates.set(name, each); ok {
			return t.write(ctx, tx, name, changed, false)
		}
	}
	return &SoldOutError{Name: name, Wanted: n, Left: left}
}

// Rebalance spreads the units of a name evenly over as many rows as Options.Parts says, in the
// caller's transaction, and removes other rows. Use it when the number of parts has changed.
// Rebalance locks all parts until the transaction ends.
func (t *Table) Rebalance(ctx context.Context, tx dialect.DB, name string) error {
	err := checkIn(tx, name, 1)
	if err == nil {
		err = t.rebalance(ctx, tx, name)
	}
	if err != nil {
		return fmt.Errorf("%s: rebalance %.80q: %w", t.table.Name, name, err)
	}
	return nil
}

func (t *Table) rebalance(ctx context.Context, tx dialect.DB, name string) error {
	is, err := t.lock(ctx, tx, name)
	if err == nil { // from now on nobody makes parts, and this statement sees all parts, see sweep
		is, err = t.lock(ctx, tx, name)
	}
	if err != nil {
		return err
	}
	if err := t.write(ctx, tx, name, even(sum(is), t.parts), false); err != nil {
		return err
	}
	_, err = dialect.New(t.dialect).Add("DELETE FROM ").Table(t.table.Name).Add(" WHERE name = ").Value(name).
		Add(" AND part >= ").Value(int64(t.parts)).Exec(ctx, tx)
	return err
}

// lock locks all parts of a name in the order of their numbers and returns them. lock fails with [ErrNotFound] when
// there is none. SQLite has one writer at a time. A write that changes nothing makes this transaction the writer. That
// write fails if the transaction has read an older state of the file, in which the parts may have had less.
func (t *Table) lock(ctx context.Context, tx dialect.DB, name string) (all []amount, err error) {
	if t.dialect == dialect.SQLite {
		nothing := dialect.New(t.dialect).Add("UPDATE ").Table(t.table.Name).Add(" SET n = n WHERE name = ").Value(name).Add(" AND part < 0")
		if _, err := nothing.Exec(ctx, tx); err != nil {
			return nil, err
		}
	}
	s := dialect.New(t.dialect).Add("SELECT part, n FROM ").Table(t.table.Name).Add(" WHERE name = ").Value(name).Add(" ORDER BY part")
	if t.dialect != dialect.SQLite {
		s.Add(" FOR UPDATE")
	}
	query, args, err := s.Build()
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	total := int64(0)
	for rows.Next() {
		var a amount
		if err := rows.Scan(&a.part, &a.n); err != nil {
			return nil, err
		}
		if a.n < 0 || a.n > math.MaxInt64-total {
			return nil, fmt.Errorf("%w: part %d is %d: another program wrote to the table", pawl.ErrMismatch, a.part, a.n)
		}
		total += a.n
		all = append(all, a)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, ErrNotFound
	}
	return all, nil
}

// amount is how many units a part has.
type amount struct{ part, n int64 }

func sum(all []amount) (total int64) {
	for _, a := range all {
		total += a.n
	}
	return total
}

// even spreads n units over parts, from number 0 on.
func even(n int64, parts int) (all []amount) {
	each, more := n/int64(parts), n%int64(parts)
	for part := range int64(parts) {
		all = append(all, amount{part, each + min(max(more-part, 0), 1)})
	}
	return all
}

// draw takes n units from the parts as they are, if there are enough. draw returns how many are
// left, and the parts that change, in the order of their numbers. The rest is spread evenly where
// each part can then serve the same request, and draw returns how many each has. Otherwise the
// fewest parts are written, and each is 0: nobody knows what a part has.
func draw(is []amount, n int64) (left int64, changed []amount, each int64, ok bool) {
	if left = sum(is); left < n {
		return left, nil, 0, false
	}
	left -= n
	if each = left / int64(len(is)); each >= n {
		for i, a := range even(left, len(is)) {
			if is[i].n != a.n {
				changed = append(changed, amount{is[i].part, a.n})
			}
		}
		return left, changed, each, true
	}
	largest := slices.SortedStableFunc(slices.Values(is), func(a, b amount) int { return cmp.Compare(b.n, a.n) })
	for _, a := range largest {
		if n > 0 {
			took := min(a.n, n)
			n -= took
			changed = append(changed, amount{a.part, a.n - took})
		}
	}
	slices.SortFunc(changed, func(a, b amount) int { return cmp.Compare(a.part, b.part) })
	return left, changed, 0, true
}

// estimates are what a part of a name had when this process looked last. A part that turns out to
// have too little stays locked, so a request that is large beside the estimate sweeps at once.
type estimates struct {
	mu    sync.Mutex
	names map[string]int64
}

const (
	maxEstimates = 1000 // names
	margin       = 8    // requests that a part should serve, because others are under way
)

// large reports whether a request for n units should sweep at once.
func (e *estimates) large(name string, n int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	is, known := e.names[name]
	return known && is/margin < n
}

func (e *estimates) set(name string, n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.names == nil || len(e.names) >= maxEstimates { // to forget is only slower
		e.names = make(map[string]int64)
	}
	e.names[name] = n
}

func (e *estimates) forget(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.names, name)
}
