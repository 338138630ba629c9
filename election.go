package pawl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// Leader is the candidate that leads.
type Leader struct {
	Value []byte      // the value that the leader announced
	Token fence.Token // of the term; each term has a larger token than all terms before; 0: nobody leads
}

// Election has at most one leader, which announces a value to observers. Candidates lead in the
// order in which they came. An election needs a store that keeps versioned values; one small value
// stays there. An Election is a description, as [Mutex] is.
type Election struct {
	value *Value
	lock  lock
}

// Election returns the election of this name; see [Client.Mutex] for names.
func (c *Client) Election(name string) *Election {
	e := &Election{
		newValue(c, "election", name).Idempotent(), // a term is announced once, however often the request is repeated
		newLock(c, scopedName("election", name), engine.KindLock, engine.LockCapacity, engine.LockCapacity),
	}
	e.lock.alone = true
	e.lock.err = errors.Join(e.value.err, e.lock.err)
	return e
}

// Campaign waits until this candidate leads, as [Mutex.Lock] waits, and announces value, of at most
// [MaxValue] - 16 bytes. The lease is the term of the leader. The term ends with [Election.Resign]
// or Unlock, which hand over to the next candidate, or the term is lost. A leader stops when its
// context ends, before any other candidate leads.
func (e *Election) Campaign(ctx context.Context, value []byte) (*Lease, error) {
	if err := checkAnnouncement(value); err != nil {
		return nil, e.value.failed("campaign", err)
	}
	term, err := e.lock.Lock(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.announce(ctx, term, value, false); err != nil {
		return nil, errors.Join(err, term.Unlock(ctx))
	}
	return term, nil
}

// Proclaim announces another value of the leader that has this term, without an election. [ErrLost]
// says that this leader leads no more. [ErrInvalid] says that the lease is no term of this
// election.
func (e *Election) Proclaim(ctx context.Context, term *Lease, value []byte) error {
	if err := checkAnnouncement(value); err != nil {
		return e.value.failed("proclaim", err)
	}
	if err := e.owns(term); err != nil {
		return e.value.failed("proclaim", err)
	}
	if err := term.Err(); err != nil {
		return e.value.failed("proclaim", err)
	}
	return e.announce(ctx, term, value, false)
}

// Resign ends a term and hands over to the next candidate. Observers learn that nobody leads,
// unless the next candidate leads at once. Resign is idempotent, as Unlock is, and does nothing for
// a nil term. A lease that is no term of this election is an [ErrInvalid], and stays held.
func (e *Election) Resign(ctx context.Context, term *Lease) error {
	if term == nil {
		return nil
	}
	if err := e.owns(term); err != nil {
		return e.value.failed("resign", err)
	}
	// Both requests go at once, because both may have to end soon. The order does not matter:
	// nobody leads without the lock, and the next leader's announcement is not overwritten.
	ctx, stop := outlasting(ctx, term)
	defer stop()
	bound, cancel := Linger(ctx)
	defer cancel()
	vacant := make(chan error, 1)
	if term.Err() == nil {
		go func() { vacant <- e.announce(bound, term, nil, true) }()
	} else {
		vacant <- nil
	}
	if err := term.Unlock(ctx); err != nil {
		<-vacant
		return err
	}
	if err := <-vacant; !errors.Is(err, ErrLost) { // the next leader leads already and has announced itself
		return err
	}
	return nil
}

// owns reports an error unless the lease is a term of this election.
func (e *Election) owns(term *Lease) error {
	if term == nil || term.lock.client != e.lock.client || term.lock.name != e.lock.name {
		return invalid("lease is no term of this election")
	}
	return nil
}

// Lead runs fn whenever this candidate leads, until fn returns by itself or ctx ends. The context
// given to fn is that of [Lease.Within]: it ends when the term is lost. After a loss Lead waits for
// fn and campaigns again. Lead tolerates trouble with the store and evictions, and retries after
// pauses of up to a sixth of the TTL.
//
// When fn returned by itself, or ctx ended, Lead resigns. Lead then returns the errors of fn and of
// the resignation joined. If ctx ended before fn ran, Lead returns the error of the campaign. Lead
// gives up with [ErrInvalid], [ErrUnsupported], [ErrMismatch] and [ErrClosed]. A panic of fn
// resigns too.
func (e *Election) Lead(ctx context.Context, value []byte, fn func(ctx context.Context) error) error {
	for pause := newBackoff(e.lock.client.opts.TTL); ; {
		term, err := e.Campaign(ctx, value)
		if err == nil {
			pause = newBackoff(e.lock.client.opts.TTL)
			var again bool
			if again, err = e.serve(ctx, term, fn); !again {
				return err
			}
		} else if ctx.Err() != nil || e.lock.client.life.Err() != nil || !temporary(err) {
			return err
		}
		if !pause.sleep(ctx, e.lock.client.life) {
			return e.lock.failed(e.lock.client.stopped(ctx, err))
		}
	}
}

// serve runs fn for one term, and reports whether the term was lost meanwhile.
func (e *Election) serve(ctx context.Context, term *Lease, fn func(context.Context) error) (lost bool, err error) {
	defer func() {
		if err = errors.Join(err, e.Resign(ctx, term)); lost {
			err = nil
		}
	}()
	work, stop := term.Within(ctx)
	defer stop()
	if err = fn(work); ctx.Err() == nil && e.lock.client.life.Err() != nil {
		err = errors.Join(err, ErrClosed)
	}
	return ctx.Err() == nil && errors.Is(term.Err(), ErrLost), err
}

// temporary reports whether a campaign may be retried after this error.
func temporary(err error) bool {
	for _, permanent := range []error{ErrInvalid, ErrUnsupported, ErrMismatch, ErrClosed} {
		if errors.Is(err, permanent) {
			return false
		}
	}
	return true
}

// A stored announcement is the token, a byte that is 1 when the term has ended, and the value.
const announcementHead = 9

func checkAnnouncement(value []byte) error {
	if len(value) > MaxValue-16 {
		return invalid("value has %d bytes: at most %d are allowed", len(value), MaxValue-16)
	}
	return nil
}

func (e *Election) announce(ctx context.Context, term *Lease, value []byte, vacant bool) error {
	data := binary.BigEndian.AppendUint64(make([]byte, 0, announcementHead+len(value)), uint64(term.Token()))
	data = append(data, 0)
	if vacant {
		data[8] = 1
	}
	data = append(data, value...)
	_, err := e.value.Update(ctx, func(v Snapshot) ([]byte, error) {
		is, _, err := parseAnnouncement(v)
		if err == nil && is.Token > term.Token() {
			err = fmt.Errorf("%w: another candidate leads with token %v", ErrLost, is.Token)
		}
		if err != nil {
			return nil, e.value.failed("announce", err)
		}
		return data, nil
	})
	return err
}

func parseAnnouncement(v Snapshot) (l Leader, vacant bool, err error) {
	switch {
	case v.Number == 0:
		return Leader{}, true, nil
	case len(v.Data) < announcementHead:
		return Leader{}, true, fmt.Errorf("%w: the value in the store is no announcement", ErrMismatch)
	}
	return Leader{Token: fence.Token(binary.BigEndian.Uint64(v.Data)), Value: v.Data[announcementHead:]}, v.Data[8] == 1, nil
}

// Leader returns the present leader, as the store knows it; Token 0: nobody leads. That leader may
// have lost the lead when Leader returns. An action that must not happen under two leaders needs
// the token.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	v, err := e.value.Get(ctx)
	if err != nil {
		return Leader{}, err
	}
	return e.confirm(ctx, v)
}

