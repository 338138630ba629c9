package pawl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
)

// Member is a party that joined a [Barrier]: it takes part in all generations until it
// leaves. If it dies, also between two waits, the barrier breaks for those that wait
// or come: they are told within its TTL and a third of theirs.
type Member struct {
	barrier *Barrier
	present *Lease // while it is held, the member lives
	name    string // in the barrier
	waits   atomic.Uint64
}

// Join makes the caller a member, which waits by [Member.Wait] and is to leave in the end. It fails
// with [ErrNotAcquired] when as many have joined as there are parties. One of them
// that died makes room, and has broken the barrier then.
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
			return errUnchanged
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

// Wait is [Barrier.Wait] of this member, one call at a time. It fails with [ErrLost]
// when the session of the member has ended, because the others know it as dead: it may
// join again. After Leave it fails with [ErrClosed].
func (m *Member) Wait(ctx context.Context) (index int, err error) {
	if err := m.present.Err(); err != nil {
		return 0, m.barrier.value.failed("wait", err)
	}
	id := m.name + "#" + strconv.FormatUint(m.waits.Add(1), 36)
	return m.barrier.wait(ctx, m.present, id)
}

// Leave says that the member takes part no more: that it ends then breaks nothing. One
// that waits meanwhile gives up. A client that is closed while it has a member that did
// not leave looks as if it had died. As Unlock, Leave works after ctx ended. After
// [ErrUnavailable] the member is dead for the others.
func (m *Member) Leave(ctx context.Context) error {
	ends, cancel := linger(context.WithoutCancel(ctx), ctx)
	defer cancel()
	work, stop := m.present.Within(ends)
	defer stop()
	err := m.barrier.update(work, "leave", func(s *barrierState) error {
		if _, is := s.Members[m.name]; !is {
			return errUnchanged
		}
		delete(s.Members, m.name)
		return nil
	})
	if errors.Is(m.present.Err(), ErrClosed) { // it has left before
		return nil
	}
	bound, end := join(m.present.session.round(), ends)
	defer end()
	return errors.Join(err, m.present.unlock(ctx, bound))
}
