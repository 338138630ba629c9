package pawl

import (
	"context"
	"errors"
	"sync"

	"github.com/pawl-go/pawl/engine"
)

// Slots are numbered permits: each holder has a number of its own in [0, n). Use them for worker
// ids, shards or partitions. When all numbers are held, takers wait, first come, first served. A
// crashed holder's number is free within its TTL and a second. No two holders trust at once that
// they have the same number; a later holder of a number has a larger token. A store that may lose confirmed writes may forget
// that a number was given. Another holder may get that number then, with a larger token.
//
// Slots need a store with semaphores and versioned values; one value of up to 40 KiB stays there.
// Slots are a description, as [Mutex] is. Slots are built on a semaphore, so Show, List and Break
// know them as "pawl:slots/" and the name.
//
// Take sends six requests, whatever n is, in three round trips. On ZooKeeper one of them reads one
// node for each holder. Takers at once queue, so that n takers send O(n) requests. Only a few of
// these requests read all claims of the name, because a taker uses the look of the taker before it.
type Slots struct {
	value  *Value
	permit lock
	prefer int // -1: no preference
}

// Slots returns the slots of this name with the numbers 0 to n - 1, where n is 1 to 4,096. If users
// declare different numbers, calls fail with [ErrMismatch]. When nobody holds a slot or waits for a
// slot, users may declare another n. See [Client.Mutex] for names.
func (c *Client) Slots(name string, n int) *Slots {
	s := &Slots{newValue(c, "slots", name), newLock(c, scopedName("slots", name), engine.KindSemaphore, int64(n), 1), -1}
	s.permit.alone = true
	if s.value.err == nil {
		s.value.err = s.permit.err
	}
	if s.value.err == nil && (n < 1 || n > maxSlots) {
		s.value.err = invalid("n is %d: 1 to %d are allowed", n, maxSlots)
	}
	return s
}

// Name returns the name of the slots.
func (s *Slots) Name() string { return s.value.name }

// With returns the same slots, taken with opts.
func (s *Slots) With(opts LockOptions) *Slots {
	w := *s
	w.permit = s.permit.with(opts)
	return &w
}

// Prefer returns the same slots, of which Take gives this number if that number is free. Otherwise
// Take gives the smallest free number.
func (s *Slots) Prefer(number int) *Slots {
	p := *s
	p.prefer = number
	if n := int(s.permit.spec.Capacity); number < 0 || number >= n {
		v := *s.value
		if v.err == nil {
			v.err = invalid("preferred number is %d: 0 to %d are allowed", number, n-1)
		}
		p.value = &v
	}
	return &p
}

// Slot is a number that is held, with the lease that keeps it.
type Slot struct {
	*Lease
	number int
}

// Number returns the number of the slot. The number never changes.
func (s *Slot) Number() int { return s.number }

// Take waits until a slot is held or ctx ends, as [Mutex.Lock] waits and with its errors. If Take
// fails, the caller holds no slot. The client may still be giving a permit back, so that another taker gets the slot a little later.
// A taker that meets others queues with them, as [Value.Update] does.
//
// Take first tries without waiting. So an observer of a Take that waits gets EventAttempt and EventRefused, and then the events of the wait.
// A minimum hold begins when the permit has its number.
func (s *Slots) Take(ctx context.Context) (*Slot, error) { return s.take(ctx, true) }

// TryTake takes a slot if a slot is free now. Otherwise TryTake fails with [ErrNotAcquired].
// Several takers may come at once and queue for their numbers: ctx bounds that time.
func (s *Slots) TryTake(ctx context.Context) (*Slot, error) { return s.take(ctx, false) }

func (s *Slots) take(ctx context.Context, wait bool) (*Slot, error) {
	if s.value.err != nil {
		return nil, s.value.failed("take", s.value.err)
	}
	for pause := newBackoff(s.value.client.opts.TTL); ; {
		slot, err := s.takeOnce(ctx, wait)
		passing := errors.Is(err, errOvertaken) || errors.Is(err, ErrLost)
		if wait && passing && pause.sleep(ctx, s.value.client.life) {
			continue
		}
		ended := ctx.Err() != nil && (passing || errors.Is(err, ErrUnavailable))
		if ended && !(errors.Is(err, ErrNotAcquired) && errors.Is(err, ctx.Err())) {
			err = s.value.failed("take", s.value.client.stopped(ctx, err))
		}
		return slot, err
	}
}

