package pawl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// maxSlots is the largest number of slots: the tokens of so many fit into one value.
const maxSlots = 4096

// Slots are numbered permits: each holder has a number of its own in [0, n). Use them for worker
// ids, shards or partitions. When all numbers are held, takers wait, first come, first served. A
// crashed holder's number is free within its TTL and a second. No two holders trust at once that
// they have the same number; a later holder of a number has a larger token.
//
// Slots need a store with semaphores and versioned values; one value of up to 32 KiB stays there.
// Slots are a description, as [Mutex] is. Slots are built on a semaphore, so Show, List and Break
// know them as "pawl:slots/" and the name.
//
// Take sends four requests, whatever n is, and the first two of them at once: three round trips. On
// ZooKeeper the third request reads one node for each holder. Takers that disturb one another
// queue, so that n takers at once send O(n) requests. One request of each taker reads all claims of the
// name, so some hundred takers at once keep a store busy for seconds. Start larger fleets in turn.
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
// fails, no slot is held. A taker that meets others queues with them, as [Value.Update] does.
func (s *Slots) Take(ctx context.Context) (*Slot, error) { return s.take(ctx, true) }

// TryTake takes a slot if a slot is free now. Otherwise TryTake fails with [ErrNotAcquired].
// Several takers may come at once and queue for their numbers: ctx bounds that time.
func (s *Slots) TryTake(ctx context.Context) (*Slot, error) { return s.take(ctx, false) }

// errOvertaken says that the free numbers have had later holders than the permit at hand.
var errOvertaken = errors.New("later holders have had the free numbers")

func (s *Slots) take(ctx context.Context, wait bool) (*Slot, error) {
	if s.value.err != nil {
		return nil, s.value.failed("take", s.value.err)
	}
	for pause := newBackoff(s.value.client.opts.TTL); ; {
		slot, err := s.takeOnce(ctx, wait)
		passing := errors.Is(err, errOvertaken) || errors.Is(err, ErrLost)
		if err == nil || !wait || !passing || !pause.sleep(ctx, s.value.client.life) {
			return slot, err
		}
	}
}

// takeOnce gets a permit, reads the numbers meanwhile, and gives the permit a number.
func (s *Slots) takeOnce(ctx context.Context, wait bool) (*Slot, error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		Snapshot
		err error
	}
	read := make(chan result, 1)
	go func() {
		is, err := s.value.Get(reading)
		read <- result{is, err}
	}()
	permit, err := s.permit.acquire(ctx, ctx, wait)
	if err != nil {
		stop()
		<-read
		return nil, err
	}
	is := <-read
	slot := &Slot{Lease: permit}
	err = s.number(ctx, slot, is.Snapshot, is.err, wait)
	if lost := permit.Err(); lost != nil {
		err = errors.Join(err, s.value.failed("take", lost))
	}
	if err != nil {
		permit.Unlock(ctx) //nolint:errcheck // each heartbeat repeats a release that the store did not confirm
		return nil, err
	}
	return slot, nil
}

// number gives the permit a number. The first try uses the version that was read already.
func (s *Slots) number(ctx context.Context, slot *Slot, is Snapshot, err error, wait bool) error {
	work, stop := slot.Within(ctx)
	defer stop()
	v := *s.value
	v.again = wait // a token has one number, however often the request is repeated
	var ended endedTokens
	assign := func(is Snapshot) ([]byte, error) { return s.assign(work, is, slot, &ended) }
	if err == nil {
		_, err = v.updateAt(work, is, assign)
	}
	if errors.Is(err, ErrConflict) || wait && errors.Is(err, ErrUnavailable) {
		_, err = v.tryUpdate(work, assign, 1)
	}
	if errors.Is(err, ErrConflict) {
		_, err = v.queueUpdate(work, assign)
	}
	return err
}

// assign is the step that gives the permit a number, see slotTokens. The taker reads the claims again only
// when the tokens that are known to have ended leave no number free. Each read costs the store as much
// as there are claims.
func (s *Slots) assign(ctx context.Context, is Snapshot, slot *Slot, ended *endedTokens) ([]byte, error) {
	last, err := parseSlots(is)
	if err != nil {
		return nil, s.value.failed("take", err)
	}
	if at := slices.Index(last, slot.token); at >= 0 { // the reply was lost
		slot.number = at
		return nil, ErrUnchanged
	}
	n, known := int(s.permit.spec.Capacity), *ended != nil
	if known {
		slot.number, err = last.choose(*ended, slot.token, n, s.prefer)
	}
	if !known || err != nil {
		r, err := s.value.client.claims(ctx, s.permit.name)
		if err != nil {
			return nil, s.value.failed("take", err)
		}
		*ended = last.ended(r.Claims)
		if slot.number, err = last.choose(*ended, slot.token, n, s.prefer); err != nil {
			return nil, s.value.failed("take", err)
		}
	}
	for len(last) <= slot.number {
		last = append(last, 0)
	}
	last[slot.number] = slot.token
	return last.data(), nil
}

// endedTokens are tokens whose permits have ended. A token never returns, so the set only grows.
type endedTokens map[fence.Token]bool

// ended returns the tokens that no claim has. The client reads the numbers before the claims. Each permit
// with a number was granted before that read, so a token without a claim has ended.
func (last slotTokens) ended(claims []engine.ClaimInfo) endedTokens {
	ended := make(endedTokens, len(last)+1)
	for _, token := range last {
		ended[token] = true
	}
	for _, c := range claims {
		delete(ended, c.Token)
	}
	ended[0] = true // of a number that nobody has had
	return ended
}

// slotTokens has the token of the last holder of each number, also of a holder that has left. The
// next holder of the number needs a larger token. A number is free when the permit with that token
// has ended.
type slotTokens []fence.Token

// choose returns a number that is free for a permit with this token: the preferred number, else the
// smallest.
func (last slotTokens) choose(ended endedTokens, token fence.Token, n, prefer int) (int, error) {
	overtaken := false
	usable := func(number int) bool {
		if number >= len(last) {
			return true
		}
		free := ended[last[number]]
		overtaken = overtaken || free && last[number] > token
		return free && last[number] < token
	}
	if prefer >= 0 && usable(prefer) {
		return prefer, nil
	}
	for number := range n {
		if usable(number) {
			return number, nil
		}
	}
	if overtaken {
		return 0, fmt.Errorf("%w: %w", ErrNotAcquired, errOvertaken)
	}
	return 0, fmt.Errorf("%w: %w: the store shows a holder of each number, beside the permit at hand", ErrNotAcquired, ErrConflict)
}

// slotsFormat begins the stored tokens.
const slotsFormat = 1

func (last slotTokens) data() []byte {
	data := []byte{slotsFormat}
	for _, token := range last {
		data = binary.AppendUvarint(data, uint64(token))
	}
	return data
}

func parseSlots(is Snapshot) (last slotTokens, err error) {
	if is.Number == 0 {
		return nil, nil
	}
	wrong := fmt.Errorf("%w: the value in the store has no slots", ErrMismatch)
	if len(is.Data) == 0 || is.Data[0] != slotsFormat {
		return nil, wrong
	}
	for data := is.Data[1:]; len(data) > 0; {
		token, size := binary.Uvarint(data)
		if size <= 0 || len(last) == maxSlots {
			return nil, wrong
		}
		last, data = append(last, fence.Token(token)), data[size:]
	}
	return last, nil
}
