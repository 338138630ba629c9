package pawl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
)

// Member is a party that joined a [Barrier]: a member takes part in all generations until it
// leaves. If a member dies, also between two waits, the barrier breaks for waiting and arriving
// parties. Those parties learn of its death within its TTL and a third of theirs. If many parties die
// at once, that may take longer, see [Barrier].
type Member struct {
	barrier *Barrier
	present *Lease // while it is held, the member lives
	name    string // in the barrier
	waits   atomic.Uint64
}

// Join makes the caller a member, which waits by [Member.Wait] and must leave in the end. Join
// fails with [ErrNotAcquired] when as many members have joined as there are parties. A dead member
// makes room, and has broken the barrier.
func (b *Barrier) Join(ctx context.Context) (*Member, error) {
	if b.value.err != nil {
		return nil, b.value.failed("join", b.value.err)
	}
	present, err := b.present.Lock(ctx)
	if err != nil {
		return nil, err
	}
	m := &Member{barrier: b, present: present}
	work, stop := present.Within(ctx)
	defer stop()
	if err = b.update(work, "join", func(s *barrierState) error { return m.join(work, s) }); err != nil {
		present.Unlock(ctx) //nolint:errcheck // without it the member is dead, if it joined at all
		return nil, err
	}
	return m, nil
}

// join is the step that makes a member.
func (m *Member) join(ctx context.Context, s *barrierState) error {
	for name, claim := range s.Members {
		if claim == m.present.claim.ID { // the reply was lost
			m.name = name
			return ErrUnchanged
		}
	}
	if len(s.Members) >= m.barrier.parties {
		dead, err := m.barrier.dead(ctx, s)
		switch {
		case err != nil:
			return err
		case !dead:
			return fmt.Errorf("%w: all %d parties have joined", ErrNotAcquired, m.barrier.parties)
		}
		s.Broken = true
	}
	s.Joined++
	m.name = strconv.FormatUint(s.Joined, 36)
	if s.Members == nil {
		s.Members = make(map[string]string)
	}
	s.Members[m.name] = m.present.claim.ID
	return nil
}

// Wait is [Barrier.Wait] of this member; a member makes one call at a time. Wait fails with
// [ErrLost] when the session of the member has ended. The other parties take that member for dead,
// and the caller may join again. After Leave, Wait fails with [ErrClosed].
func (m *Member) Wait(ctx context.Context) (index int, err error) {
	if err := m.present.Err(); err != nil {
		return 0, m.barrier.value.failed("wait", err)
	}
	id := m.name + "#" + strconv.FormatUint(m.waits.Add(1), 36)
	return m.barrier.wait(ctx, m.present, id)
}

// Leave ends the membership: the death of the former member then breaks nothing. If a Wait of the
// member is under way, the member gives up. If a client is closed before its member leaves, that
// member looks dead to the others. As Unlock, Leave works after ctx ended. After [ErrUnavailable]
// the member is dead for the others.
func (m *Member) Leave(ctx context.Context) error {
	ends, cancel := Linger(ctx)
	defer cancel()
	work, stop := m.present.Within(ends)
	defer stop()
	err := m.barrier.update(work, "leave", func(s *barrierState) error {
		if _, is := s.Members[m.name]; !is {
			return ErrUnchanged
		}
		delete(s.Members, m.name)
		return nil
	})
	if errors.Is(m.present.Err(), ErrClosed) { // it has left before
		return nil
	}
	return errors.Join(err, m.present.unlockBy(ctx, ends))
}
