package sqlengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/internal/turn"
)

// Embedded is the special part of a database inside the process.
type Embedded interface {
	// Ready reports whether nothing is missing and no session has to end, so that Migrate need not be
	// called. Ready only reads. Ready is called again after Migrate.
	Ready(ctx context.Context, db *sql.DB) (bool, error)

	// Migrate creates the missing parts. Migrate is called at most once, before all else.
	Migrate(ctx context.Context, tx *sql.Tx) error

	// Turn waits until this process may write, in the order of the processes that ask. The caller
	// ends that by end. Turn is called by one goroutine at a time. Turn spares processes the fight for
	// the database, which excludes them in any case.
	Turn(ctx context.Context) (end func(), err error)

	// Now is the time, in µs on the store's clock. A session that was renewed after latest was so on
	// another clock, that of an earlier run of the machine, and has ended.
	Now() (now, latest int64)

	// Flush has the later transactions of a connection of db wait until they survive a loss
	// of power, or no longer.
	Flush(ctx context.Context, conn *sql.Conn, on bool) error

	// Again reports whether err only says that others were in the way.
	Again(err error) bool

	// Listen receives what other processes post to a session, until stop is
	// called. Listen returns nil where nothing arrives: then waiters poll.
	Listen(session string, receive func(Message)) (stop func())

	// Post sends a message to another process. The message may be lost.
	Post(m Message)

	// Forget removes what Listen may have left of a session of any process.
	Forget(session string)
}

// transactions is the store whose verbs are transactions.
type transactions struct {
	db      *sql.DB // of one connection; it writes
	reads   *sql.DB
	dialect Embedded
	stmts   map[string]*sql.Stmt // of db, by its text; does not change
	receive func(Message) bool
	deaf    atomic.Int64 // sessions where messages of others do not arrive

	// The way to the connection that writes is for one at a time. Renewals go
	// there at once, all else one by one: so a renewal has few before it, however
	// many requests are under way.
	queue, way turn.Turn
}

// New prepares a database inside the process, which has the tables pawl_meta (last: the token or
// version given out last), pawl_sessions, pawl_claims and pawl_values. One handle is for what
// writes, the other for what only reads. The caller closes both after the Engine.
func New(ctx context.Context, db, reads *sql.DB, dialect Embedded, minTTL time.Duration) (*Engine, error) {
	e := newEngine(minTTL)
	s := &transactions{
		db: db, reads: reads, dialect: dialect, stmts: make(map[string]*sql.Stmt), receive: func(m Message) bool { return Receive(e, m) },
		queue: turn.New(1), way: turn.New(1),
	}
	e.store = s
	var ready bool
	look := func() (err error) { ready, err = dialect.Ready(ctx, db); return err }
	err := retry(ctx, "open", dialect.Again, look)
	if err == nil && !ready {
		err = s.run(ctx, "open", ordinary, func(t *tx) { t.err = dialect.Migrate(ctx, t.Tx) })
		if err == nil {
			err = retry(ctx, "open", dialect.Again, look)
		}
	}
	if err != nil {
		return nil, err
	}
	for _, query := range statements {
		stmt, err := db.PrepareContext(ctx, query)
		if err != nil {
			return nil, engine.Unavailable("open", errors.Join(err, e.Close()))
		}
		s.stmts[query] = stmt
	}
	if !ready {
		if err := s.transact(ctx, "open", "", ordinary, func(*tx) {}); err != nil { // ends the dead sessions
			return nil, errors.Join(err, e.Close())
		}
	}
	e.asking.Go(e.ask)
	return e, nil
}

func (s *transactions) close() (err error) {
	for _, stmt := range s.stmts {
		err = errors.Join(err, stmt.Close())
	}
	return err
}

func (s *transactions) listen(session string) (stop func()) {
	if stop = s.dialect.Listen(session, func(m Message) { s.receive(m) }); stop == nil {
		s.deaf.Add(1)
		stop = func() { s.deaf.Add(-1) }
	}
	return sync.OnceFunc(stop)
}

