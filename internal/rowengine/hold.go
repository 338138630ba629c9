package rowengine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/bounded"
	"github.com/pawl-go/pawl/internal/turn"
)

// hold is a connection that holds or awaits a lock, with the claims that share
// it: those of one owner.
type hold struct {
	session *session
	request Request

	turn  turn.Turn // of the call that uses what follows
	conn  Conn      // nil: none
	after time.Time // before it nothing is given out
	doubt bool      // a connection was lost: the server may still have its lock, or its wait

	// Guarded by session.mu.
	grant     engine.Grant
	claims    map[string]struct{}     // that have not left
	interrupt context.CancelCauseFunc // ends the Await under way
}

// enter asks for the lock on a new connection, or on the one it has. enter keeps a
// connection that is of use.
func (h *hold) enter(ctx context.Context) (engine.Grant, error) {
	if h.conn == nil {
		if err := h.session.engine.take(); err != nil {
			return engine.Grant{}, err
		}
		conn, err := h.session.engine.store.Connect(ctx)
		if err != nil {
			h.session.engine.taken.Add(-1)
			h.session.trouble.Store(true)
			return engine.Grant{}, fmt.Errorf("take a connection, of which each lock that is held or waited for needs its own: %w", err)
		}
		h.conn = conn
	}
	return h.settle(ctx, h.conn.Enter)
}

// settle makes a request and looks what came of it.
func (h *hold) settle(ctx context.Context, ask func(context.Context, *Request) (Answer, error)) (engine.Grant, error) {
	got, err := ask(ctx, &h.request)
	h.session.trouble.Store(err != nil)
	switch {
	case err != nil:
		h.destroy()
		return engine.Grant{}, err
	case got.Grace > 0:
		h.after = time.Now().Add(got.Grace)
	case got.Token != 0:
		return engine.Grant{Token: got.Token}, nil
	case h.request.Wait:
		return engine.Grant{}, nil
	}
	return engine.Grant{}, h.free(ctx)
}

// await waits until the lock is granted, after an enter that did not get it.
func (h *hold) await(ctx context.Context) (grant engine.Grant, err error) {
	for entered := true; err == nil && !grant.Held(); {
		if err := turn.Pause(ctx, time.Until(h.after)); err != nil {
			return engine.Grant{}, err
		}
		if entered = entered && h.conn != nil; entered {
			// The server answers within a TTL, if only to say nothing.
			bound, cancel := context.WithTimeout(ctx, 2*h.request.TTL)
			grant, err = h.settle(bound, h.conn.Wait)
			cancel()
		} else {
			grant, err = h.enter(ctx)
		}
		entered = !entered
	}
	return grant, err
}

// free ends the transaction.
func (h *hold) free(ctx context.Context) error {
	if h.conn == nil {
		return nil
	}
	err := h.conn.Free(ctx)
	h.conn = nil
	h.session.engine.taken.Add(-1)
	h.doubt = h.doubt || err != nil && !errors.Is(err, ErrEnded)
	return err
}

// release ends the transaction, and what the server may still have of a
// connection that was lost.
func (h *hold) release(ctx context.Context) error {
	err := h.free(ctx)
	if h.doubt && (err == nil || errors.Is(err, ErrEnded)) {
		if _, lost := h.session.engine.evict(ctx, h.request.Resource, h.request.ID, 0); lost != nil {
			return lost
		}
	}
	return err
}

func (h *hold) destroy() {
	if h.conn != nil {
		h.conn.Destroy()
		h.conn, h.doubt = nil, true
		h.session.engine.taken.Add(-1)
	}
}

// ping finds out whether the hold still stands. ping goes on when ctx has ended, because to give up
// would destroy the connection, and so the lock. A network that stands still for less than the TTL
// loses nothing.
func (h *hold) ping(ctx context.Context) (stands bool, err error) {
	return bounded.Call(ctx, func() (bool, error) {
		if err := h.turn.Take(ctx); err != nil {
			return false, err
		}
		defer h.turn.Give() // before that the end of the session leaves the connection alone
		if h.session.life.Err() != nil {
			return false, engine.ErrGone
		}
		bound, cancel := context.WithTimeout(h.session.life, h.request.TTL)
		defer cancel()
		if h.conn != nil && h.conn.Ping(bound) != nil {
			h.destroy()
		}
		return h.conn != nil, nil
	}, nil)
}

// dead looks whether the connection has ended, unless it is in use.
func (h *hold) dead() bool {
	if !h.turn.TryTake() {
		return false
	}
	defer h.turn.Give()
	return h.conn == nil || !h.conn.Alive()
}
