package sqlengine

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/turn"
)

// askEvery is how often a process asks for all its waiters at once, while
// nothing tells them.
const askEvery = 50 * time.Millisecond

// Server is how a database server is reached whose routines do the verbs.
type Server struct {
	Dialect Dialect
	MinTTL  time.Duration

	// Connections is how many the pool has at most, 2 or more. Requests under way stay below that,
	// so that a Leave and a Renew get a connection. 0 is as many as are asked for: then it is 32.
	Connections int

	// Client is the common id of this Engine's sessions, in the store.
	Client string

	// Channel is where they are told, which nobody else may know. Empty: nowhere.
	Channel string

	// Query asks the server.
	Query Query

	// Renew, when set, asks in place of Query for a renewal, on a way of its own.
	Renew Query

	// Args, when set, are put before those of each query: how it is asked.
	Args []any

	// Again reports whether err says that the server has undone the call.
	Again func(err error) bool

	// Listen, when set, is called before a session is opened: waiters are told
	// by [Receive] from now on. Listen returns at once when that is so already.
	Listen func(context.Context) error

	// Told, when set, reports whether messages arrive at the moment. When they
	// do not, the process asks for all its waiters at once.
	Told func() bool
}

// Query asks, and hands over each row of the answer.
type Query func(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error

// routines is the store whose verbs are procedures of a server.
type routines struct {
	Server
	engine  *Engine
	queries map[string]string

	places  turn.Turn // of requests under way, but renewals
	entries turn.Turn // of those among them that do not leave
	burying sync.Mutex
	burials sync.WaitGroup

	// For each resource two requests enter or look at a time, of which the server has one wait.
	// Only one does so if there are no connections for more names then. So a request that hangs
	// leaves connections, and a crowd is no crowd in the server.
	names *turn.Names
}

// unlimited is how many connections are used of a pool that has no limit.
const unlimited = 32

// NewServer returns the store in a server that has the tables and routines of [Rules] already. The
// caller closes the database after the Engine.
func NewServer(server Server) (*Engine, error) {
	d := server.Dialect
	s := &routines{Server: server, queries: map[string]string{
		"start": d.Call("start", 6), "step": d.Call("step", 11), "finish": d.Call("finish", 2), "put": d.Call("put", 4),
		"renew": d.CallRows("renew"),
	}}
	for _, name := range []string{"list", "values", "show", "get", "news", "waiting"} {
		s.queries[name] = render(d, name)
	}
	places := cmp.Or(server.Connections, unlimited)
	if places < 2 {
		return nil, fmt.Errorf("open: %w: a pool of one connection: a request that hangs would keep renewals from the server, so 2 are needed",
			engine.ErrUnsupported)
	}
	if server.Renew == nil {
		places--
	}
	s.places, s.entries = turn.New(places), turn.New(max(places-1, 1))
	s.names = turn.NewNames(max(1, min(2, cap(s.entries)-1)))
	e := newEngine(server.MinTTL)
	e.store, s.engine = s, e
	e.asking.Go(e.ask)
	return e, nil
}

func (s *routines) close() error { s.burials.Wait(); return nil }

func (s *routines) listen(string) func() { return func() {} }

func (s *routines) told() (bool, time.Duration) { return s.Told != nil && s.Told(), askEvery }

// place waits until the request may be under way. However many hang, there is room for a Leave and
// for a renewal.
func (s *routines) place(ctx context.Context, leaves bool) (done func(), err error) {
	if leaves {
		return s.places.Give, s.places.Take(ctx)
	}
	if err := s.entries.Take(ctx); err != nil {
		return nil, err
	}
	if err := s.places.Take(ctx); err != nil {
		s.entries.Give()
		return nil, err
	}
	return func() { s.places.Give(); s.entries.Give() }, nil
}

// query asks the server, again and again while it says that it did nothing,
// and hands over each row of the answer.
func (s *routines) query(ctx context.Context, verb, name string, row func(scan func(...any) error) error, args ...any) error {
	return retry(ctx, verb, s.Again, func() error { return s.queryOnce(ctx, verb, name, row, args) })
}

func (s *routines) queryOnce(ctx context.Context, verb, name string, row func(scan func(...any) error) error, args []any) error {
	args = slices.Concat(s.Args, args)
	if name == "renew" && s.Renew != nil {
		return s.Renew(ctx, s.queries[name], args, row)
	}
	if name != "renew" {
		done, err := s.place(ctx, name == "finish" || verb == "leave" || verb == "evict")
		if err != nil {
			return err
		}
		defer done()
	}
	return s.Query(ctx, s.queries[name], args, row)
}

// Each hands over each row of the answer to a query, and reads on to the end of the answer. The Close of
// go-sql-driver/mysql would read that without a context.
func Each(rows *sql.Rows, err error, row func(scan func(...any) error) error) error {
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = row(rows.Scan)
	}
	for rows.NextResultSet() {
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
	var format string
	err := s.call(ctx, "open session", "start", args{
		session, opts.TTL.Microseconds(), opts.Belief().Microseconds(), opts.Label, s.Client, s.Channel,
	}, &format)
	if err == nil {
		err = engine.CheckFormat(format)
	}
	return err
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

func (s *routines) step(ctx context.Context, verb, session, resource string, r queue.Request) (engine.Grant, time.Duration, error) {
	var code, token, pause, barging, left, age int64
	var is engine.Spec
	name := resource
	if r.Op == queue.Leave { // a Leave does not wait for an Enter, but a crowd of Leaves waits for itself
		name = "leave\x00" + resource
	}
	done, err := s.names.Take(ctx, name)
	switch {
	case err != nil && r.Op == queue.Leave:
		return engine.Grant{}, 0, engine.Unavailable(verb, err)
	case err != nil:
		return engine.Grant{}, 0, fmt.Errorf("%w: %w", errUnsent, err)
	}
	defer done()
	c := r.Claim
	err = s.call(ctx, verb, "step", args{
		opNames[r.Op], session, resource, c.ID, c.Owner, c.Label, c.Weight, string(r.Spec.Kind), r.Spec.Capacity, number(r.Spec.Barging), number(r.Wait),
	}, &code, &token, &pause, &is.Kind, &is.Capacity, &barging, &left, &age)
	if err != nil {
		return engine.Grant{}, 0, err
	}
	grace := graceOf(left, age)
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
		err = &engine.GraceError{Grace: grace}
	}
	if err != nil {
		return engine.Grant{}, 0, fmt.Errorf("%s: %w", verb, err)
	}
	if r.Op == queue.Leave || r.Op == queue.Resize {
		s.engine.left(resource)
	}
	return engine.Grant{Token: fence.Token(token), Grace: grace}, time.Duration(pause) * time.Microsecond, nil
}

// graceOf is a restart grace in µs: the rest, and for how long it has been.
func graceOf(left, age int64) engine.Grace {
	if left <= 0 {
		return engine.Grace{}
	}
	const most = int64(math.MaxInt64 / time.Microsecond) // nobody has said yet when it ends
	return engine.Grace{Left: time.Duration(min(left, most)) * time.Microsecond, Age: max(time.Duration(min(age, most))*time.Microsecond, engine.Unknown)}
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (s *routines) renew(ctx context.Context, session string) (held []claimed, err error) {
	var alive int
	var dead string
	err = s.query(ctx, "renew session", "renew", func(scan func(...any) error) error {
		var resource, id sql.NullString
		if err := scan(&alive, &dead, &resource, &id); err != nil {
			return err
		}
		if id.Valid {
			held = append(held, claimed{resource.String, id.String})
		}
		return nil
	}, session)
	if err == nil && alive == 0 {
		err = fmt.Errorf("renew session: %w", engine.ErrGone)
	}
	if err != nil {
		return nil, err
	}
	if dead != "" && s.burying.TryLock() {
		s.burials.Go(func() {
			defer s.burying.Unlock()
			s.bury(dead)
		})
	}
	return held, nil
}

// buryFor is for how long a renewal has sessions buried at most.
const buryFor = time.Second

// bury ends sessions that have died, one after the other. The next renewal of any session buries
// the rest.
func (s *routines) bury(dead string) {
	ctx, cancel := context.WithTimeout(s.engine.life, buryFor)
	defer cancel()
	for last := ""; dead != "" && dead != last; {
		next, err := s.finishOnce(ctx, dead, false)
		if err != nil {
			return
		}
		last, dead = dead, next
	}
}

// finishOnce ends a session, if its time has not done so, and hands on what it had. finishOnce returns
// another session that has died.
func (s *routines) finishOnce(ctx context.Context, session string, force bool) (dead string, err error) {
	for more := 1; more != 0; {
		if err := s.call(ctx, "close session", "finish", args{session, number(force)}, &more, &dead); err != nil {
			return "", err
		}
	}
	return dead, nil
}

func (s *routines) end(ctx context.Context, session string) error {
	_, err := s.finishOnce(ctx, session, true)
	return err
}

func (s *routines) list(ctx context.Context, prefix string) ([]string, error) {
	return s.namesOf(ctx, "list", prefix)
}

func (s *routines) listValues(ctx context.Context, prefix string) ([]string, error) {
	return s.namesOf(ctx, "values", prefix)
}

func (s *routines) namesOf(ctx context.Context, query, prefix string) (names []string, err error) {
	err = s.query(ctx, "list", query, func(scan func(...any) error) error {
		names = append(names, "")
		return scan(&names[len(names)-1])
	}, prefix, prefix+lastName)
	return names, err
}

// lastName is after every name there can be: the last character of Unicode, as
// often as a name can have it.
var lastName = strings.Repeat("\U0010FFFF", 128)

func (s *routines) Show(ctx context.Context, name string) (engine.Resource, error) {
	r := engine.Resource{Name: name}
	err := s.query(ctx, "show", "show", func(scan func(...any) error) error {
		var c engine.ClaimInfo
		var is engine.Spec
		var grace, since, age, held, left, barging int64
		err := scan(&grace, &since, &c.Session, &c.ID, &c.Owner, &c.Label, &c.Weight, &c.Token, &age, &held, &left, &is.Kind, &is.Capacity, &barging)
		if r.Grace = graceOf(grace, since); err != nil || c.ID == "" {
			return err
		}
		is.Barging = barging == 1
		r.Spec = is
		c.Age, c.Held, c.Left = time.Duration(age)*time.Microsecond, engine.Unknown, time.Duration(left)*time.Microsecond
		if c.Token != 0 {
			c.Held = time.Duration(held) * time.Microsecond
		}
		r.Claims = append(r.Claims, c)
		return nil
	}, name)
	queue.Sort(r.Claims)
	return r, err
}

// news is about all sessions of this client.
func (s *routines) news(ctx context.Context, _ []string, all bool) (map[string]news, error) {
	name := "news"
	if all {
		name = "waiting"
	}
	answers := make(map[string]news)
	err := s.query(ctx, "ask", name, func(scan func(...any) error) error {
		var claim string
		var is news
		var told int
		err := scan(&claim, &is.token, &told)
		is.look = told == 1
		answers[claim] = is
		return err
	}, s.Client)
	return answers, err
}

func (s *routines) Get(ctx context.Context, key string) (v engine.Value, err error) {
	err = s.query(ctx, "get", "get", func(scan func(...any) error) error { return scan(&v.Data, &v.Version) }, key)
	return v, err
}

func (s *routines) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	var is, written uint64
	err := s.call(ctx, "put", "put", args{key, int64(version), number(data == nil), append([]byte{}, data...)}, &is, &written)
	if err == nil && is != version {
		err = fmt.Errorf("put: %w", otherVersion(is, version))
	}
	return written, err
}
