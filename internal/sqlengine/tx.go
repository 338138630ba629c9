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
	deleteSession = `DELETE FROM pawl_sessions WHERE id = ?`

	readQueue = `SELECT c.place, c.session, c.id, c.owner, c.label, c.weight, c.token, c.since, c.kind, c.capacity, c.barging,
		coalesce(s.ends, 0) FROM pawl_claims c LEFT JOIN pawl_sessions s ON s.id = c.session WHERE c.resource = ? ORDER BY c.place`
	listResources = `SELECT DISTINCT resource FROM pawl_claims WHERE resource >= ? AND resource < ?`
	resourcesOf   = `SELECT DISTINCT resource FROM pawl_claims WHERE session = ?`
	heldBy        = `SELECT id FROM pawl_claims WHERE session = ? AND token <> 0`
	insertClaim   = `INSERT INTO pawl_claims (resource, place, session, id, owner, label, weight, token, since, kind, capacity, barging)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	grantClaim  = `UPDATE pawl_claims SET token = ? WHERE resource = ? AND place = ?`
	deleteClaim = `DELETE FROM pawl_claims WHERE resource = ? AND place = ?`

	readValue   = `SELECT data, version FROM pawl_values WHERE name = ?`
	insertValue = `INSERT INTO pawl_values (data, version, name) VALUES (?, ?, ?)`
	updateValue = `UPDATE pawl_values SET data = ?, version = ? WHERE name = ?`
	deleteValue = `DELETE FROM pawl_values WHERE name = ?`
)

var statements = []string{
	readMeta, writeMeta, deadSessions, insertSession, renewSession, deleteSession, readQueue, listResources, resourcesOf, heldBy,
	insertClaim, grantClaim, deleteClaim, readValue, insertValue, updateValue, deleteValue,
}

// tx is one verb in the database, and what is to be done after it.
type tx struct {
	*sql.Tx
	ctx     context.Context
	engine  *Engine
	now     int64
	last    int64  // token or version given out
	session string // that asks
	ends    int64  // when that session ends, 0 when there is none

	answer  error // of a verb that was done but comes to nothing
	letters []letter
	buried  []string // sessions that were removed
}

type letter struct {
	session string
	Message
}

// run does all of do or nothing, again and again while others are in the way.
func (e *Engine) run(ctx context.Context, verb string, do func(*tx) error) error {
	for {
		t := &tx{ctx: ctx, engine: e}
		err := t.run(do)
		switch {
		case err == nil && t.answer != nil:
			return fmt.Errorf("%s: %w", verb, t.answer)
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, engine.ErrUnsupported):
			return fmt.Errorf("%s: %w", verb, err)
		case err == nil || !e.dialect.Again(err):
			return engine.Unavailable(verb, err)
		}
		time.Sleep(time.Millisecond) // the database has waited itself, unless it saw no use in it
	}
}

func (t *tx) run(do func(*tx) error) (err error) {
	e := t.engine
	if t.Tx, t.now, err = e.dialect.Begin(t.ctx, e.db); err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if err = do(t); err == nil {
		err = t.Commit()
	}
	if err != nil {
		return err
	}
	for _, l := range t.letters {
		if !e.receive(l.session, l.Message) {
			e.dialect.Post(l.session, l.Message)
		}
	}
	for _, session := range t.buried {
		e.dialect.Forget(session)
	}
	return nil
}

// transact is one verb: step sees no ended session.
func (e *Engine) transact(ctx context.Context, verb, session string, step func(*tx) error) error {
	return e.run(ctx, verb, func(t *tx) error {
		t.session = session
		var dead bool
		err := t.row(readMeta, session, t.now).Scan(&t.last, &t.ends, &dead)
		before := t.last
		if err == nil && dead {
			err = t.sweep()
		}
		if err == nil {
			err = step(t)
		}
		if err == nil && t.last != before {
			err = t.exec(writeMeta, t.last)
		}
		return err
	})
}

// sweep removes the sessions that ended. Every verb begins with it, so nothing
// of the dead stays in the store while anybody uses it.
func (t *tx) sweep() error {
	dead, err := t.strings(deadSessions, t.now)
	for _, id := range dead {
		if err == nil {
			err = t.bury(id)
		}
	}
	return err
}

// bury removes a session with its claims, and hands on what these held.
func (t *tx) bury(session string) error {
	resources, err := t.strings(resourcesOf, session)
	if err == nil {
		err = t.exec(deleteSession, session)
	}
	for _, name := range resources {
		if err == nil {
			_, err = t.apply(name, queue.Request{Op: queue.Poll})
		}
	}
	t.buried = append(t.buried, session)
	return err
}

func (t *tx) stmt(query string) *sql.Stmt { return t.StmtContext(t.ctx, t.engine.stmts[query]) }

func (t *tx) exec(query string, args ...any) error {
	_, err := t.stmt(query).ExecContext(t.ctx, args...)
	return err
}

func (t *tx) row(query string, args ...any) *sql.Row {
	return t.stmt(query).QueryRowContext(t.ctx, args...)
}

func (t *tx) strings(query string, args ...any) (all []string, err error) {
	rows, err := t.stmt(query).QueryContext(t.ctx, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() && err == nil {
		all = append(all, "")
		err = rows.Scan(&all[len(all)-1])
	}
	return all, errors.Join(err, rows.Err())
}

// value reads a value. Without a row it is the zero Value.
func (t *tx) value(key string) (v engine.Value, err error) {
	err = t.row(readValue, key).Scan(&v.Data, &v.Version)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return v, err
}

// resource is the queue of one resource as it is in the store.
type resource struct {
	queue.State
	places []int64          // of the claims
	ends   map[string]int64 // of the sessions in it
}

func (t *tx) load(name string) (resource, error) {
	r := resource{ends: make(map[string]int64)}
	rows, err := t.stmt(readQueue).QueryContext(t.ctx, name)
	if err != nil {
		return r, err
	}
	defer rows.Close()
	for rows.Next() {
		var c queue.Claim
		var place, ends int64
		if err := rows.Scan(&place, &c.Session, &c.ID, &c.Owner, &c.Label, &c.Weight, &c.Token, &c.Since,
			&r.Spec.Kind, &r.Spec.Capacity, &r.Spec.Barging, &ends); err != nil {
			return r, err
		}
		r.Claims, r.places, r.ends[c.Session] = append(r.Claims, c), append(r.places, place), ends
	}
	return r, rows.Err()
}

// apply takes one step of a resource and notes whom to tell.
func (t *tx) apply(name string, request queue.Request) (queue.Outcome, error) {
	before, err := t.load(name)
	if err != nil {
		return queue.Outcome{}, err
	}
	if request.Op == queue.Enter {
		before.ends[t.session] = t.ends
	}
	after, out := queue.Apply(before.State, request, queue.Clock{
		Now: t.now, Mint: fence.Token(t.last + 1), Ends: func(session string) int64 { return before.ends[session] },
	})
	t.last = max(t.last, int64(after.Last))
	for _, c := range append(out.Granted, out.Told...) {
		t.letters = append(t.letters, letter{c.Session, Message{Claim: c.ID, Token: c.Token}})
	}
	return out, t.save(name, before, after)
}

// save writes what a step changed. A step keeps the order of the claims and
// adds new ones at the end.
func (t *tx) save(name string, before resource, after queue.State) error {
	var kept int
	var place int64
	for i, c := range before.Claims {
		var err error
		place = before.places[i]
		if kept == len(after.Claims) || after.Claims[kept].ID != c.ID {
			err = t.exec(deleteClaim, name, place)
			t.letters = append(t.letters, letter{c.Session, Message{Claim: c.ID, Gone: c.Token != 0 && c.Session != t.session}})
		} else {
			if token := after.Claims[kept].Token; token != c.Token {
				err = t.exec(grantClaim, int64(token), name, place)
			}
			kept++
		}
		if err != nil {
			return err
		}
	}
	for _, c := range after.Claims[kept:] {
		place++
		if err := t.exec(insertClaim, name, place, c.Session, c.ID, c.Owner, c.Label, c.Weight, int64(c.Token), c.Since,
			string(after.Spec.Kind), after.Spec.Capacity, after.Spec.Barging); err != nil {
			return err
		}
	}
	return nil
}
