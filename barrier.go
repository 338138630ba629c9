package pawl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/engine"
)

// MaxBarrierParties is how many parties a [Barrier] can have.
const MaxBarrierParties = 500

// Barrier lets a number of parties wait for one another, again and again: the
// parties of one generation leave together. When one of them gives up, or dies
// before the last party comes, the barrier is broken for all until it is reset, as
// java.util.concurrent.CyclicBarrier is. Between two calls of Wait the death
// of a party is noticed only if that party joined, see [Barrier.Join].
// A barrier needs a store that keeps versioned values and shared locks; one small value
// stays there. A Barrier is a description, as [Mutex] is.
type Barrier struct {
	value   *Value
	present lock // a claim of it says that a party lives
	parties int
}

// Barrier returns the barrier of this name for so many parties, 1 to
// [MaxBarrierParties]. All users of a name must agree on the number, else
// [ErrMismatch]. See [Client.Mutex] for names.
func (c *Client) Barrier(name string, parties int) *Barrier {
	b := &Barrier{
		newValue(c, "barrier", name).Idempotent(), // a party arrives once, however often it says so
		newLock(c, scopedName("barrier", name), engine.KindLock, engine.LockCapacity, 1), parties,
	}
	b.present.alone = true
	if b.value.err == nil {
		b.value.err = b.present.err
	}
	if b.value.err == nil && (parties < 1 || parties > MaxBarrierParties) {
		b.value.err = invalid("parties is %d: 1 to %d are allowed", parties, MaxBarrierParties)
	}
	return b
}

// barrierState is what is stored.
type barrierState struct {
	Parties    int               `json:"parties"`
	Generation uint64            `json:"generation"`        // how many have left together
	Resets     uint64            `json:"resets"`            // how often it was reset
	Broken     bool              `json:"broken"`            // this generation is
	Arrived    []string          `json:"arrived"`           // the claims of those that wait, in order
	Last       []string          `json:"last,omitempty"`    // of those that left last
	Joined     uint64            `json:"joined,omitempty"`  // how many have
	Members    map[string]string `json:"members,omitempty"` // the names of those that are, and their claims
}

// number is the number of the generation for users. It grows by one whenever all
// leave and whenever the barrier is reset. 0 is none.
func (s *barrierState) number() uint64 { return s.Generation + s.Resets + 1 }

// BrokenError says that a [Barrier] is broken, and which generation. It matches
// [ErrBroken].
type BrokenError struct {
	// Generation is the argument for [Barrier.Reset]; 0 when the store could not be asked.
	Generation uint64
	// Err says why.
	Err error
}

// Error says that the barrier is broken, and why.
func (e *BrokenError) Error() string { return fmt.Sprintf("%v: %v", ErrBroken, e.Err) }

// Is reports whether the target is [ErrBroken].
func (e *BrokenError) Is(target error) bool { return target == ErrBroken }

// Unwrap returns why it is broken.
func (e *BrokenError) Unwrap() error { return e.Err }

func (b *Barrier) parse(v Snapshot) (s barrierState, err error) {
	if v.Number == 0 {
		return barrierState{Parties: b.parties}, nil
	}
	if err := json.Unmarshal(v.Data, &s); err != nil {
		return s, fmt.Errorf("%w: the value in the store is no barrier", ErrMismatch)
	}
	if s.Parties != b.parties {
		return s, fmt.Errorf("%w: it has %d parties, not %d", ErrMismatch, s.Parties, b.parties)
	}
	return s, nil
}

// update changes the stored state, unless change returns an error.
func (b *Barrier) update(ctx context.Context, doing string, change func(*barrierState) error) error {
	_, err := b.value.Update(ctx, func(v Snapshot) ([]byte, error) {
		s, err := b.parse(v)
		if err == nil {
			err = change(&s)
		}
		if err != nil {
			return nil, b.value.failed(doing, err)
		}
		return json.Marshal(s)
	})
	return err
}

