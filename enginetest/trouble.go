package enginetest

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/pawl-go/pawl/engine"
)

// spy remembers the id of the last session.
type spy struct {
	engine.Engine
	mu sync.Mutex
	id string
}

func (s *spy) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	session, err := s.Engine.Open(ctx, opts)
	if err == nil {
		s.mu.Lock()
		s.id = session.ID()
		s.mu.Unlock()
	}
	return session, err
}

func (s *spy) session() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// hanging returns eng with the troubles of a network. hanging is for a store without a network: the
// calls of one client meet the same trouble.
func hanging(eng engine.Engine) (engine.Engine, Network) {
	t := &trouble{Engine: eng, healed: make(chan struct{})}
	close(t.healed)
	return engine.Like(eng, t), Network{
		Freeze:        func() { t.set(frozen) },
		FreezeReplies: func() { t.set(noReplies) },
		Cut:           func() { t.set(cut) },
		Heal:          func() { t.set(none) },
	}
}

type kind int

const (
	none kind = iota
	frozen
	noReplies
	cut
)

type trouble struct {
	engine.Engine
	mu     sync.Mutex
	kind   kind
	healed chan struct{}
}

func (t *trouble) set(k kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kind != none {
		close(t.healed)
	}
	if t.kind = k; k != none {
		t.healed = make(chan struct{})
	}
}

var errTrouble = errors.New("connection lost")

// meet does a call under the present trouble. A call under way when the trouble begins meets the
// trouble too.
func (t *trouble) meet(ctx context.Context, call func(context.Context) error) error {
	t.mu.Lock()
	k, healed := t.kind, t.healed
	t.mu.Unlock()
	if k == none || k == noReplies {
		err := call(ctx)
		t.mu.Lock()
		k, healed = t.kind, t.healed
		t.mu.Unlock()
		if k == none || ctx.Err() != nil {
			return err
		}
	}
	if k == cut {
		return engine.Unavailable("call", errTrouble)
	}
	select {
	case <-healed:
		return engine.Unavailable("call", errTrouble)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *trouble) Open(ctx context.Context, opts engine.SessionOptions) (s engine.Session, err error) {
	err = t.meet(ctx, func(ctx context.Context) (err error) { s, err = t.Engine.Open(ctx, opts); return err })
	if err != nil {
		return nil, err
	}
	return &troubled{s, t}, nil
}

func (t *trouble) Show(ctx context.Context, name string) (r engine.Resource, err error) {
	err = t.meet(ctx, func(ctx context.Context) (err error) { r, err = t.Engine.Show(ctx, name); return err })
	return r, err
}

func (t *trouble) Evict(ctx context.Context, resource, claim string) error {
	return t.meet(ctx, func(ctx context.Context) error { return t.Engine.Evict(ctx, resource, claim) })
}

func (t *trouble) Resize(ctx context.Context, name string, capacity int64) error {
	return t.meet(ctx, func(ctx context.Context) error { return t.Engine.(engine.Resizer).Resize(ctx, name, capacity) })
}

func (t *trouble) Get(ctx context.Context, key string) (v engine.Value, err error) {
	err = t.meet(ctx, func(ctx context.Context) (err error) { v, err = t.Engine.(engine.Values).Get(ctx, key); return err })
	return v, err
}

func (t *trouble) Put(ctx context.Context, key string, data []byte, version uint64) (written uint64, err error) {
	err = t.meet(ctx, func(ctx context.Context) (err error) {
		written, err = t.Engine.(engine.Values).Put(ctx, key, data, version)
		return err
	})
	return written, err
}

func (t *trouble) Watch(ctx context.Context, key string, version uint64) (v engine.Value, err error) {
	err = t.meet(ctx, func(ctx context.Context) (err error) {
		v, err = t.Engine.(engine.Values).Watch(ctx, key, version)
		return err
	})
	return v, err
}

func (t *trouble) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return t.Engine.(engine.Values).ListValues(ctx, prefix)
}

type troubled struct {
	engine.Session
	t *trouble
}

func (s *troubled) Enter(ctx context.Context, c *engine.Claim, wait bool) (g engine.Grant, err error) {
	err = s.t.meet(ctx, func(ctx context.Context) (err error) { g, err = s.Session.Enter(ctx, c, wait); return err })
	return g, err
}

func (s *troubled) Await(ctx context.Context, c *engine.Claim) (g engine.Grant, err error) {
	err = s.t.meet(ctx, func(ctx context.Context) (err error) { g, err = s.Session.Await(ctx, c); return err })
	return g, err
}

func (s *troubled) Leave(ctx context.Context, resource, claim string) error {
	return s.t.meet(ctx, func(ctx context.Context) error { return s.Session.Leave(ctx, resource, claim) })
}

func (s *troubled) Renew(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	err = s.t.meet(ctx, func(ctx context.Context) (err error) { gone, err = s.Session.Renew(ctx, held); return err })
	return gone, err
}

func (s *troubled) Close(ctx context.Context) error {
	return s.t.meet(ctx, s.Session.Close)
}
