package cas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// mark is the store's knowledge of itself.
type mark struct {
	Format string `json:"format"`
	Life   string `json:"life,omitempty"`   // of a store that may forget
	Over   bool   `json:"over,omitempty"`   // the restart grace of this life is over
	Base   int64  `json:"base,omitempty"`   // the number from which tokens start
	Belief int64  `json:"belief,omitempty"` // the longest belief of a session of any life, in µs
}

// life is an engine's knowledge of the store's life.
type life struct {
	name  string
	since time.Time // when the engine first saw this life
	over  bool
	base  int64 // that grants of this life have; 0 in the grace
	least int64 // the smallest base after the grace
}

// noBelief stands for an engine without sessions: such an engine must not end the grace.
const noBelief = time.Second

// forever is the life of a store that forgets nothing.
const forever = "forever"

// lifeName returns the name of the store's life.
func (e *Engine) lifeName(ctx context.Context) (string, error) {
	if f, is := e.store.(Forgetful); is {
		return f.Life(ctx)
	}
	return forever, nil
}

// alive returns the life of the store, and its restart grace if there is one. During the grace the
// store grants nothing. A client ends the grace after it has seen this life for as long as any holder
// may trust its lock. That client marks the grace as over for all clients.
func (e *Engine) alive(ctx context.Context) (life, engine.Grace, error) {
	name, err := e.lifeName(ctx)
	if err != nil {
		return life{}, engine.Grace{}, err
	}
	for {
		l, left, err := e.aged(ctx, name)
		if errors.Is(err, engine.ErrConflict) {
			continue // another client wrote the mark
		}
		grace := engine.Grace{}
		if err == nil && !l.over {
			grace = engine.Grace{Age: engine.Unknown, Left: left}
		}
		return l, grace, err
	}
}

// shownGrace returns the restart grace, and writes nothing: an operator begins no grace and ends none. Without a
// session, shownGrace cannot know how much is left, and tells the whole grace.
func (e *Engine) shownGrace(ctx context.Context) (engine.Grace, error) {
	name, err := e.lifeName(ctx)
	if err != nil {
		return engine.Grace{}, err
	}
	l, belief := e.believed(name)
	if l.over {
		return engine.Grace{}, nil
	}
	m, _, err := e.loadMark(ctx)
	left := m.grace(belief) - time.Since(l.since)
	switch {
	case err != nil:
		return engine.Grace{}, err
	case m.Life == name && m.Over:
		e.ended(l, m)
		return engine.Grace{}, nil
	case m.Life == name && belief > 0 && left <= 0: // the next step or heartbeat marks the end
		return engine.Grace{}, nil
	case belief == 0:
		left = m.grace(0)
	}
	return engine.Grace{Age: engine.Unknown, Left: max(left, time.Millisecond)}, nil
}

// believed returns what the engine knows of a life, and the longest time for which its holders may trust their locks. The time
// is zero once the grace is over, because no claim asks for it then.
func (e *Engine) believed(name string) (l life, belief time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.name != name {
		e.life = life{name: name, since: time.Now(), over: name == forever}
	}
	if e.life.over {
		return e.life, 0
	}
	for _, s := range e.sessions {
		belief = max(belief, s.opts.Belief())
	}
	return e.life, belief
}

// aged takes one step towards the end of the grace of a life. aged fails with [engine.ErrConflict]
// when another client took a step.
func (e *Engine) aged(ctx context.Context, name string) (life, time.Duration, error) {
	l, belief := e.believed(name)
	if l.over {
		return l, 0, nil
	}
	m, item, err := e.loadMark(ctx)
	if err != nil {
		return l, 0, err
	}
	left := m.grace(belief) - time.Since(l.since)
	l.least = m.Base
	switch {
	case m.Life != name:
		m.Life, m.Over, m.Belief = name, false, max(m.Belief, belief.Microseconds())
		if _, err := e.store.Swap(ctx, storeKey, m.encode(), item.Version); err != nil {
			return l, 0, err
		}
	case !m.Over && left <= 0 && belief > 0:
		m.Over, m.Base = true, max(m.Base, startOf(item))
		if _, err := e.store.Swap(ctx, storeKey, m.encode(), item.Version); err != nil {
			return l, 0, err
		}
	}
	if !m.Over {
		return l, max(left, time.Millisecond), nil
	}
	return e.ended(l, m), 0, nil
}

