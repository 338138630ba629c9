package sqlengine

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// The statements, by tables. Each finds its rows by an index.
const (
	readMeta = `SELECT last, coalesce((SELECT ends FROM pawl_sessions WHERE id = ?), 0),
		EXISTS (SELECT 1 FROM pawl_sessions WHERE ends <= ?) OR EXISTS (SELECT 1 FROM pawl_sessions WHERE ends - ttl > ?) FROM pawl_meta`
	writeMeta = `UPDATE pawl_meta SET last = ?`

	deadSessions  = `SELECT id FROM pawl_sessions WHERE ends <= ? UNION ALL SELECT id FROM pawl_sessions WHERE ends - ttl > ?`
	insertSession = `INSERT INTO pawl_sessions (id, ends, ttl, label) VALUES (?, ?, ?, ?)`
	renewSession  = `UPDATE pawl_sessions SET ends = ? + ttl WHERE id = ?`
	deleteSession = `DELETE FROM pawl_sessions WHERE id = ?`

	claimColumns = `SELECT c.place, c.session, c.id, c.owner, c.label, c.weight, c.token, c.since, c.granted, c.kind, c.capacity, c.barging,
		coalesce(s.ends, 0) FROM `
	readQueue = claimColumns + `(SELECT * FROM pawl_claims WHERE resource = ?1 AND waits = 0
		UNION ALL SELECT * FROM (SELECT * FROM pawl_claims WHERE resource = ?1 AND waits = 1 ORDER BY place LIMIT ?2)) c
		LEFT JOIN pawl_sessions s ON s.id = c.session ORDER BY c.waits, c.place`
	readOwn       = claimColumns + `pawl_claims c INDEXED BY pawl_claims_session LEFT JOIN pawl_sessions s ON s.id = c.session WHERE c.session = ? AND c.resource = ? AND c.id = ?`
	readOther     = claimColumns + `pawl_claims c LEFT JOIN pawl_sessions s ON s.id = c.session WHERE c.resource = ? AND c.waits = 1 AND c.id = ?`
	lastPlace     = `SELECT max(place) FROM pawl_claims WHERE resource = ? AND waits = 1`
	listResources = `SELECT DISTINCT c.resource FROM pawl_claims c JOIN pawl_sessions s ON s.id = c.session
		WHERE c.resource >= ? AND c.resource < ? AND s.ends > ?`
	resourcesOf = `SELECT DISTINCT resource FROM pawl_claims WHERE session = ?`
	heldBy      = `SELECT resource, id FROM pawl_claims WHERE session = ? AND waits = 0`
	claimsOf    = `SELECT id, token FROM pawl_claims WHERE session = ?`
	insertClaim = `INSERT INTO pawl_claims (resource, waits, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	grantClaim  = `UPDATE pawl_claims SET token = ?, granted = ?, waits = 0 WHERE resource = ? AND waits = 1 AND place = ?`
	resizeAll   = `UPDATE pawl_claims SET capacity = ? WHERE resource = ?`
	deleteClaim = `DELETE FROM pawl_claims WHERE resource = ? AND waits = ? AND place = ?`
	deleteAll   = `DELETE FROM pawl_claims WHERE session = ?`

	listValues  = `SELECT name FROM pawl_values WHERE name >= ? AND name < ?`
	readValue   = `SELECT data, version FROM pawl_values WHERE name = ?`
	insertValue = `INSERT INTO pawl_values (name, version, data) VALUES (?, ?, ?)`
	deleteValue = `DELETE FROM pawl_values WHERE name = ?`
)

var statements = []string{
	readMeta, writeMeta, deadSessions, insertSession, renewSession, deleteSession, readQueue, readOwn, readOther, lastPlace, resourcesOf, heldBy, claimsOf,
	insertClaim, grantClaim, resizeAll, deleteClaim, deleteAll, readValue, insertValue, deleteValue,
}

// tx is one verb in the database, with the messages to send after it. The methods do nothing after
// the first error, which it keeps.
type tx struct {
	*sql.Tx
	ctx     context.Context
	store   *transactions
	err     error
	writes  bool // and has the statements prepared
	now     int64
	latest  int64  // when a session was renewed that lives
	last    int64  // token or version given out
	session string // that asks
	ends    int64  // when that session ends, 0 when there is none

	answer   error // of a verb that was done but comes to nothing
	messages []Message
	buried   []string // sessions that were removed
}

// retry tries again and again while others are in the way.
func retry(ctx context.Context, verb string, again func(error) bool, try func() error) error {
	for {
		err := try()
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, engine.ErrUnsupported) || errors.Is(err, engine.ErrNoStore):
			return fmt.Errorf("%s: %w", verb, err)
		case err == nil || !again(err):
			return engine.Unavailable(verb, err)
		}
		time.Sleep(time.Millisecond) // the database has waited itself, unless it saw no use in it
	}
}

// manner is how a transaction is done.
type manner int

const (
	ordinary manner = iota
	urgent          // before all ordinary ones
	lasting         // it survives a loss of power, and is seen by nobody before
)

// run does all of do or nothing, when it is its turn.
func (s *transactions) run(ctx context.Context, verb string, how manner, do func(*tx)) error {
	end, err := s.turn(ctx, how)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return engine.Unavailable(verb, err)
	}
	defer end()
	var t *tx
	err = retry(ctx, verb, s.dialect.Again, func() error {
		t = &tx{ctx: ctx, store: s}
		if how == lasting {
			t.flushed(do)
		} else {
			t.run(s.db, do)
		}
		return t.err
	})
	if err == nil && t.answer != nil {
		err = fmt.Errorf("%s: %w", verb, t.answer)
	}
	return err
}

// turn waits until nobody else writes, first in this process, then on this machine.
func (s *transactions) turn(ctx context.Context, how manner) (end func(), err error) {
	if how != urgent {
		if err := s.queue.Take(ctx); err != nil {
			return nil, err
		}
		defer s.queue.Give() // the next one may wait for the way
	}
	if err := s.way.Take(ctx); err != nil {
		return nil, err
	}
	done, err := s.dialect.Turn(ctx)
	if err != nil {
		s.way.Give()
		return nil, err
	}
	return func() { done(); s.way.Give() }, nil
}

// read reads the store as of one moment. read waits for no writer,
// and removes nothing of the dead.
func (s *transactions) read(ctx context.Context, verb string, do func(*tx)) error {
	return retry(ctx, verb, s.dialect.Again, func() error {
		t := &tx{ctx: ctx, store: s}
		t.now, _ = s.dialect.Now()
		if t.Tx, t.err = s.reads.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}); t.err != nil {
			return t.err
		}
		defer t.Rollback() //nolint:errcheck // it has read
		do(t)
		return t.err
	})
}

// flushed runs while the transactions of the one connection that writes wait for the disk.
func (t *tx) flushed(do func(*tx)) {
	conn, err := t.store.db.Conn(t.ctx)
	if t.err = err; err != nil {
		return
	}
	defer conn.Close()
	if t.err = t.store.dialect.Flush(t.ctx, conn, true); t.err == nil {
		t.run(conn, do)
	}
	if t.store.dialect.Flush(context.WithoutCancel(t.ctx), conn, false) != nil {
		conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // the next connection begins anew
	}
}

func (t *tx) run(db interface {
	BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
}, do func(*tx)) {
	s := t.store
	if t.Tx, t.err = db.BeginTx(t.ctx, nil); t.err != nil {
		return
	}
	t.writes = true
	t.now, t.latest = s.dialect.Now()
	defer t.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if do(t); t.err == nil {
		t.err = t.Commit()
	}
	if t.err != nil {
		return
	}
	for _, m := range t.messages {
		if !s.receive(m) {
			s.dialect.Post(m)
		}
	}
	for _, session := range t.buried {
		s.dialect.Forget(session)
	}
}

// transact is one verb: step sees no ended session, so nothing of the dead
// stays in the store while anybody uses it.
func (s *transactions) transact(ctx context.Context, verb, session string, how manner, step func(*tx)) error {
	return s.run(ctx, verb, how, func(t *tx) {
		t.session = session
		var dead bool
		t.get(readMeta, args{session, t.now, t.latest}, &t.last, &t.ends, &dead)
		before := t.last
		if dead {
			for _, session := range t.strings(deadSessions, t.now, t.latest) {
				t.bury(session)
			}
		}
		step(t)
		if t.last != before {
			t.exec(writeMeta, t.last)
		}
	})
}

// bury removes a session with its claims, and hands on what these held.
func (t *tx) bury(session string) {
	t.buried = append(t.buried, session)
	if session == t.session {
		t.ends = 0
	}
	t.exec(deleteSession, session)
	t.each(claimsOf, args{session}, func(scan func(...any)) {
		m := Message{Session: session}
		var token fence.Token
		scan(&m.Claim, &token)
		m.Gone = token != 0 && session != t.session
		t.messages = append(t.messages, m)
	})
	names := t.strings(resourcesOf, session)
	t.exec(deleteAll, session)
	for _, name := range names {
		t.apply(name, queue.Request{Op: queue.Poll})
	}
}

type args = []any

func (t *tx) exec(query string, args ...any) {
	if t.err == nil {
		_, t.err = t.StmtContext(t.ctx, t.store.stmts[query]).ExecContext(t.ctx, args...)
	}
}

// each reads all rows. Meanwhile the transaction can do nothing else.
func (t *tx) each(query string, args args, row func(scan func(...any))) {
	if t.err != nil {
		return
	}
	rows, err := t.query(query, args)
	t.err = Each(rows, err, func(scan func(...any) error) (err error) {
		row(func(into ...any) { err = scan(into...) })
		return err
	})
}

func (t *tx) query(query string, args args) (*sql.Rows, error) {
	if !t.writes {
		return t.QueryContext(t.ctx, query, args...)
	}
	return t.StmtContext(t.ctx, t.store.stmts[query]).QueryContext(t.ctx, args...)
}

// get reads one row, if there is one.
func (t *tx) get(query string, args args, into ...any) {
	t.each(query, args, func(scan func(...any)) { scan(into...) })
}

func (t *tx) strings(query string, args ...any) (all []string) {
	t.each(query, args, func(scan func(...any)) {
		all = append(all, "")
		scan(&all[len(all)-1])
	})
	return all
}

// resource is the queue of one resource as it is in the store, or its beginning.
type resource struct {
	queue.State
	places []int64          // of the claims
	last   int64            // of the places, also of claims that were not loaded
	ends   map[string]int64 // of the sessions in it
	more   bool             // there may be others, behind the waiters here
}

// window is how many waiters a step loads, of the first ones. That says what becomes of all, unless
// they are all granted. Tests change it.
var window = 8

const everything = -1

// load loads what holds and the first that wait, so many at most.
func (t *tx) load(name string, most int) *resource {
	r := &resource{ends: make(map[string]int64)}
	t.each(readQueue, args{name, most}, r.add)
	waiting := 0
	for i, c := range r.Claims {
		r.last = max(r.last, r.places[i])
		if c.Token == 0 {
			waiting++
		}
	}
	r.more = waiting == most
	return r
}

func (r *resource) add(scan func(...any)) {
	var c queue.Claim
	var place, ends int64
	scan(&place, &c.Session, &c.ID, &c.Owner, &c.Label, &c.Weight, &c.Token, &c.Since, &c.Granted,
		&r.Spec.Kind, &r.Spec.Capacity, &r.Spec.Barging, &ends)
	r.Claims, r.places, r.ends[c.Session] = append(r.Claims, c), append(r.places, place), ends
}

// loadFor loads all that a request needs, beside the first waiters: its own claim, which may be far
// behind, and the last place.
func (t *tx) loadFor(name string, request queue.Request) *resource {
	r := t.load(name, window)
	id := request.Claim.ID
	if !r.more || slices.ContainsFunc(r.Claims, func(c queue.Claim) bool { return c.ID == id }) {
		return r
	}
	t.each(lastPlace, args{name}, func(scan func(...any)) {
		var place int64
		scan(&place)
		r.last = max(r.last, place)
	})
	if n := len(r.Claims); id != "" {
		t.each(readOwn, args{t.session, name, id}, r.add)
		if request.Op == queue.Leave && len(r.Claims) == n { // it is of another session
			t.each(readOther, args{name, id}, r.add)
		}
	}
	return r
}

// covers reports whether claims that were not loaded stay as they are: one of the first waiters
// still waits.
func (r *resource) covers(after queue.State, request queue.Request) bool {
	return !r.more || slices.ContainsFunc(after.Claims, func(c queue.Claim) bool { return c.Token == 0 && c.ID != request.Claim.ID })
}

// show is the resource as an operator sees it.
// Claims of sessions that have ended are not in it.
func (r *resource) show(name string, now int64) engine.Resource {
	r.Claims = slices.DeleteFunc(r.Claims, func(c queue.Claim) bool { return r.ends[c.Session] <= now })
	if len(r.Claims) == 0 {
		r.Spec = engine.Spec{}
	}
	return r.Show(name, now, func(session string) int64 { return r.ends[session] })
}

// apply takes one step of a resource and notes whom to tell.
func (t *tx) apply(name string, request queue.Request) queue.Outcome {
	before := t.loadFor(name, request)
	after, out := t.decide(before, request)
	if !before.covers(after, request) {
		before = t.load(name, everything)
		after, out = t.decide(before, request)
	}
	t.last = max(t.last, int64(after.Last))
	for _, c := range append(out.Granted, out.Told...) {
		t.messages = append(t.messages, Message{Session: c.Session, Claim: c.ID, Token: c.Token})
	}
	t.save(name, before, after)
	return out
}

func (t *tx) decide(before *resource, request queue.Request) (queue.State, queue.Outcome) {
	if request.Op == queue.Enter {
		before.ends[t.session] = t.ends
	}
	return queue.Apply(before.State, request, queue.Clock{
		Now: t.now, Mint: fence.Token(t.mint()), Ends: func(session string) int64 { return before.ends[session] },
	})
}

// mint is the least token or version to give out next. Where an old copy of the database was
// restored, the time of day keeps it above the tokens that the copy does not know.
func (t *tx) mint() int64 { return max(t.last+1, time.Now().UnixMicro()) }

// save writes what a step changed. A step keeps the order of the claims and
// adds new ones at the end.
func (t *tx) save(name string, before *resource, after queue.State) {
	var kept int
	for i, c := range before.Claims {
		place := before.places[i]
		if kept == len(after.Claims) || after.Claims[kept].ID != c.ID {
			t.exec(deleteClaim, name, waits(c), place)
			t.messages = append(t.messages, Message{Session: c.Session, Claim: c.ID, Gone: c.Token != 0 && c.Session != t.session})
			continue
		}
		if is := after.Claims[kept]; is.Token != c.Token {
			t.exec(grantClaim, int64(is.Token), is.Granted, name, place)
		}
		kept++
	}
	if kept > 0 && after.Spec.Capacity != before.Spec.Capacity {
		t.exec(resizeAll, after.Spec.Capacity, name)
	}
	for i, c := range after.Claims[kept:] {
		t.exec(insertClaim, name, waits(c), before.last+1+int64(i), c.Session, c.ID, c.Owner, c.Label, c.Weight, int64(c.Token), c.Since, c.Granted,
			string(after.Spec.Kind), after.Spec.Capacity, after.Spec.Barging)
	}
}

func waits(c queue.Claim) int64 { return number(c.Token == 0) }
