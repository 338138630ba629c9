package pawl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/engine"
)

// MaxBarrierParties is how many parties a [Barrier] can have.
const MaxBarrierParties = 500

// Barrier lets a number of parties wait for one another, again and again: the parties of one
// generation leave together. When a party gives up or dies before the last party comes, the barrier
// is broken for all parties until a reset. java.util.concurrent.CyclicBarrier does the same. The
// death of a party between two calls of Wait is noticed only if that party joined, see
// [Barrier.Join]. Of many waiting parties some look for the dead in each heartbeat, by turns. If most of them
// die at once, the others learn of the deaths some heartbeats later.
//
// A barrier needs a store that keeps versioned values and shared locks; one small value stays
// there. A Barrier is a description, as [Mutex] is.
type Barrier struct {
	value   *Value
	present lock // a claim of it says that a party lives
	parties int
}

// Barrier returns the barrier of this name for so many parties, 1 to [MaxBarrierParties]. If users
// of a name declare different numbers, calls fail with [ErrMismatch], and so does [Barrier.Reset]. The first use fixes the number
// of a name for ever. For another number choose another name. See [Client.Mutex] for names.
func (c *Client) Barrier(name string, parties int) *Barrier {
	b := &Barrier{
		newValue(c, "barrier", name).Idempotent(), // a party arrives once, however often its request is repeated
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

// barrierState is the stored state.
type barrierState struct {
	Parties    int               `json:"parties"`
	Generation uint64            `json:"generation"`        // how many generations have left together
	Resets     uint64            `json:"resets"`            // how many resets there were
	Broken     bool              `json:"broken"`            // this generation is broken
	Arrived    []string          `json:"arrived"`           // the claims of the waiting parties, in order
	Last       []string          `json:"last,omitempty"`    // the claims of the generation that left last
	Joined     uint64            `json:"joined,omitempty"`  // how many parties have ever joined
	Members    map[string]string `json:"members,omitempty"` // the names of the members, and their claims
}

// number is the number of the generation for users. number grows by one whenever all parties leave and
// whenever the barrier is reset. 0 is no generation.
func (s *barrierState) number() uint64 { return s.Generation + s.Resets + 1 }

// BrokenError says that a [Barrier] is broken, and which generation broke. BrokenError matches [ErrBroken].
type BrokenError struct {
	// Generation is the argument for [Barrier.Reset]; 0 when the store could not be asked.
	Generation uint64
	// Err is the reason.
	Err error
}

// Error says that the barrier is broken, and why.
func (e *BrokenError) Error() string { return fmt.Sprintf("%v: %v", ErrBroken, e.Err) }

// Is reports whether the target is [ErrBroken].
func (e *BrokenError) Is(target error) bool { return target == ErrBroken }

// Unwrap returns the reason.
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

// Wait waits until all parties of this generation wait. Wait returns how many parties came after
// this party: the last party gets 0. When ctx ends before, or the session of a party does, the
// generation is broken. All waiting parties then get a [BrokenError], which gives the reason to the
// party that gave up. Parties that come later get the error too, until Reset. If the error matches
// [ErrUnavailable] as well, the store was not told in time, and the others may have left with this party.
// A party whose ctx ends before the party has arrived breaks nothing, and its error does not match [ErrBroken].
// If the store was not told of that in time, the error matches ErrBroken and [ErrUnavailable], and its Generation may be 0.
func (b *Barrier) Wait(ctx context.Context) (index int, err error) {
	if b.value.err != nil {
		return 0, b.value.failed("wait", b.value.err)
	}
	present, err := b.present.Lock(ctx)
	if err != nil {
		return 0, err
	}
	ends, cancel := Linger(ctx) // bounds all that a party does after ctx
	defer cancel()
	defer present.unlockBy(ctx, ends) //nolint:errcheck // it says that a party lives; nobody waits for it
	return b.wait(ctx, present, present.claim.ID)
}

// wait waits as a party that lives while present is held. id is the id of this wait: that of the
// party's claim, or the name of a member and a number.
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
		if left || err != nil && !errors.Is(err, ErrUnavailable) && alive.Err() == nil {
			return w.index, err
		}
	}
	return w.giveUp(ctx, context.Cause(alive))
}

// barrierWait is one party during one Wait.
type barrierWait struct {
	*Barrier
	id         string // of its claim
	generation uint64
	resets     uint64
	number     uint64 // of the generation and the resets
	index      int
	left       bool   // the party had left with the others when its request arrived
	arrived    bool   // the party has arrived, and knows that
	outside    bool   // the party has not arrived, and never will
	seen       uint64 // the version that this party saw last
	beats      int    // the heartbeats since that version came
}

var (
	errGaveUp    = errors.New("a party gave up or died")
	errReset     = errors.New("it was reset")
	errForgotten = errors.New("the store has forgotten it")
)

// lives reports whether the claim of an arrived party is there.
func (s *barrierState) lives(is engine.Resource, id string) bool {
	if name, _, ok := strings.Cut(id, "#"); ok {
		id = s.Members[name]
	}
	return holds(is, id)
}