// confirm returns the announced leader if that leader still has the lock. A candidate that has the
// lock leads only after its announcement.
func (e *Election) confirm(ctx context.Context, v Snapshot) (Leader, error) {
	l, vacant, err := parseAnnouncement(v)
	if err != nil {
		return Leader{}, e.value.failed("leader", err)
	}
	if vacant {
		return Leader{}, nil
	}
	is, err := e.value.claims(ctx, "leader", e.lock.name)
	if err != nil {
		return Leader{}, err
	}
	if len(is.Claims) > 0 && is.Claims[0].Token == l.Token {
		return l, nil
	}
	return Leader{}, nil
}

// Observe yields the leader, and then each change: another leader, another value, or nobody (Token
// 0). Observe notices a dead leader within two TTLs, a leader that unlocked without Resign within a
// TTL, and every other change at once. Of changes that follow one another quickly Observe may yield
// only the last. Observe retries while the store is away. Observe ends when ctx does; it yields an
// error only if no more changes can come.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var last *Leader
		for v, err := range e.value.watch(ctx, e.value.client.opts.TTL/3) {
			var is Leader
			if err == nil {
				is, err = e.confirm(ctx, v)
			}
			switch {
			case errors.Is(err, ErrUnavailable), ctx.Err() != nil:
				continue
			case err != nil:
				yield(Leader{}, err)
				return
			case last != nil && is.Token == last.Token && string(is.Value) == string(last.Value):
				continue
			}
			if last = &is; !yield(is, nil) {
				return
			}
		}
	}
}
