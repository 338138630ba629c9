package sqlengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// askEvery is how often a process asks for all its waiters at once, while
// nothing tells them.
const askEvery = 50 * time.Millisecond

// Server is how a database server is reached whose routines do the verbs.
type Server struct {
	DB      *sql.DB
	Dialect Dialect
	MinTTL  time.Duration

	// Client is what the sessions of this Engine have in common, in the store.
	Client string

	// Prepare has statements prepared once for each connection, where the
	// driver does not do that itself.
	Prepare bool

	// Query, when set, asks in place of DB.
	Query func(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error

	// Args, when set, are put before those of each query: how it is asked.
	Args []any

	// Again reports whether err says that the server has undone the call.
	Again func(err error) bool

	// Listen, when set, is called before a session is opened: waiters are told
	// by Receive from now on. It returns at once when that is so already.
	Listen func(context.Context) error

	// Told, when set, reports whether messages arrive at the moment. When they
	// do not, the process asks for all its waiters at once.
	Told func() bool
}

// routines is the store whose verbs are procedures of a server.
type routines struct {
	Server
	engine  *Engine
	queries map[string]string
	stmts   map[string]*sql.Stmt // by the name of the query; does not change

	life   context.Context
	stop   context.CancelFunc
	asking sync.WaitGroup
	wake   chan struct{} // somebody waits
	count  atomic.Int64  // how many claims do
	next   chan struct{} // ask now
}

// NewServer returns the store in a server that has the tables and routines of
// [Rules] already. Who calls it closes the database after the Engine.
func NewServer(ctx context.Context, server Server) (*Engine, error) {
	d := server.Dialect
	s := &routines{Server: server, stmts: make(map[string]*sql.Stmt), wake: make(chan struct{}, 1), next: make(chan struct{}, 1), queries: map[string]string{
		"start": d.Call("start", 4), "step": d.Call("step", 11), "finish": d.Call("finish", 2), "put": d.Call("put", 4),
		"renew": d.CallRows("renew"),
	}}
	for _, name := range []string{"list", "show", "get", "waited"} {
		s.queries[name] = render(d, name)
	}
	e := &Engine{store: s, minTTL: server.MinTTL, waits: s.waits}
	s.engine = e
	s.life, s.stop = context.WithCancel(context.Background())
	if server.Prepare {
		for name, query := range s.queries {
			stmt, err := server.DB.PrepareContext(ctx, query)
			if err != nil {
				return nil, engine.Unavailable("open", errors.Join(err, e.Close()))
			}
			s.stmts[name] = stmt
		}
	}
	s.asking.Go(s.ask)
	return e, nil
}

func (s *routines) close() (err error) {
	s.stop()
	s.asking.Wait()
	for _, stmt := range s.stmts {
		err = errors.Join(err, stmt.Close())
	}
	return err
}

func (s *routines) listen(string) func() { return func() {} }

// query asks the server, again and again while it says that it did nothing,
// and hands over each row of the answer.
func (s *routines) query(ctx context.Context, verb, name string, row func(scan func(...any) error) error, args ...any) error {
	for {
		err := s.queryOnce(ctx, name, row, args)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !s.Again(err):
			return engine.Unavailable(verb, err)
		}
		time.Sleep(time.Millisecond) // the server has waited itself, unless it saw no use in it
	}
}

