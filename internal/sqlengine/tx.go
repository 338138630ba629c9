package sqlengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// The statements, by tables. Each finds its rows by an index.
const (
	readMeta = `SELECT last, coalesce((SELECT ends FROM pawl_sessions WHERE id = ?), 0),
		EXISTS (SELECT 1 FROM pawl_sessions WHERE ends <= ?) FROM pawl_meta`
	writeMeta = `UPDATE pawl_meta SET last = ?`

	deadSessions  = `SELECT id FROM pawl_sessions WHERE ends <= ?`
	insertSession = `INSERT INTO pawl_sessions (id, ends, ttl, label) VALUES (?, ?, ?, ?)`
	renewSession  = `UPDATE pawl_sessions SET ends = ? + ttl WHERE id = ?`
	endSession    = `UPDATE pawl_sessions SET ends = 0 WHERE id = ?`
	deleteSession = `DELETE FROM pawl_sessions WHERE id = ?`

	readQueue = `SELECT c.place, c.session, c.id, c.owner, c.label, c.weight, c.token, c.since, c.granted, c.kind, c.capacity, c.barging,
		coalesce(s.ends, 0) FROM pawl_claims c LEFT JOIN pawl_sessions s ON s.id = c.session WHERE c.resource = ? ORDER BY c.place`
	listResources = `SELECT DISTINCT resource FROM pawl_claims WHERE resource >= ? AND resource < ?`
	resourcesOf   = `SELECT DISTINCT resource FROM pawl_claims WHERE session = ?`
	heldBy        = `SELECT id FROM pawl_claims WHERE session = ? AND token <> 0`
	insertClaim   = `INSERT INTO pawl_claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	grantClaim  = `UPDATE pawl_claims SET token = ?, granted = ? WHERE resource = ? AND place = ?`
	resizeAll   = `UPDATE pawl_claims SET capacity = ? WHERE resource = ?`
	deleteClaim = `DELETE FROM pawl_claims WHERE resource = ? AND place = ?`

	readValue   = `SELECT data, version FROM pawl_values WHERE name = ?`
	insertValue = `INSERT INTO pawl_values (name, version, data) VALUES (?, ?, ?)`
	deleteValue = `DELETE FROM pawl_values WHERE name = ?`
)

var statements = []string{
	readMeta, writeMeta, deadSessions, insertSession, renewSession, endSession, deleteSession, readQueue, listResources, resourcesOf, heldBy,
	insertClaim, grantClaim, resizeAll, deleteClaim, readValue, insertValue, deleteValue,
}

// tx is one verb in the database, and what is to be done after it. Its methods
// do nothing after the first error, which it keeps.
type tx struct {
	*sql.Tx
	ctx     context.Context
	store   *transactions
	err     error
	now     int64
	last    int64  // token or version given out
	session string // that asks
	ends    int64  // when that session ends, 0 when there is none

	answer   error // of a verb that was done but comes to nothing
	messages []Message
	buried   []string // sessions that were removed
}

// run does all of do or nothing, again and again while others are in the way.
func (s *transactions) run(ctx context.Context, verb string, do func(*tx)) error {
	for {
		t := &tx{ctx: ctx, store: s}
		t.run(do)
		switch {
		case t.err == nil && t.answer != nil:
			return fmt.Errorf("%s: %w", verb, t.answer)
		case t.err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(t.err, engine.ErrUnsupported):
			return fmt.Errorf("%s: %w", verb, t.err)
		case t.err == nil || !s.dialect.Again(t.err):
			return engine.Unavailable(verb, t.err)
		}
		time.Sleep(time.Millisecond) // the database has waited itself, unless it saw no use in it
	}
}

func (t *tx) run(do func(*tx)) {
	s := t.store
	if t.Tx, t.now, t.err = s.dialect.Begin(t.ctx, s.db); t.err != nil {
		return
	}
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
func (s *transactions) transact(ctx context.Context, verb, session string, step func(*tx)) error {
	return s.run(ctx, verb, func(t *tx) {
		t.session = session
		var dead bool
		t.get(readMeta, args{session, t.now}, &t.last, &t.ends, &dead)
		before := t.last
		if dead {
			t.sweep()
		}
		step(t)
		if t.last != before {
			t.exec(writeMeta, t.last)
		}
	})
}

// sweep removes the sessions that ended with their claims, and hands on what
// these held.
func (t *tx) sweep() {
	t.buried = t.strings(deadSessions, t.now)
	for _, session := range t.buried {
		t.exec(deleteSession, session)
		for _, name := range t.strings(resourcesOf, session) {
			t.apply(name, queue.Request{Op: queue.Poll})
		}
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
	rows, err := t.StmtContext(t.ctx, t.store.stmts[query]).QueryContext(t.ctx, args...)
	if t.err = err; err != nil {
		return
	}
	defer rows.Close()
	for t.err == nil && rows.Next() {
		row(func(into ...any) { t.err = rows.Scan(into...) })
	}
	t.err = errors.Join(t.err, rows.Err())
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

// resource is the queue of one resource as it is in the store.
type resource struct {
	queue.State
	places []int64          // of the claims
	ends   map[string]int64 // of the sessions in it
}

func (t *tx) load(name string) *resource {
	r := &resource{ends: make(map[string]int64)}
	t.each(readQueue, args{name}, func(scan func(...any)) {
		var c queue.Claim
		var place, ends int64
		scan(&place, &c.Session, &c.ID, &c.Owner, &c.Label, &c.Weight, &c.Token, &c.Since, &c.Granted,
			&r.Spec.Kind, &r.Spec.Capacity, &r.Spec.Barging, &ends)
		r.Claims, r.places, r.ends[c.Session] = append(r.Claims, c), append(r.places, place), ends
	})
	return r
}

// show is the resource as an operator sees it.
func (r *resource) show(name string, now int64) engine.Resource {
	return r.Show(name, now, func(session string) int64 { return r.ends[session] })
}

// apply takes one step of a resource and notes whom to tell.
func (t *tx) apply(name string, request queue.Request) queue.Outcome {
	before := t.load(name)
	if request.Op == queue.Enter {
		before.ends[t.session] = t.ends
	}
	after, out := queue.Apply(before.State, request, queue.Clock{
		Now: t.now, Mint: fence.Token(t.last + 1), Ends: func(session string) int64 { return before.ends[session] },
	})
	t.last = max(t.last, int64(after.Last))
	for _, c := range append(out.Granted, out.Told...) {
		t.messages = append(t.messages, Message{Session: c.Session, Claim: c.ID, Token: c.Token})
	}
	t.save(name, before, after)
	return out
}

// save writes what a step changed. A step keeps the order of the claims and
// adds new ones at the end.
func (t *tx) save(name string, before *resource, after queue.State) {
	var kept int
	var place int64
	for i, c := range before.Claims {
		place = before.places[i]
		if kept == len(after.Claims) || after.Claims[kept].ID != c.ID {
			t.exec(deleteClaim, name, place)
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
		t.exec(insertClaim, name, place+1+int64(i), c.Session, c.ID, c.Owner, c.Label, c.Weight, int64(c.Token), c.Since, c.Granted,
			string(after.Spec.Kind), after.Spec.Capacity, after.Spec.Barging)
	}
}
