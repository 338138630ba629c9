package idem

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/fence"
)

// Entry is a key as an operator sees it. An Entry was true in the store when it was read.
type Entry struct {
	Key         Key
	State       State
	Fingerprint Fingerprint
	Attempts    int         // how often the key was claimed
	Token       fence.Token // of the last claim
	Began       time.Time   // the first claim, by the clock of that machine
	Expires     time.Time   // as above
	Points      []string    // the recovery points that were reached, in order
	Size        int         // of the result, in bytes
	Result      []byte      // only Show reads it

	// Holder is the caller that works on the key now. A key in state Claimed without a holder was
	// given back, or its worker died.
	Holder *pawl.Party
}

func (r *record) entry() Entry {
	e := Entry{
		Key: r.key(), State: r.State, Fingerprint: r.print(), Attempts: r.Attempts, Token: r.Token,
		Began: time.UnixMilli(r.Began), Expires: time.UnixMilli(r.Expires), Size: r.Size,
	}
	for _, p := range r.Points {
		e.Points = append(e.Points, p.Name)
	}
	return e
}

// Show reads a key; found is false when the store has no record of the key. An expired record while no
// caller works on the key counts as none. If the result is not whole, Show returns the rest with an error that matches [pawl.ErrMismatch], and found is true.
func (l *Leases) Show(ctx context.Context, key Key) (e Entry, found bool, err error) {
	_, err = l.claimant(key, Fingerprint{}, 0)
	if err == nil {
		is := stored{value: l.value(key)}
		if is.record, is.seen, err = l.load(ctx, is.value); err == nil && is.record != nil {
			e, found, err = l.entry(ctx, &is)
		}
		if found {
			e.Result, err = l.fetch(ctx, is.record)
		}
	}
	if err != nil {
		err = fmt.Errorf("show %q: %w", key, err)
	}
	return e, found, err
}

func (l *Leases) load(ctx context.Context, v *pawl.Value) (*record, pawl.Snapshot, error) {
	seen, err := v.Get(ctx)
	if err != nil {
		return nil, seen, err
	}
	is, err := decode(seen)
	return is, seen, err
}

// entry adds the holder, whom only the lock knows; found is false when the record has expired and no caller works on the key.
// Without a holder entry reads the record again, because the worker may have ended after the first look.
func (l *Leases) entry(ctx context.Context, is *stored) (e Entry, found bool, err error) {
	for is.record != nil {
		e = is.entry()
		if is.State != Claimed {
			return e, !is.expired(time.Now()), nil
		}
		lock, err := l.client.Show(ctx, l.mutex(is.key()).Name())
		if err != nil {
			return e, false, err
		}
		if len(lock.Holders) > 0 {
			e.Holder = &lock.Holders[0]
			return e, true, nil
		}
		old := is.seen.Number
		if is.record, is.seen, err = l.load(ctx, is.value); err != nil {
			return e, false, err
		}
		if is.seen.Number == old {
			return e, !is.expired(time.Now()), nil
		}
	}
	return Entry{}, false, nil
}

// List yields the keys whose scope is this one, or all keys if scope is empty, in no order, each
// once and without Result. Keys that have expired are not among them, unless a caller works on them. A key that comes or goes
// meanwhile may be missing. List reads the records one after the other: it is for operators and sweepers. After an error that
// matches [pawl.ErrMismatch] or [pawl.ErrUnsupported], which is that of one record, List goes on.
// Any other error ends List, and so does an error of the store itself that matches [pawl.ErrUnsupported].
func (l *Leases) List(ctx context.Context, scope string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for is, err := range l.records(ctx, scope) {
			var e Entry
			found := true
			if err == nil {
				e, found, err = l.entry(ctx, &is)
			}
			if err != nil {
				err = fmt.Errorf("list keys: %w", err)
			}
			if (found || err != nil) && !yield(e, err) || err != nil && !unreadable(err) {
				return
			}
		}
	}
}