// Wait waits until all parties of this generation wait, and returns how many of
// them came after this party: the last party gets 0. When ctx ends before, or the
// session of a party does, the generation is broken. All waiting parties get a
// [BrokenError], which has the reason for the party that gave up. So do all parties that
// come later, until Reset.
func (b *Barrier) Wait(ctx context.Context) (index int, err error) {
	if b.value.err != nil {
		return 0, b.value.failed("wait", b.value.err)
	}
	present, err := b.present.Lock(ctx)
	if err != nil {
		return 0, err
	}
	defer present.Unlock(ctx) //nolint:errcheck // it says that a party lives; nobody waits for it
	return b.wait(ctx, present, present.claim.ID)
}

// wait waits as a party that lives while present is held, under an id of this wait: that
// of its claim, or the name of a member and a number.
func (b *Barrier) wait(ctx context.Context, present *Lease, id string) (index int, err error) {
	w := &barrierWait{Barrier: b, id: id}
	if err := b.update(ctx, "wait", func(s *barrierState) error { return w.arrive(ctx, s) }); err != nil {
		if errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			return w.giveUp(ctx, err)
		}
		return 0, err
	}
	if w.left {
		return w.index, nil
	}
	w.arrived = true
	alive, stop := join(ctx, present.Context())
	defer stop()
	for v, err := range b.value.watch(alive, b.value.client.opts.TTL/3) {
		if err != nil {
			return w.giveUp(ctx, err)
		}
		left, err := w.look(alive, v)
		if left || err != nil && !errors.Is(err, ErrUnavailable) {
			return w.index, err
		}
	}
	return w.giveUp(ctx, context.Cause(alive))
}

// barrierWait is a party that waits.
type barrierWait struct {
	*Barrier
	id         string // of its claim
	generation uint64
	resets     uint64
	number     uint64 // of both
	index      int
	left       bool   // with the others, when it arrived
	arrived    bool   // and heard so
	seen       uint64 // the version that it saw last
}

var (
	errGaveUp    = errors.New("a party gave up or died")
	errReset     = errors.New("it was reset")
	errForgotten = errors.New("the store has forgotten it")
)

// lives reports whether the claim of a party that came is there.
func (s *barrierState) lives(is engine.Resource, id string) bool {
	if name, _, ok := strings.Cut(id, "#"); ok {
		id = s.Members[name]
	}
	return holds(is, id)
}

func holds(is engine.Resource, claim string) bool {
	return slices.ContainsFunc(is.Claims, func(c engine.ClaimInfo) bool { return c.ID == claim })
}

// arrive is the step of a party that comes. The last one makes sure that the others
// live: if all that came before have died, nobody has noticed.
func (w *barrierWait) arrive(ctx context.Context, s *barrierState) error {
	if w.hasLeft(s) { // with the others, and did not hear so
		return ErrUnchanged
	}
	if s.Broken {
		return &BrokenError{s.number(), errGaveUp}
	}
	i := slices.Index(s.Arrived, w.id)
	again := i >= 0
	if !again {
		i = len(s.Arrived)
		s.Arrived = append(s.Arrived, w.id)
	}
	w.generation, w.resets, w.number, w.index = s.Generation, s.Resets, s.number(), w.parties-1-i
	switch {
	case again:
		return ErrUnchanged
	case w.index == 0:
		dead, err := w.dead(ctx, s)
		if dead || err != nil {
			s.Broken = true // which is then read as by everybody
			return err
		}
		w.left = true
		s.Generation, s.Arrived, s.Last = s.Generation+1, nil, s.Arrived
	}
	return nil
}

// hasLeft finds out whether this party left with the last generation, and its index.
func (w *barrierWait) hasLeft(s *barrierState) bool {
	i := slices.Index(s.Last, w.id)
	if w.left = i >= 0; w.left {
		w.index = w.parties - 1 - i
	}
	return w.left
}

// over says whether the generation of this party has ended, and how.
func (w *barrierWait) over(s barrierState) (left bool, err error) {
	switch {
	case w.hasLeft(&s):
		return true, nil
	case s.Resets != w.resets: // also if others have left since
		return false, &BrokenError{w.number, errReset}
	case s.Generation > w.generation:
		return true, nil
	case s.Generation < w.generation:
		return false, &BrokenError{w.number, errForgotten}
	case s.Broken:
		return false, &BrokenError{s.number(), errGaveUp}
	case !slices.Contains(s.Arrived, w.id):
		return false, &BrokenError{w.number, errForgotten}
	}
	return false, nil
}