// takeOnce gets a permit, and gives the permit a number.
func (s *Slots) takeOnce(ctx context.Context, wait bool) (*Slot, error) {
	permit, o, err := s.open(ctx)
	if wait && (errors.Is(err, ErrNotAcquired) || errors.Is(err, ErrUnavailable)) {
		permit, err = s.permit.unkept().acquire(ctx, ctx, true)
	}
	if err != nil {
		return nil, err
	}
	slot := &Slot{Lease: permit}
	err = s.number(ctx, slot, o, wait)
	if err == nil {
		err = s.permit.keepHeld(ctx, permit, wait, permit.Err)
	}
	if lost := permit.Err(); lost != nil {
		err = errors.Join(err, s.value.failed("take", lost))
	}
	if err != nil && ctx.Err() != nil {
		s.giveUp(permit) // the call has waited for the store long enough
		return nil, err
	}
	if err != nil {
		permit.Unlock(ctx) //nolint:errcheck // each heartbeat repeats a release that the store did not confirm
		return nil, err
	}
	return slot, nil
}

// opening is the first round trip of a taker, beside its permit.
type opening struct {
	turn *Lease // nil if another taker has the turn
	is   Snapshot
	read bool
}

// open asks for a permit and for the turn, and reads the numbers, at once. A taker with the turn at
// once needs no further trip for it. Another taker knows that it is one of several. A taker without a permit does not wait
// for the turn. The request for the turn goes on, because a request that the client gave up looks like trouble with the store.
func (s *Slots) open(ctx context.Context) (permit *Lease, o opening, err error) {
	waits, leave := context.WithCancel(ctx)
	defer leave()
	opened := make(chan opening)
	s.value.client.spawn(func() {
		var o opening
		var beside sync.WaitGroup
		beside.Go(func() {
			is, err := s.value.Get(waits)
			o.is, o.read = is, err == nil
		})
		turn := s.value.turnLock()
		o.turn, _ = turn.TryLock(context.WithoutCancel(ctx)) //nolint:errcheck // a taker without the turn waits for it
		beside.Wait()
		select {
		case opened <- o:
		case <-waits.Done():
			o.turn.Unlock(context.Background()) //nolint:errcheck // as in queueUpdate
		}
	})
	if permit, err = s.permit.unkept().acquire(ctx, ctx, false); err != nil {
		return nil, o, err
	}
	select {
	case o = <-opened:
	case <-ctx.Done():
	case <-s.value.client.life.Done(): // nobody may have begun to open
	}
	return permit, o, nil
}

// giveUp releases the turn, or a permit. The caller does not wait for that.
func (s *Slots) giveUp(lease *Lease) {
	if lease != nil {
		s.value.client.spawn(func() { lease.Unlock(context.Background()) }) //nolint:errcheck // as in queueUpdate
	}
}

// number gives the permit a number. The turn only keeps order: the version guards the value. The first
// try uses the version that was read already.
func (s *Slots) number(ctx context.Context, slot *Slot, o opening, wait bool) (err error) {
	work, stop := slot.Within(ctx)
	defer stop()
	v := *s.value
	v.again = wait // a token has one number, however often the request is repeated
	if o.turn == nil {
		if o.turn, err = v.turn(work); err != nil {
			return v.failed("take", err)
		}
		o.read = false
	}
	defer s.giveUp(o.turn)
	assign := func(is Snapshot) ([]byte, error) { return s.assign(work, is, slot) }
	again := !o.read
	if o.read {
		_, again, err = v.updateAt(work, o.is, assign)
	}
	if again || wait && errors.Is(err, ErrUnavailable) {
		_, _, err = v.tryUpdate(work, assign, queuedTries)
	}
	return err
}

// assign is the step that gives the permit a number, see slotTable. A look at the claims costs the
// store as much as there are claims. So the taker looks only if no other taker did so after this
// permit was granted.
func (s *Slots) assign(ctx context.Context, is Snapshot, slot *Slot) ([]byte, error) {
	table, err := parseSlots(is)
	if err != nil {
		return nil, s.value.failed("take", err)
	}
	if at, ok := table.of(slot.token); ok { // the reply was lost
		slot.number = at
		return nil, ErrUnchanged
	}
	n, known := int(s.permit.spec.Capacity), table.seen >= slot.token
	if known {
		slot.number, err = table.choose(slot.token, n, s.prefer)
	}
	if !known || err != nil {
		r, err := s.value.client.claims(ctx, s.permit.name)
		if err != nil {
			return nil, s.value.failed("take", err)
		}
		table.look(r.Claims)
		if slot.number, err = table.choose(slot.token, n, s.prefer); err != nil {
			return nil, s.value.failed("take", err)
		}
	}
	table.give(slot.number, slot.token)
	return table.data(), nil
}
