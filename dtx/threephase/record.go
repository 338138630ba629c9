package threephase

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// owned is a log in the hands of one process. A process that takes the log over ends all writes of the process before.
type owned struct {
	*Log
	name            string
	identity, owner int64
	writing         sync.Mutex // the writes of a process need not wait for one another in the database
}

// row is a transaction in the log.
type row struct {
	id ID
	protocol.Record
	asked, finished bool
	began           int64
	agents          string
}

// known is what a log has of an agent.
type known struct{ log, mark int64 }

// claim takes the log for an agent, and returns what the log has of all agents.
func (l *Log) claim(ctx context.Context, name string, identity int64) (*owned, map[string]known, error) {
	agents, err := l.known(ctx)
	if err != nil {
		return nil, nil, err
	}
	for other, is := range agents {
		if (is.log == identity) != (other == name) {
			return nil, nil, fmt.Errorf("%w: the log %s is of agent %q, so agent %q needs another log", pawl.ErrMismatch, l.rows.Name, other, name)
		}
	}
	o := &owned{Log: l, name: name, identity: identity, owner: rand.Int64N(1<<62) + 1}
	if _, is := agents[name]; !is {
		agents[name] = known{identity, 1}
		if _, err := l.knowing(name, agents[name]).Exec(ctx, l.db); err != nil {
			return nil, nil, err
		}
	}
	err = dialect.Repeat(ctx, dialect.Again, func() error {
		_, err := l.new().Add("UPDATE ").Table(l.agents.Name).Add(" SET writes = writes + 1, owner = ").Value(o.owner).Add(" WHERE name = ").Value(name).Exec(ctx, l.db)
		return err
	})
	if err == nil { // the process before may have written meanwhile
		agents, err = l.known(ctx)
	}
	return o, agents, err
}

// known returns all agents that the log has, with its own.
func (l *Log) known(ctx context.Context) (map[string]known, error) {
	query, args, err := l.new().Add("SELECT name, log, mark FROM ").Table(l.agents.Name).Add(" WHERE name <> ''").Build()
	if err != nil {
		return nil, err
	}
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string]known)
	for rows.Next() {
		var name string
		var is known
		if err := rows.Scan(&name, &is.log, &is.mark); err != nil {
			return nil, err
		}
		all[name] = is
	}
	return all, rows.Err()
}

func (l *Log) knowing(name string, is known) *dialect.Statement {
	return dialect.InsertIfAbsent(l.dialect, l.agents.Name, "name", dialect.Columns{"name": name, "log": is.log, "mark": is.mark, "owner": 0, "writes": 0, "format": format})
}

// pause waits. pause returns false if ctx has ended.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// write runs statements in a transaction, if the log is still in the hands of this process. The first statement locks the row of this agent. So a
// process that takes the log over waits for the write, and reads the new rows.
func (o *owned) write(ctx context.Context, statements ...*dialect.Statement) error {
	o.writing.Lock()
	defer o.writing.Unlock()
	return dialect.Repeat(ctx, dialect.Again, func() error {
		tx, err := o.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after the commit
		result, err := o.new().Add("UPDATE ").Table(o.agents.Name).Add(" SET writes = writes + 1 WHERE name = ").Value(o.name).Add(" AND owner = ").Value(o.owner).Exec(ctx, tx)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, o.replaced())
		}
		for _, s := range statements {
			if _, err := s.Exec(ctx, tx); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
}

// mine returns an error if another process has taken the log over. An agent that writes nothing learns that here.
func (o *owned) mine(ctx context.Context) error {
	var owner int64
	err := o.new().Add("SELECT owner FROM ").Table(o.agents.Name).Add(" WHERE name = ").Value(o.name).Scan(ctx, o.db, &owner)
	if err == nil && owner != o.owner {
		err = o.replaced()
	}
	return err
}

func (o *owned) replaced() error {
	return fmt.Errorf("%w: another process has the log of agent %s", ErrReplaced, o.name)
}

// put stores a transaction durably.
func (o *owned) put(ctx context.Context, r row) error {
	insert := o.new().Add("INSERT INTO ").Table(o.rows.Name).Add(" (agent, log, number, phase, elected, attempt, asked, finished, began, agents) SELECT ")
	number, text := map[dialect.Dialect]string{dialect.PostgreSQL: "::bigint"}[o.dialect], map[dialect.Dialect]string{dialect.PostgreSQL: "::text"}[o.dialect]
	insert.Value(r.id.agent).Add(text, ", ").Value(r.id.log).Add(number, ", ").Value(r.id.number).Add(number, ", 0, 0, 0, 0, 0, ", dialect.Seconds(o.dialect), ", ").Value(r.agents).Add(text)
	insert.Add(map[dialect.Dialect]string{dialect.MySQL: " FROM DUAL"}[o.dialect], " WHERE NOT EXISTS (SELECT 1 FROM ").Table(o.rows.Name)
	update := o.new().Add("UPDATE ").Table(o.rows.Name).Add(" SET ").Columns(dialect.Columns{"phase": int(r.Phase), "elected": int(r.Elected), "attempt": int(r.Attempt),
		"asked": bit(r.asked), "finished": bit(r.finished)}, ", ")
	return o.write(ctx, where(insert, r.id).Add(")"), where(update, r.id))
}

func where(s *dialect.Statement, id ID) *dialect.Statement {
	return s.Add(" WHERE agent = ").Value(id.agent).Add(" AND log = ").Value(id.log).Add(" AND number = ").Value(id.number)
}

func bit(is bool) int {
	if is {
		return 1
	}
	return 0
}

// learn keeps the log of a peer.
func (o *owned) learn(ctx context.Context, name string, log int64) error {
	return o.write(ctx, o.knowing(name, known{log, 0}))
}

// forget deletes the transactions of an agent that are over at all agents. Messages about them, however late, are known to be old by
// the mark.
func (o *owned) forget(ctx context.Context, name string, is known) error {
	return o.write(ctx,
		o.new().Add("UPDATE ").Table(o.agents.Name).Add(" SET mark = ").Value(is.mark).Add(" WHERE name = ").Value(name).Add(" AND log = ").Value(is.log),
		o.new().Add("DELETE FROM ").Table(o.rows.Name).Add(" WHERE agent = ").Value(name).Add(" AND log = ").Value(is.log).Add(" AND number < ").Value(is.mark).
			Add(" AND finished = 1"))
}

// all returns the transactions of the log.
func (l *Log) all(ctx context.Context) (all []row, err error) {
	query, args, err := l.new().Add("SELECT agent, log, number, phase, elected, attempt, asked, finished, began, agents FROM ").Table(l.rows.Name).
		Add(" ORDER BY began, agent, log, number").Build()
	if err != nil {
		return nil, err
	}
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.id.agent, &r.id.log, &r.id.number, &r.Phase, &r.Elected, &r.Attempt, &r.asked, &r.finished, &r.began, &r.agents); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// Trust lets this agent accept a peer with a new log. The peer has forgotten its votes. So call Trust only when no transaction is open
// on any agent, or after an operator has decided the open ones by [Log.Resolve].
func (l *Log) Trust(ctx context.Context, peer string) error {
	result, err := l.new().Add("DELETE FROM ").Table(l.agents.Name).Add(" WHERE owner = 0 AND name <> '' AND name = ").Value(peer).Exec(ctx, l.db)
	if err == nil {
		var n int64
		if n, err = result.RowsAffected(); err == nil && n == 0 {
			err = fmt.Errorf("%w: the log knows no peer %.40q", pawl.ErrInvalid, peer)
		}
	}
	return failed("trust", err)
}