// look is the step of a waiting party when the value changed. When the value has not
// changed for some time, look breaks the generation if another party has died.
func (w *barrierWait) look(ctx context.Context, v Snapshot) (left bool, err error) {
	s, err := w.parse(v)
	if err == nil {
		left, err = w.over(s)
	}
	if left || err != nil {
		if err != nil {
			err = w.value.failed("wait", err)
		}
		return left, err
	}
	if v.Number != w.seen {
		w.seen = v.Number
		return false, nil
	}
	if dead, err := w.dead(ctx, &s); !dead || err != nil {
		return false, err
	}
	return false, w.update(ctx, "break", func(s *barrierState) error {
		if dead, err := w.dead(ctx, s); !dead || s.Broken || err != nil {
			return cmp.Or(err, ErrUnchanged)
		}
		s.Broken = true
		return nil
	})
}

// dead reports whether a party that came or joined lives no more. Those that joined are
// members no more.
func (b *Barrier) dead(ctx context.Context, s *barrierState) (some bool, err error) {
	is, err := b.value.claims(ctx, "wait", b.present.name)
	if err != nil {
		return false, err
	}
	some = slices.ContainsFunc(s.Arrived, func(id string) bool { return !s.lives(is, id) })
	for name, claim := range s.Members {
		if !holds(is, claim) {
			some = true
			delete(s.Members, name)
		}
	}
	return some, nil
}

// breakFor is the step that breaks the generation of a party that is waited for in
// vain, if it is still there.
func (s *barrierState) breakFor(id string) error {
	if s.Broken || !slices.Contains(s.Arrived, id) {
		return ErrUnchanged
	}
	s.Broken = true
	return nil
}

// giveUp breaks the generation because this party does not wait any longer,
// unless all have left meanwhile. If it does not know whether it has arrived it sees to it
// that it does not any more: a request to that end may still be on its way.
func (w *barrierWait) giveUp(ctx context.Context, reason error) (index int, err error) {
	// If the store cannot be told now, others see later that this party's claim is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.value.client.opts.TTL/3)
	defer cancel()
	err = w.update(ctx, "give up", func(s *barrierState) error {
		if w.number == 0 {
			w.number = s.number()
		}
		if !w.hasLeft(s) && !w.arrived && !slices.Contains(s.Arrived, w.id) {
			return nil // as it is, at a new version
		}
		return s.breakFor(w.id)
	})
	if w.left && err == nil {
		return w.index, nil
	}
	return w.index, w.value.failed("wait", &BrokenError{w.number, errors.Join(reason, err)})
}

// Generation returns the number of the generation, 1 or more. It grows by one when all
// parties leave together and when the barrier is reset.
func (b *Barrier) Generation(ctx context.Context) (uint64, error) {
	v, err := b.value.Get(ctx)
	if err != nil {
		return 0, err
	}
	s, err := b.parse(v)
	if err != nil {
		return 0, b.value.failed("generation", err)
	}
	return s.number(), nil
}

// Reset ends the generation of this number: waiting parties get [ErrBroken]. A broken
// barrier is whole again, and dead parties are members no more. If that
// generation has ended already, Reset does nothing and returns nil. So all parties
// that found the barrier broken may call Reset, with the number in their [BrokenError]. The
// first call resets, and no later call breaks the new generation. 0 is [ErrInvalid].
func (b *Barrier) Reset(ctx context.Context, generation uint64) error {
	if b.value.err == nil && generation == 0 {
		return b.value.failed("reset", invalid("generation is 0: 1 or more is allowed"))
	}
	return b.update(ctx, "reset", func(s *barrierState) error {
		if s.number() != generation {
			return ErrUnchanged
		}
		if len(s.Members) > 0 {
			if _, err := b.dead(ctx, s); err != nil {
				return err
			}
		}
		s.Resets, s.Broken, s.Arrived = s.Resets+1, false, nil
		return nil
	})
}