// waited reports whether the member of this id arrived in an earlier call, gave up, and the store was not told.
func (s *barrierState) waited(id string) bool {
	name, _, _ := strings.Cut(id, "#")
	return slices.ContainsFunc(s.Arrived, func(other string) bool {
		earlier, _, member := strings.Cut(other, "#")
		return member && earlier == name && other != id
	})
}

func holds(is engine.Resource, claim string) bool {
	return slices.ContainsFunc(is.Claims, func(c engine.ClaimInfo) bool { return c.ID == claim })
}

// arrive is the step of an arriving party. The last party makes sure that the others live: if all
// earlier parties have died, nobody else notices.
func (w *barrierWait) arrive(ctx context.Context, s *barrierState) error {
	if w.hasLeft(s) { // with the others, although the reply was lost
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
	case s.waited(w.id): // the others would count that member twice
		s.Broken = true // then this party reads the broken barrier as everybody does
	case w.index == 0:
		dead, err := w.dead(ctx, s)
		if dead || err != nil {
			s.Broken = true
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
	if i >= 0 {
		w.index = w.parties - 1 - i
	}
	// Others may have left since. If there was a reset as well, nobody knows which came first.
	w.left = i >= 0 || w.arrived && s.Resets == w.resets && s.Generation > w.generation
	return w.left
}

// over says whether the generation of this party has ended, and how.
func (w *barrierWait) over(s barrierState) (left bool, err error) {
	switch {
	case w.hasLeft(&s):
		return true, nil
	case s.Resets != w.resets: // also if others have left since
		return false, &BrokenError{w.number, errReset}
	case s.Generation < w.generation:
		return false, &BrokenError{w.number, errForgotten}
	case s.Broken:
		return false, &BrokenError{s.number(), errGaveUp}
	case !slices.Contains(s.Arrived, w.id):
		return false, &BrokenError{w.number, errForgotten}
	}
	return false, nil
}

// look is the step of a waiting party when the value changed. When the value has not changed for
// some time, look breaks the generation if another party has died.
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
		w.seen, w.beats = v.Number, 0
		return false, nil
	}
	if w.beats++; !s.watches(w.id, w.beats) {
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

// watches reports whether the party of this id looks for dead parties in a heartbeat. If all looked, each heartbeat would
// read the square of their number. So the parties take turns: at least four of n look, or all, and at least the root of n. The
// parties count the heartbeats from the same change of the value.
func (s *barrierState) watches(id string, beat int) bool {
	n := len(s.Arrived)
	turns := max(1, min(n/4, int(math.Sqrt(float64(n)))))
	return (slices.Index(s.Arrived, id)+beat)%turns == 0
}

// dead reports whether a party that arrived or joined is dead. dead also removes the dead members.
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

// breakFor breaks the generation in which the party of this id waits. breakFor does nothing if the
// generation is broken already, or that party is not in it.
func (s *barrierState) breakFor(id string) error {
	if s.Broken || !slices.Contains(s.Arrived, id) {
		return ErrUnchanged
	}
	s.Broken = true
	return nil
}

// giveUp breaks the generation because this party stops waiting, unless all parties have left
// meanwhile. The store gets more time for that than the caller, because the other parties wait.
func (w *barrierWait) giveUp(ctx context.Context, reason error) (index int, err error) {
	type end struct {
		wait barrierWait
		err  error
	}
	bound, stop := Linger(ctx)
	defer stop()
	ends, late := make(chan end, 1), *w // the caller may go before
	told := end{late, ErrClosed}
	if w.value.client.spawn(func() {
		// If the store cannot be told, other parties see later that this party's claim is gone.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), late.value.client.opts.TTL/3)
		defer cancel()
		err := late.withdraw(ctx)
		ends <- end{late, err}
	}) {
		select {
		case told = <-ends:
		case <-bound.Done():
			told.err = engine.Unavailable("give up", context.Cause(ctx))
		}
	}
	switch {
	case told.err == nil && told.wait.left:
		return told.wait.index, nil
	case told.err == nil && told.wait.outside: // the others wait on for another party
		return 0, w.value.failed("wait", reason)
	}
	return told.wait.index, w.value.failed("wait", &BrokenError{told.wait.number, errors.Join(reason, told.err)})
}

// withdraw breaks the generation. A request to arrive may still be on its way. So a party that does not
// know whether it has arrived makes that request fail: withdraw writes a new version.
func (w *barrierWait) withdraw(ctx context.Context) error {
	return w.update(ctx, "give up", func(s *barrierState) error {
		w.outside = false // an earlier try may have met another state
		if w.number == 0 {
			w.number = s.number()
		}
		if !w.hasLeft(s) && !w.arrived && !slices.Contains(s.Arrived, w.id) {
			w.outside = true
			return nil // the same state, at a new version
		}
		return s.breakFor(w.id)
	})
}

// Generation returns the number of the generation, 1 or more. The number grows by one when all
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

// Reset ends the generation of this number: waiting parties get [ErrBroken]. A broken barrier is
// whole again, and dead parties are members no more. If that generation has ended already, Reset
// does nothing and returns nil. The number 0 is an [ErrInvalid].
//
// All parties that found the barrier broken may call Reset with the number in their [BrokenError].
// The first call resets, and no later call breaks the new generation.
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
