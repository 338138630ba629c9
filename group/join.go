package group

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/fence"
)

// Membership is a member that stays in its group until [Membership.Leave]. When the client loses its session,
// the member joins again by itself, as soon as the store answers. All methods are safe for concurrent use.
type Membership struct {
	group  *Group
	cancel context.CancelFunc
	ended  chan struct{} // closed when the member stays no longer
	done   chan struct{} // closed when the goroutine of the membership has ended

	writing chan struct{} // of one place, which a call takes while it writes the page and changes is, unsure and tries
	unsure  bool          // nobody knows whether the last change was written
	tries   []uint64      // the tokens of joins that may have been written, though they failed

	mu    sync.Mutex // never while the store is asked
	is    Member
	lease *pawl.Lease // nil when the member has left
	err   error
}

// Join makes m a member of the group. When Join has returned, watchers learn of m at once. The same ID
// again replaces the member that has it: that member ends with [ErrReplaced]. A field out of its range is a
// [pawl.ErrInvalid], and a group without room an [ErrFull]. After an error m is no member, or ceases to be one
// within a TTL. ctx bounds the joining only.
func (g *Group) Join(ctx context.Context, m Member) (*Membership, error) {
	m, err := m.check()
	if err == nil {
		err = g.err
	}
	if err != nil {
		return nil, g.failed("join", err)
	}
	life, cancel := context.WithCancel(context.Background())
	is := &Membership{group: g, cancel: cancel, ended: make(chan struct{}), done: make(chan struct{}), writing: make(chan struct{}, 1), is: m}
	if err := is.enter(ctx, math.MaxUint64); err != nil {
		cancel()
		return nil, g.failed("join", err)
	}
	g.use()
	go is.keep(life)
	return is, nil
}