func (s *transactions) told() (bool, time.Duration) { return s.deaf.Load() == 0, pollEvery }

// news is about all that these sessions have or wait for.
func (s *transactions) news(ctx context.Context, sessions []string, _ bool) (answers map[string]news, err error) {
	err = s.read(ctx, "ask", func(t *tx) {
		answers = make(map[string]news)
		for _, session := range sessions {
			t.each(claimsOf, args{session}, func(scan func(...any)) {
				var id string
				var is news
				scan(&id, &is.token)
				answers[id] = is
			})
		}
	})
	return answers, err
}

func (s *transactions) open(ctx context.Context, session string, opts engine.SessionOptions) error {
	ttl := opts.TTL.Microseconds()
	return s.transact(ctx, "open session", "", ordinary, func(t *tx) {
		t.exec(insertSession, session, t.now+ttl, ttl, opts.Label)
	})
}

func (s *transactions) step(ctx context.Context, verb, session, resource string, r queue.Request) (engine.Grant, time.Duration, error) {
	var out queue.Outcome
	var now int64
	err := s.transact(ctx, verb, session, ordinary, func(t *tx) {
		if now = t.now; r.Op == queue.Enter && t.ends <= now {
			t.answer = fmt.Errorf("session: %w", engine.ErrGone)
			return
		}
		out = t.apply(resource, r)
		t.answer = out.Err
	})
	if err != nil {
		return engine.Grant{}, 0, err
	}
	return engine.Grant{Token: out.Token}, time.Duration(max(out.Next-now, 0)) * time.Microsecond, nil
}

func (s *transactions) renew(ctx context.Context, session string) (held []claimed, err error) {
	err = s.transact(ctx, "renew session", session, urgent, func(t *tx) {
		if t.ends <= t.now {
			t.answer = engine.ErrGone
			return
		}
		t.exec(renewSession, t.now, session)
		held = nil
		t.each(heldBy, args{session}, func(scan func(...any)) {
			var c claimed
			scan(&c.resource, &c.id)
			held = append(held, c)
		})
	})
	return held, err
}

func (s *transactions) end(ctx context.Context, session string) error {
	err := s.transact(ctx, "close session", session, ordinary, func(t *tx) { t.bury(session) })
	s.dialect.Forget(session)
	return err
}

func (s *transactions) list(ctx context.Context, prefix string) (names []string, err error) {
	err = s.read(ctx, "list", func(t *tx) {
		// The byte 0xFF is in no UTF-8: it ends the range of the prefix.
		names = t.strings(listResources, prefix, prefix+"\xff", t.now)
	})
	return names, err
}

func (s *transactions) listValues(ctx context.Context, prefix string) (names []string, err error) {
	err = s.read(ctx, "list", func(t *tx) { names = t.strings(listValues, prefix, prefix+"\xff") })
	return names, err
}

func (s *transactions) Show(ctx context.Context, name string) (r engine.Resource, err error) {
	err = s.read(ctx, "show", func(t *tx) { r = t.load(name, everything).show(name, t.now) })
	return r, err
}

func (s *transactions) Get(ctx context.Context, key string) (v engine.Value, err error) {
	err = s.read(ctx, "get", func(t *tx) {
		v = engine.Value{}
		t.get(readValue, args{key}, &v.Data, &v.Version)
	})
	return v, err
}

// Put waits for the disk, because a value means something to later processes also. Nobody
// reads the value before.
func (s *transactions) Put(ctx context.Context, key string, data []byte, version uint64) (written uint64, err error) {
	err = s.transact(ctx, "put", "", lasting, func(t *tx) {
		var is engine.Value
		t.get(readValue, args{key}, &is.Data, &is.Version)
		if is.Version != version {
			t.answer = otherVersion(is.Version, version)
			return
		}
		t.exec(deleteValue, key)
		if data != nil {
			t.last = t.mint()
			written = uint64(t.last)
			t.exec(insertValue, key, t.last, data)
		}
	})
	return written, err
}