// ended notes that the grace of a life is over, as the mark says.
func (e *Engine) ended(l life, m mark) life {
	l.over, l.base, l.least = true, m.Base, m.Base
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.name == l.name {
		e.life = l
	}
	return l
}

// startOf is the number to add to versions, so that tokens begin at the time of the write.
func startOf(item Item) int64 { return max(0, item.Written-int64(item.Version)*tokensPerWrite) }

// grace is how long a life grants nothing to a client whose own holders believe for so long.
func (m mark) grace(belief time.Duration) time.Duration {
	return max(belief, noBelief, time.Duration(m.Belief)*time.Microsecond)
}

func (m mark) encode() []byte {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers can be encoded
	}
	return data
}

// loadMark returns the mark; without a mark it returns that of this version of pawl.
func (e *Engine) loadMark(ctx context.Context) (m mark, item Item, err error) {
	item, err = e.store.Load(ctx, storeKey)
	if err != nil || item.Version == 0 {
		return mark{Format: engine.Format()}, item, err
	}
	if err := json.Unmarshal(item.Data, &m); err != nil {
		return m, item, fmt.Errorf("%w: the mark of pawl in the store cannot be read: %w", engine.ErrUnsupported, err)
	}
	return m, item, engine.CheckFormat(m.Format)
}

// checkFormat refuses a store of another format. If the caller is about to write, checkFormat marks a
// store that nobody has used. The mark also tells that the grace of this life is over. In the mark of a store
// that may forget, checkFormat notes the belief of a session that is about to open.
func (e *Engine) checkFormat(ctx context.Context, writes bool, belief time.Duration) error {
	name, err := e.lifeName(ctx)
	if err != nil {
		return err
	}
	for {
		m, item, err := e.loadMark(ctx)
		longer := name != forever && m.Belief < belief.Microseconds()
		if longer {
			m.Belief = belief.Microseconds()
		}
		if err == nil && (longer || item.Version == 0 && writes) {
			_, err = e.store.Swap(ctx, storeKey, m.encode(), item.Version)
			item.Version++
		}
		if errors.Is(err, engine.ErrConflict) {
			continue // another client wrote the mark
		}
		if err != nil || item.Version == 0 {
			return err
		}
		l, _ := e.believed(name)
		if m.Life == name && m.Over {
			e.ended(l, m)
		}
		e.ours.Store(&name)
		return nil
	}
}

// knowFormat is checkFormat for a verb that needs no session. knowFormat reads the mark until there is
// one, because the mark stays as long as the life of the store.
func (e *Engine) knowFormat(ctx context.Context, writes bool) error {
	name, err := e.lifeName(ctx)
	if ours := e.ours.Load(); err != nil || ours != nil && *ours == name {
		return err
	}
	return e.checkFormat(ctx, writes, 0)
}

// Init marks a store that may forget as new, so that the first lock is granted without a restart
// grace. The caller has to know that the store is new: a store that did forget then has two
// holders. Init fails with [engine.ErrUsed] after another Init, and after the first session. Values may be there
// already, because no lock needs them. Init does nothing to a store that does not forget.
func (e *Engine) Init(ctx context.Context) error {
	name, err := e.lifeName(ctx)
	if err == nil && name != forever {
		err = e.begin(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("init: %w", err)
	}
	return nil
}

// begin begins the first life of a store, in two writes: the second one needs the time of the first one.
func (e *Engine) begin(ctx context.Context, name string) error {
	m, item, err := e.loadMark(ctx)
	if err != nil {
		return err
	}
	err = engine.ErrConflict
	if m.Life == "" {
		m.Life = name
		_, err = e.store.Swap(ctx, storeKey, m.encode(), item.Version)
	}
	if err == nil {
		if m, item, err = e.loadMark(ctx); err == nil {
			m.Over, m.Base = true, startOf(item)
			_, err = e.store.Swap(ctx, storeKey, m.encode(), item.Version)
		}
	}
	if errors.Is(err, engine.ErrConflict) {
		return fmt.Errorf("the store has the mark of an earlier init or session: %w", engine.ErrUsed)
	}
	return err
}
