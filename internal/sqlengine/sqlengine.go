// Package sqlengine is the store in tables of an SQL database.
//
// The parts that all databases share are here: sessions, waiters, messages to them, and reads. A
// verb is done in one of two ways. In a database inside the process ([New]) a verb is one
// transaction. The engine loads the claims of the resource, lets package queue decide, and writes the
// difference. In a server ([NewServer]) that would take a round trip for each statement. There a
// verb is one call of a procedure, which repeats the rules of package queue; see rules.sql.
//
// The tables, in a form that each database has of its own:
//
//	sessions id ends ttl label             times in µs on the store's clock
//	claims   resource place session id owner label weight token since granted kind capacity barging waits
//	values   name version data
//
// The claims of a server have more columns: news and slot, by which a step finds them, and the sum
// held; see rules.sql.
//
// Waiters are told, and do not rely on that. Once a heartbeat one query asks for all waiters of
// this Engine, and more often while messages do not arrive. One waiter of a session and resource
// looks for the others, with a step, when a claim that blocks them can have died.
//
// A claim carries the spec of its resource, on which all claims of a resource agree. So a resource
// needs no row of its own, which each hold would write twice.
package sqlengine

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/names"
	"github.com/pawl-go/pawl/internal/turn"
)

// pollEvery is how often to read what nothing tells of.
const pollEvery = 250 * time.Millisecond

// store does the verbs, each atomically, on the clock of the database.
type store interface {
	open(ctx context.Context, session string, opts engine.SessionOptions) error
	// step returns what the claim has got, and for how long it may wait before it
	// looks: 0 is as long as it likes.
	step(ctx context.Context, verb, session, resource string, r queue.Request) (engine.Grant, time.Duration, error)
	renew(ctx context.Context, session string) (held []claimed, err error)
	end(ctx context.Context, session string) error
	list(ctx context.Context, prefix string) ([]string, error)
	listValues(ctx context.Context, prefix string) ([]string, error)
	close() error

	// These are methods of the Engine as they are.
	Show(ctx context.Context, name string) (engine.Resource, error)
	Get(ctx context.Context, key string) (engine.Value, error)
	Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error)

	// listen makes a session be told, until stop is called.
	listen(session string) (stop func())
	// news tells of claims of these sessions that have waited and of which there is something new.
	// With all it tells of every claim that has waited or waits.
	news(ctx context.Context, sessions []string, all bool) (map[string]news, error)
	// told reports whether messages arrive at the moment, and else how often to
	// ask for news.
	told() (bool, time.Duration)
}

// claimed is a claim that is granted in the store.
type claimed struct{ resource, id string }

// news is what became of a claim.
type news struct {
	token fence.Token
	look  bool // it is to try
}

// Message tells a session of one of its claims. A Message is a hint: the claim in the
// database counts.
type Message struct {
	Session, Claim string
	Token          fence.Token // of the grant; 0: the claim is to be looked at
	Gone           bool        // it was held, and another took it away
}

// Engine is the store in one database. Create it with [New] or [NewServer].
type Engine struct {
	store
	minTTL   time.Duration
	sessions sync.Map // those of this Engine: id → *session

	life   context.Context
	stop   context.CancelFunc
	asking sync.WaitGroup
	count  atomic.Int64 // how many claims are awaited
	wake   turn.Bell    // there is one
	next   turn.Bell    // ask for news now
	full   turn.Bell    // ask for all now
}

func newEngine(minTTL time.Duration) *Engine {
	e := &Engine{minTTL: minTTL, wake: make(turn.Bell, 1), next: make(turn.Bell, 1), full: make(turn.Bell, 1)}
	e.life, e.stop = context.WithCancel(context.Background())
	return e
}

// Receive tells a session of an Engine, and reports whether it is one. Receive and Ask are no
// methods, because those would be methods of the engines that users see.
func Receive(e *Engine, m Message) bool {
	known, ok := e.sessions.Load(m.Session)
	if !ok {
		return false
	}
	known.(*session).inbox.Receive(m.Claim, m.Token, m.Gone)
	return true
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return names.Of(func() ([]string, error) { return e.store.list(ctx, prefix) })
}

// ListValues implements [engine.Values].
func (e *Engine) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return names.Of(func() ([]string, error) { return e.store.listValues(ctx, prefix) })
}

// Evict implements [engine.Engine].
func (e *Engine) Evict(ctx context.Context, resource, claim string) error {
	_, _, err := e.store.step(ctx, "evict", "", resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}})
	return err
}

// Resize implements [engine.Resizer].
func (e *Engine) Resize(ctx context.Context, name string, capacity int64) error {
	_, _, err := e.store.step(ctx, "resize", "", name, queue.Request{Op: queue.Resize, Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: capacity}})
	return err
}

// otherVersion is the error of a Put at a version that is not there.
func otherVersion(is, want uint64) error {
	return fmt.Errorf("version is %d, not %d: %w", is, want, engine.ErrConflict)
}

// Watch implements [engine.Values]. Watch polls, because the store does not know its watchers.
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	for {
		v, err := e.Get(ctx, key)
		if err != nil || v.Version != version {
			return v, err
		}
		if err := turn.Pause(ctx, pollEvery); err != nil {
			return engine.Value{}, err
		}
	}
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	e.stop()
	e.asking.Wait()
	for _, s := range e.sessions.Range { // that nobody closed
		s.(*session).stop()
	}
	return e.store.close()
}
