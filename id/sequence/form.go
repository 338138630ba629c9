package sequence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
)

// form is find, and again when other clients were in the way: those of a file, or of a table
// that is being made.
func (s *Sequence) form(ctx context.Context) error {
	return dialect.Repeat(ctx, dialect.Tries(10), func() error { return s.find(ctx) })
}

// find finds the set in the databases that answer, and makes or enlarges it where that is
// needed. Others may do the same at the same time: a client that finds a record changed looks again.
func (s *Sequence) find(ctx context.Context) error {
	var before error
	for ctx.Err() == nil {
		records, errs := s.lookAll(ctx)
		if err := wrong(errs); err != nil {
			return err
		}
		members, err := s.agree(records, errs)
		if err != nil && before != nil {
			return err
		}
		if before = err; err != nil {
			continue // another client may have made the set while the databases were looked at one after the other
		}
		if len(s.members) > len(members) {
			if err := s.enlarge(ctx, records, errs, members); err != nil {
				return err
			}
			continue
		}
		s.set = members
		s.counts = make([]id.Counter, len(s.members))
		again := false
		for i, m := range s.members {
			s.counts[i] = m.count(members[i])
			joined := false
			if errs[i] == nil {
				joined, errs[i] = s.admit(ctx, i, records[i])
			}
			again = again || errs[i] == nil && !joined
		}
		if again {
			continue
		}
		return s.start(errs)
	}
	return context.Cause(ctx)
}

// start notes which databases are there. The others are looked at later.
func (s *Sequence) start(errs []error) error {
	if err := wrong(errs); err != nil {
		return err
	}
	for i, err := range errs {
		s.states[i].err = err
		s.plan.end(i, was(err, looked), 0)
	}
	if !s.plan.anyGood() {
		return named(errs)
	}
	return nil
}

func was(err error, good outcome) outcome {
	if err != nil {
		return failed
	}
	return good
}

func (s *Sequence) lookAll(ctx context.Context) ([]record, []error) {
	records, errs := make([]record, len(s.members)), make([]error, len(s.members))
	var group sync.WaitGroup
	for i, m := range s.members {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, s.timeout)
			defer cancel()
			records[i], errs[i] = m.look(ctx)
		})
	}
	group.Wait()
	return records, errs
}

// agree returns the members of the set, as the record says that knows most, if no record
// contradicts.
func (s *Sequence) agree(records []record, errs []error) (members []string, err error) {
	for _, r := range records {
		if len(r.Members) > len(members) {
			members = r.Members
		}
	}
	for i, r := range records {
		if errs[i] != nil {
			continue
		}
		if err := r.check(i, members, s.step); err != nil {
			return nil, fmt.Errorf("%w: database %d: %w", pawl.ErrMismatch, i+1, err)
		}
	}
	return members, nil
}

// enlarge adds the databases that are in no set yet, all of them by one write to the first.
func (s *Sequence) enlarge(ctx context.Context, records []record, errs []error, members []string) error {
	for i, err := range errs {
		if err != nil && (i == 0 || i >= len(members)) {
			return fmt.Errorf("a set that is new, or grows, needs its first and its new databases: %w", named(errs))
		}
	}
	members = slices.Clone(members)
	ctx, cancel := context.WithTimeout(ctx, 10*s.timeout) // it makes tables
	defer cancel()
	for i := len(members); i < len(s.members); i++ {
		r, err := s.members[i].create(ctx)
		if err == nil {
			if err = r.check(i, members, s.step); err != nil {
				err = fmt.Errorf("%w: %w", pawl.ErrMismatch, err)
			}
		}
		switch {
		case err != nil:
			return fmt.Errorf("database %d: %w", i+1, err)
		case slices.Contains(members, r.Member):
			return fmt.Errorf("%w: databases %d and %d are the same", pawl.ErrInvalid, slices.Index(members, r.Member)+1, i+1)
		case i == 0:
			records[0] = r
		}
		members = append(members, r.Member)
	}
	if _, err := s.members[0].join(ctx, records[0], members, s.step); err != nil {
		return fmt.Errorf("database 1: %w", err)
	}
	return nil
}

// admit gives a database that was looked at its place in the set, and reports whether it has it.
func (s *Sequence) admit(ctx context.Context, i int, r record) (joined bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if joined, err = s.members[i].join(ctx, r, s.set, s.step); err != nil || !joined {
		return false, err
	}
	return true, s.members[i].count(s.set[i]).Check(ctx)
}

// look returns an error unless the database may be asked for numbers. look makes nothing: a
// database that lost its record is another database.
func (s *Sequence) look(ctx context.Context, i int) error {
	r, err := s.members[i].look(ctx)
	if err != nil {
		return err
	}
	if err := r.check(i, s.set, s.step); err != nil {
		return fmt.Errorf("%w: %w", pawl.ErrMismatch, err)
	}
	joined, err := s.admit(ctx, i, r)
	if err == nil && !joined {
		err = fmt.Errorf("%w: another client wrote its record", pawl.ErrUnavailable) // the next look finds out
	}
	return err
}

// wrong returns the errors that do not go away by themselves.
func wrong(errs []error) error {
	some := make([]error, len(errs))
	for i, err := range errs {
		if err != nil && !errors.Is(err, pawl.ErrUnavailable) {
			some[i] = err
		}
	}
	return named(some)
}

// named joins the errors of databases.
func named(errs []error) error {
	some := make([]error, len(errs))
	for i, err := range errs {
		if err != nil {
			some[i] = fmt.Errorf("database %d: %w", i+1, err)
		}
	}
	return errors.Join(some...)
}