// enter takes the lock of the member and writes the member into its page. A member with the
// same ID and a larger token than most stays there. The lock comes first, so that an entry without a lock is dead.
func (m *Membership) enter(ctx context.Context, most uint64) error {
	lock := m.group.locks.Mutex(m.group.name + "/" + rand.Text())
	lease, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	err = m.alone(ctx, func() error {
		is := m.Member()
		if is.Token, err = m.group.ticket(ctx); err != nil {
			return err
		}
		if err = m.write(ctx, is, lease, most); err != nil {
			m.tries = append(m.tries, is.Token)
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.is, m.lease, m.unsure, m.tries = is, lease, false, nil
		return nil
	})
	if err != nil {
		lease.Unlock(ctx) //nolint:errcheck // the heartbeat tells the store again
	}
	return err
}

// alone writes the page of the member while no other call does. alone waits for that no longer than ctx, and then fails with the error
// of ctx alone, because nothing was changed. A free place is taken also after the end of ctx: the write knows what its error means.
func (m *Membership) alone(ctx context.Context, write func() error) error {
	select {
	case m.writing <- struct{}{}:
	default:
		select {
		case m.writing <- struct{}{}:
		case <-ctx.Done():
			err := ctx.Err()
			if cause := context.Cause(ctx); !errors.Is(cause, err) {
				err = fmt.Errorf("%w: %w", err, cause)
			}
			return fmt.Errorf("another change of the member has no answer yet: %w", err)
		}
	}
	defer func() { <-m.writing }()
	return write()
}

func (m *Membership) get() (Member, *pawl.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.is, m.lease
}

func (m *Membership) entry(is Member, lease *pawl.Lease) entry {
	return entry{is, lease.Name(), uint64(lease.Token()), m.group.client.TTL().Milliseconds()}
}

// write puts the member into its page, in place of an older member with its ID.
func (m *Membership) write(ctx context.Context, is Member, lease *pawl.Lease, most uint64) error {
	mine := m.entry(is, lease)
	var old entry
	err := m.group.changePage(ctx, pageOf(is.ID), func(p *pageValue) error {
		var changed bool
		var err error
		if p.Members, old, changed, err = place(p.Members, mine, most, m.tries); err == nil && !changed {
			err = pawl.ErrUnchanged
		}
		return err
	})
	if err == nil && old.Lock != "" { // that member learns at once; without this it learns within its TTL
		m.group.client.Break(ctx, old.Lock, pawl.BreakOptions{Token: fence.Token(old.Grant), Unnoted: true}) //nolint:errcheck // as said
	}
	return err
}

// keep joins again after a loss, and looks now and then whether the member still stands in its page.
func (m *Membership) keep(life context.Context) {
	defer close(m.done)
	unused := make(chan struct{})
	context.AfterFunc(life, func() { defer close(unused); m.group.unuse() }) // beside the rest: on a store that hangs each takes 100 ms
	defer func() { m.cancel(); <-unused }()
	defer close(m.ended)
	look := time.NewTicker(m.group.client.TTL())
	defer look.Stop()
	for {
		_, lease := m.get()
		var err error
		select {
		case <-life.Done():
			return
		case <-lease.Context().Done():
			err = m.group.client.Retry(life, 0, func() error { return m.enter(life, m.Member().Token) })
		case <-look.C:
			err = m.look(life, lease)
		}
		if errors.Is(err, ErrReplaced) || errors.Is(err, pawl.ErrClosed) {
			m.end(life, err)
			return
		}
		if err != nil && lease.Err() != nil { // such as a page that became full meanwhile
			select {
			case <-life.Done():
				return
			case <-look.C:
			}
		}
	}
}

// look writes the member again if the store has forgotten it, or its last change. A page that has the member contains its JSON.
// No page is parsed here, because pages are long and each member looks.
func (m *Membership) look(ctx context.Context, lease *pawl.Lease) error {
	return m.alone(ctx, func() error {
		is := m.Member()
		mine, err := json.Marshal(m.entry(is, lease))
		if err != nil {
			return err
		}
		page, err := m.group.pages[pageOf(is.ID)].Get(ctx)
		if err != nil || !m.unsure && bytes.Contains(page.Data, mine) {
			return err
		}
		if err = m.write(ctx, is, lease, is.Token); err == nil {
			m.unsure = false
		}
		return err
	})
}

// end notes why the member is no member any more.
func (m *Membership) end(life context.Context, err error) {
	m.mu.Lock()
	m.err = m.group.failed("stay", err)
	lease := m.lease
	m.mu.Unlock()
	lease.Unlock(life) //nolint:errcheck // the lock is lost, or ends with the session
}

// Member returns the member as it joined last.
func (m *Membership) Member() Member {
	is, _ := m.get()
	return is
}

// Ended returns a channel that is closed when the member stays no longer: after Leave, or for the reason of Err.
func (m *Membership) Ended() <-chan struct{} { return m.ended }

// Err returns the reason why the member stays no longer, without Leave. [ErrReplaced]: another member has joined with
// its ID. [pawl.ErrClosed]: the client was closed. Err returns nil otherwise, also while the store is away.
func (m *Membership) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Update changes the address, weight and meta of the member. The ID must be that of the member, or empty.
// If Update fails with [pawl.ErrUnavailable], the change may have been made, or is made within a TTL. If ctx ends while an
// earlier change of the member has no answer yet, Update changes nothing, and fails with the error of ctx only.
func (m *Membership) Update(ctx context.Context, to Member) error {
	id := m.Member().ID // for ever
	if to.ID == "" {
		to.ID = id
	}
	to, err := to.check()
	if err == nil && to.ID != id {
		err = fmt.Errorf("%w: Member.ID is %q: only %q is allowed, with which the member joined", pawl.ErrInvalid, to.ID, id)
	}
	if err == nil {
		err = m.alone(ctx, func() error { return m.change(ctx, to) })
	}
	if err != nil {
		return m.group.failed("update", err)
	}
	return nil
}

func (m *Membership) change(ctx context.Context, to Member) error {
	is, lease := m.get()
	err := m.Err()
	if err == nil && lease == nil {
		err = fmt.Errorf("%w: the member has left", pawl.ErrClosed)
	}
	if err != nil {
		return err
	}
	to.Token = is.Token
	err = m.write(ctx, to, lease, is.Token)
	if err == nil || errors.Is(err, pawl.ErrUnavailable) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.is, m.unsure = to, err != nil
	}
	return err
}

// Leave takes the member off the group. Watchers learn of that at once. If Leave fails, the member
// is gone one TTL later. A second Leave does nothing.
func (m *Membership) Leave(ctx context.Context) error {
	ends, end := pawl.Linger(ctx)
	defer end()
	m.cancel()
	defer func() { <-m.done }() // 100 ms from now at the latest
	<-m.ended
	m.mu.Lock()
	is, lease, err := m.is, m.lease, m.err
	m.lease = nil
	m.mu.Unlock()
	if err != nil || lease == nil {
		return nil
	}
	err = m.alone(ctx, func() error {
		return m.group.without(ctx, pageOf(is.ID), func(e entry) bool {
			return e.Lock == lease.Name() || e.ID == is.ID && slices.Contains(m.tries, e.Token)
		})
	})
	if gone := lease.Unlock(ends); err == nil && !errors.Is(gone, pawl.ErrLost) {
		err = gone
	}
	if err != nil {
		return m.group.failed("leave", err)
	}
	return nil
}
