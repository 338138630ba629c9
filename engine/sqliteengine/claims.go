package sqliteengine

import (
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// resource is the queue of one resource as it is in the file.
type resource struct {
	queue.State
	name string
	last int64            // place in the queue
	ends map[string]int64 // of the sessions in it
}

func (t *tx) load(name string) (*resource, error) {
	r := &resource{name: name, ends: make(map[string]int64)}
	err := t.each(`SELECT c.session, c.id, c.owner, c.label, c.weight, c.token, c.since, c.place,
			c.kind, c.capacity, c.barging, coalesce(s.ends, 0)
		FROM pawl_claims c LEFT JOIN pawl_sessions s ON s.id = c.session
		WHERE c.resource = ? ORDER BY c.place`, args{name}, func(scan func(...any) error) error {
		var c queue.Claim
		var ends int64
		err := scan(&c.Session, &c.ID, &c.Owner, &c.Label, &c.Weight, &c.Token, &c.Since, &r.last,
			&r.Spec.Kind, &r.Spec.Capacity, &r.Spec.Barging, &ends)
		r.Claims = append(r.Claims, c)
		r.ends[c.Session] = ends
		return err
	})
	return r, err
}

// apply takes one step of a resource and notes whom to wake.
func (t *tx) apply(name string, request queue.Request) (queue.Outcome, error) {
	r, err := t.load(name)
	if err != nil {
		return queue.Outcome{}, err
	}
	if request.Op == queue.Enter {
		r.ends[t.session] = t.ends
	}
	after, out := queue.Apply(r.State, request, queue.Clock{
		Now: t.now, Mint: fence.Token(t.last + 1), Ends: func(session string) int64 { return r.ends[session] },
	})
	t.last = max(t.last, int64(after.Last))
	for _, c := range append(out.Granted, out.Told...) {
		t.messages = append(t.messages, message{session: c.Session, claim: c.ID})
	}
	return out, t.save(r, after)
}

// save writes what a step changed. A step keeps the order of the claims and
// adds new ones at the end.
func (t *tx) save(r *resource, after queue.State) error {
	kept := 0
	for _, c := range r.Claims {
		stays := kept < len(after.Claims) && after.Claims[kept].ID == c.ID && after.Claims[kept].Session == c.Session
		if !stays {
			if err := t.exec(`DELETE FROM pawl_claims WHERE session = ? AND resource = ? AND id = ?`, c.Session, r.name, c.ID); err != nil {
				return err
			}
			t.messages = append(t.messages, message{c.Session, c.ID, c.Token != 0 && c.Session != t.session})
			continue
		}
		if token := after.Claims[kept].Token; token != c.Token {
			if err := t.exec(`UPDATE pawl_claims SET token = ? WHERE session = ? AND resource = ? AND id = ?`,
				int64(token), c.Session, r.name, c.ID); err != nil {
				return err
			}
		}
		kept++
	}
	for _, c := range after.Claims[kept:] {
		r.last++
		if err := t.exec(`INSERT INTO pawl_claims (session, resource, id, place, kind, capacity, barging, owner, label, weight, token, since)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, c.Session, r.name, c.ID, r.last, string(after.Spec.Kind), after.Spec.Capacity,
			after.Spec.Barging, c.Owner, c.Label, c.Weight, int64(c.Token), c.Since); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes the sessions that ended. Every verb begins with it, so nothing
// of the dead stays in the file while anybody uses it.
func (t *tx) sweep() error {
	dead, err := t.strings(`SELECT id FROM pawl_sessions WHERE ends <= ?`, t.now)
	for _, id := range dead {
		if err == nil {
			err = t.bury(id)
		}
	}
	return err
}

// bury removes a session with its claims, and hands on what these held.
func (t *tx) bury(session string) error {
	resources, err := t.strings(`SELECT DISTINCT resource FROM pawl_claims WHERE session = ?`, session)
	if err == nil {
		err = t.exec(`DELETE FROM pawl_sessions WHERE id = ?`, session)
	}
	for _, name := range resources {
		if err == nil {
			_, err = t.apply(name, queue.Request{Op: queue.Poll})
		}
	}
	t.buried = append(t.buried, session)
	return err
}