// stored is a record as it was read.
type stored struct {
	*record
	value *pawl.Value
	seen  pawl.Snapshot
}

func (l *Leases) records(ctx context.Context, scope string) iter.Seq2[stored, error] {
	return func(yield func(stored, error) bool) {
		if l.err != nil {
			yield(stored{}, l.err)
			return
		}
		begin := keyPrefix + escape.Replace(scope) + "|"
		for name, err := range l.scope.Values(ctx, keyPrefix) {
			if err == nil && scope != "" && !strings.HasPrefix(name, begin) && !strings.Contains(name, cutMark) {
				continue // of another scope
			}
			s := stored{value: l.scope.Value(name)}
			if err == nil {
				if s.record, s.seen, err = l.load(ctx, s.value); unreadable(err) {
					err = fmt.Errorf("record %q: %w", strings.TrimPrefix(name, keyPrefix), err)
				}
			}
			if err == nil && (s.record == nil || scope != "" && s.Scope != scope) {
				continue
			}
			if !yield(s, err) || err != nil && !unreadable(err) {
				return
			}
		}
	}
}

// unreadable reports whether an error is that of one record, which is not of this version.
func unreadable(err error) bool {
	return errors.Is(err, pawl.ErrMismatch) || errors.Is(err, pawl.ErrUnsupported)
}

// Forget removes a key, as an operator asks for: the next request with this key runs. Forget fails with
// [ErrInFlight] while a caller works on the key. Forget of a key that is not there does nothing.
func (l *Leases) Forget(ctx context.Context, key Key) error {
	_, err := l.claimant(key, Fingerprint{}, 0)
	if err == nil {
		_, err = l.forget(ctx, key, func(*record) bool { return true })
	}
	if err != nil {
		return fmt.Errorf("forget %q: %w", key, err)
	}
	return nil
}

// forget removes the record of a key if it is as wanted, under the lock of the key, and returns it.
func (l *Leases) forget(ctx context.Context, key Key, wanted func(*record) bool) (gone *record, err error) {
	lease, err := l.lock(ctx, key, &BeginOptions{NoWait: true})
	if err != nil {
		return nil, err
	}
	defer lease.Unlock(ctx) //nolint:errcheck // versions guard the record
	v := l.value(key)
	_, seen, err := l.load(ctx, v)
	if err != nil {
		return nil, err
	}
	_, err = write(ctx, v, seen, func(is *record) (*record, error) {
		if gone = nil; is == nil || !wanted(is) {
			return is, nil
		}
		gone = is
		return nil, nil
	})
	if err == nil && gone != nil {
		err = l.discard(ctx, gone)
	}
	return gone, err
}

// Sweep removes the keys that have expired, and returns how many. Sweep leaves alone what a caller works
// on. Stores remove nothing by themselves, so a program calls Sweep now and then, such as once an hour
// on one machine. Keys that have expired count as forgotten also before a sweep. Records that Sweep cannot read stay, with
// the parts of their results. Sweep goes on then, and returns an error for each that matches [pawl.ErrMismatch] or [pawl.ErrUnsupported].
func (l *Leases) Sweep(ctx context.Context) (swept int, err error) {
	var bad []error
	for is, err := range l.records(ctx, "") {
		if err == nil && is.expired(time.Now()) {
			var gone *record
			if gone, err = l.forget(ctx, is.key(), func(r *record) bool { return r.expired(time.Now()) }); gone != nil {
				swept++
			}
		}
		switch {
		case err == nil || errors.Is(err, ErrInFlight):
		case unreadable(err):
			bad = append(bad, fmt.Errorf("sweep keys: %w", err))
		default:
			return swept, errors.Join(append(bad, fmt.Errorf("sweep keys: %w", err))...)
		}
	}
	if err := l.sweepParts(ctx); err != nil {
		bad = append(bad, fmt.Errorf("sweep parts of results: %w", err))
	}
	return swept, errors.Join(bad...)
}
