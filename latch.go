package pawl

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// MaxLatchParties is how many parties a [Latch] can count.
const MaxLatchParties = 8000

// Latch opens when a number of parties have counted down, and stays open until a reset. A latch
// needs a store that keeps versioned values; one small value stays there until Reset. A Latch is a
// description, as [Mutex] is.
type Latch struct {
	value *Value
	count int
}

// Latch returns the latch of this name for count parties, 1 to [MaxLatchParties]. If users of a
// name declare different numbers, calls fail with [ErrMismatch]. Before the first party counts
// down, the store has nothing of the latch, and the latch is closed. See [Client.Mutex] for names.
func (c *Client) Latch(name string, count int) *Latch {
	l := &Latch{newValue(c, "latch", name).Idempotent(), count} // a party counts once, however often its request is repeated
	if l.value.err == nil && (count < 1 || count > MaxLatchParties) {
		l.value.err = invalid("count is %d: 1 to %d are allowed", count, MaxLatchParties)
	}
	return l
}

// latchState is the stored state: the number of parties, then the hashes of the parties that
// counted down. An open latch has no hashes.
type latchState struct {
	count   int
	open    bool
	parties [][8]byte
}

func (l *Latch) parse(v Snapshot) (s latchState, err error) {
	if v.Number == 0 {
		return latchState{count: l.count}, nil
	}
	count, n := binary.Uvarint(v.Data)
	if n <= 0 || (len(v.Data)-n)%8 != 0 {
		return s, fmt.Errorf("%w: the value in the store is no latch", ErrMismatch)
	}
	for hash := range slices.Chunk(v.Data[n:], 8) {
		s.parties = append(s.parties, [8]byte(hash))
	}
	s.count, s.open = int(count), len(s.parties) == 0 //nolint:gosec // it was an int
	if s.count != l.count {
		err = fmt.Errorf("%w: it counts %d parties, not %d", ErrMismatch, s.count, l.count)
	}
	return s, err
}

func (s latchState) data() []byte {
	data := binary.AppendUvarint(nil, uint64(s.count)) //nolint:gosec // it is positive
	for _, hash := range s.parties {
		data = append(data, hash[:]...)
	}
	return data
}

// CountDown counts a party once. A party that did not hear the reply may call CountDown again: the
// repetition changes nothing. The names of parties follow the rules of names and are told apart by
// 64 bits of their hash. [ErrUnavailable] says that the store did not answer for a whole TTL. Then
// nobody knows whether the party was counted: call CountDown again.
func (l *Latch) CountDown(ctx context.Context, party string) error {
	if err := checkText("party", party); err != nil {
		return l.value.failed("count down", err)
	}
	sum := sha256.Sum256([]byte(party))
	hash := [8]byte(sum[:8])
	_, err := l.value.Update(ctx, func(v Snapshot) ([]byte, error) {
		s, err := l.parse(v)
		if err != nil {
			return nil, l.value.failed("count down", err)
		}
		if s.open || slices.Contains(s.parties, hash) {
			return nil, ErrUnchanged
		}
		if s.parties = append(s.parties, hash); len(s.parties) == s.count {
			s.parties = nil
		}
		return s.data(), nil
	})
	return err
}

// Count returns how many parties are still missing; 0 says that the latch is open.
func (l *Latch) Count(ctx context.Context) (int, error) {
	v, err := l.value.Get(ctx)
	if err != nil {
		return 0, err
	}
	s, err := l.parse(v)
	switch {
	case err != nil:
		return 0, l.value.failed("count", err)
	case s.open:
		return 0, nil
	}
	return s.count - len(s.parties), nil
}

// Wait returns nil once the latch is open, and an error that matches that of ctx if ctx ends
// before. Wait retries while the store is away. Wait may miss an opening that a reset soon follows:
// then it waits on.
func (l *Latch) Wait(ctx context.Context) error {
	for v, err := range l.value.Watch(ctx) {
		if err != nil {
			return err
		}
		switch s, err := l.parse(v); {
		case err != nil:
			return l.value.failed("wait", err)
		case s.open:
			return nil
		}
	}
	return l.value.failed("wait", ctx.Err())
}

// Reset closes the latch: nobody has counted down. Nothing of the latch stays in the store. Waiting
// parties wait on.
func (l *Latch) Reset(ctx context.Context) error {
	_, err := l.value.Update(ctx, func(v Snapshot) ([]byte, error) {
		if v.Number == 0 {
			return nil, ErrUnchanged
		}
		return nil, nil
	})
	return err
}
