package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
)

// Check does what [Registers.Create] does, but creates nothing: where the table is missing, its
// error matches [dialect.ErrMissing].
func (r *Registers) Check(ctx context.Context) error {
	if err := r.check(ctx); err != nil {
		return r.failed(ctx, "check", err)
	}
	return nil
}

// Begun is a counter that is begun once, by its own method, and counts only on the row that
// was made then. A Begun whose row is gone, because the table or the database is another, fails with
// [pawl.ErrMismatch]. The counters of [Registers] begin at 1 there. A Begun is safe for concurrent use.
type Begun struct{ register register }

var _ id.Counter = Begun{}

// Begun returns the counter of this name. No request is made. That counter has nothing to do with the
// mark and the counter of that name.
func (r *Registers) Begun(name string) Begun {
	return Begun{register{r, "begun/" + name, id.CheckName(name)}}
}

// Begin makes the row, unless it is there: then Begin changes nothing. The tables have to
// be there, see [Registers.Create].
func (b Begun) Begin(ctx context.Context) error {
	r := b.register
	return r.do(ctx, "begin", func() error {
		row := dialect.Columns{"name": r.key, "n": 0, "version": 1}
		_, err := dialect.InsertIfAbsent(r.dialect, r.table.Name, "name", row).Exec(ctx, r.db)
		return err
	})
}

// Check returns an error unless the counter could count now.
func (b Begun) Check(ctx context.Context) error {
	return b.register.do(ctx, "look at", func() error { _, err := b.read(ctx); return err })
}

// Add implements [id.Counter].
func (b Begun) Add(ctx context.Context, n int64) (last int64, err error) {
	if b.register.err != nil {
		return 0, b.register.err
	}
	if err := id.CheckAdd(n); err != nil {
		return 0, err
	}
	err = b.register.do(ctx, "count", func() (err error) { last, err = b.add(ctx, n); return err })
	if err != nil {
		return 0, err
	}
	return last, nil
}

func (b Begun) add(ctx context.Context, n int64) (int64, error) {
	last, done, err := b.register.update(ctx, "n + ", n, "n", " >= 0 AND n <= ", math.MaxInt64-n)
	if err != nil || done {
		return last, err
	}
	is, err := b.read(ctx)
	switch {
	case err != nil:
		return 0, err
	case is.Value > math.MaxInt64-n:
		return 0, fmt.Errorf("%w: %d numbers after %d", id.ErrExhausted, n, is.Value)
	}
	return 0, fmt.Errorf("%w: %q could not be written, and can by now", pawl.ErrUnavailable, b.register.key)
}

// read says why the counter cannot count, if so.
func (b Begun) read(ctx context.Context) (id.Reading, error) {
	is, err := b.register.read(ctx)
	if err == nil && is.Version == 0 || errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: %w: the row %q is gone", errOthers, pawl.ErrMismatch, b.register.key)
	}
	return is, err
}