func (s *routines) queryOnce(ctx context.Context, name string, row func(scan func(...any) error) error, args []any) (err error) {
	args = slices.Concat(s.Args, args)
	if s.Query != nil {
		return s.Query(ctx, s.queries[name], args, row)
	}
	var rows *sql.Rows
	if stmt := s.stmts[name]; stmt != nil {
		rows, err = stmt.QueryContext(ctx, args...)
	} else {
		rows, err = s.DB.QueryContext(ctx, s.queries[name], args...)
	}
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = row(rows.Scan)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// call returns the one row that a procedure answers with.
func (s *routines) call(ctx context.Context, verb, name string, args []any, into ...any) error {
	answered := false
	err := s.query(ctx, verb, name, func(scan func(...any) error) error {
		answered = true
		return scan(into...)
	}, args...)
	if err == nil && !answered {
		return engine.Unavailable(verb, errors.New("no answer of the procedure"))
	}
	return err
}

func (s *routines) open(ctx context.Context, session string, opts engine.SessionOptions) error {
	if s.Listen != nil {
		if err := s.Listen(ctx); err != nil {
			return err
		}
	}
	var done int
	return s.call(ctx, "open session", "start", args{session, opts.TTL.Microseconds(), opts.Label, s.Client}, &done)
}

// The answers of the procedure step.
const (
	answerBusy = 1 + iota
	answerGone
	answerMismatch
	answerSessionGone
	answerGrace
)

var opNames = map[queue.Op]string{queue.Enter: "enter", queue.Leave: "leave", queue.Poll: "poll", queue.Resize: "resize"}

func (s *routines) step(ctx context.Context, verb, session, resource string, r queue.Request) (fence.Token, time.Duration, error) {
	var code, token, pause, barging int64
	var is engine.Spec
	c := r.Claim
	err := s.call(ctx, verb, "step", args{
		opNames[r.Op], session, resource, c.ID, c.Owner, c.Label, c.Weight, string(r.Spec.Kind), r.Spec.Capacity, number(r.Spec.Barging), number(r.Wait),
	}, &code, &token, &pause, &is.Kind, &is.Capacity, &barging)
	if err != nil {
		return 0, 0, err
	}
	switch code {
	case answerBusy:
		err = engine.ErrBusy
	case answerGone:
		err = engine.ErrGone
	case answerMismatch:
		is.Barging = barging == 1
		err = queue.Mismatch(is, r.Spec)
	case answerSessionGone:
		err = fmt.Errorf("session: %w", engine.ErrGone)
	case answerGrace:
		err = fmt.Errorf("%w: the store was restarted and gives nothing out for one TTL", engine.ErrBusy)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", verb, err)
	}
	if r.Op == queue.Leave || r.Op == queue.Resize {
		s.left(resource)
	}
	return fence.Token(token), time.Duration(pause) * time.Microsecond, nil
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (s *routines) renew(ctx context.Context, session string) (held []string, err error) {
	var alive int
	var dead string
	err = s.query(ctx, "renew session", "renew", func(scan func(...any) error) error {
		var id sql.NullString
		if err := scan(&alive, &dead, &id); err != nil {
			return err
		}
		if id.Valid {
			held = append(held, id.String)
		}
		return nil
	}, session)
	if err == nil && alive == 0 {
		err = fmt.Errorf("renew session: %w", engine.ErrGone)
	}
	if err != nil {
		return nil, err
	}
	if dead != "" { // one at a time, and whoever fails leaves it to the next renewal of anybody
		s.finish(ctx, dead, false) //nolint:errcheck // as it says
	}
	return held, nil
}

// finish ends a session, if its time has not done so, and hands on what it had.
func (s *routines) finish(ctx context.Context, session string, force bool) error {
	for more := 1; more != 0; {
		var dead string
		if err := s.call(ctx, "close session", "finish", args{session, number(force)}, &more, &dead); err != nil {
			return err
		}
	}
	return nil
}

func (s *routines) end(ctx context.Context, session string) error {
	return s.finish(ctx, session, true)
}

func (s *routines) list(ctx context.Context, prefix string) (names []string, err error) {
	err = s.query(ctx, "list", "list", func(scan func(...any) error) error {
		names = append(names, "")
		return scan(&names[len(names)-1])
	}, prefix, prefix+lastName)
	return names, err
}

// lastName is after every name there can be: the last character of Unicode, as
// often as a name can have it.
var lastName = strings.Repeat("\U0010FFFF", 128)

func (s *routines) show(ctx context.Context, name string) (engine.Resource, error) {
	r := engine.Resource{Name: name}
	err := s.query(ctx, "show", "show", func(scan func(...any) error) error {
		var c engine.ClaimInfo
		var age, held, left, barging int64
		err := scan(&c.Session, &c.ID, &c.Owner, &c.Label, &c.Weight, &c.Token, &age, &held, &left, &r.Kind, &r.Capacity, &barging)
		r.Barging = barging == 1
		c.Age, c.Held, c.Left = time.Duration(age)*time.Microsecond, engine.Unknown, time.Duration(left)*time.Microsecond
		if c.Token != 0 {
			c.Held = time.Duration(held) * time.Microsecond
		}
		r.Claims = append(r.Claims, c)
		return err
	}, name)
	queue.Sort(r.Claims)
	return r, err
}

func (s *routines) get(ctx context.Context, key string) (v engine.Value, err error) {
	err = s.query(ctx, "get", "get", func(scan func(...any) error) error { return scan(&v.Data, &v.Version) }, key)
	return v, err
}

func (s *routines) put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	var is, written uint64
	err := s.call(ctx, "put", "put", args{key, int64(version), number(data == nil), append([]byte{}, data...)}, &is, &written)
	if err == nil && is != version {
		err = fmt.Errorf("put: %w", otherVersion(is, version))
	}
	return written, err
}
