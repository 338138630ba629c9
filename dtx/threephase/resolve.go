package threephase

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// State is how far an agent is with a transaction.
type State int

// The states. An agent that is Ready, PreCommitted or PreAborted waits for a decision, and keeps its rows locked.
const (
	Voting       State = iota // the agent has not voted
	Ready                     // the agent has voted yes
	PreCommitted              // an election attempts to commit
	PreAborted                // an election attempts to abort
	Committed
	Aborted
	Unknown // the handler has prepared work of which the log knows nothing: an operator has to decide
)

// String returns the name of the state, in lower case.
func (s State) String() string {
	names := []string{"voting", "ready", "precommitted", "preaborted", "committed", "aborted", "unknown"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return names[s]
}

// Transaction is a transaction as one agent's log has it. The log forgets a transaction that is over at all agents.
type Transaction struct {
	ID        ID
	State     State
	Finished  bool      // the handler has carried the decision out
	Elections int       // the number of the last election that the agent has joined; 1 is the first coordinator's
	Began     time.Time // by the clock of the log's database, in whole seconds; zero if Unknown
	Group     string    // mode and names of the agents; empty if Unknown
	Heuristic *Heuristic
}

// Heuristic is the decision of an operator for one agent. Nobody can tell whether the other agents decide the same way.
type Heuristic struct {
	ID     ID
	Commit bool
	Reason string
	Time   time.Time // by the clock of the log's database, in whole seconds
}

// Transactions returns the transactions of the log in the order of their beginning. With a handler, the work that is prepared
// without a row in the log follows. Handler may be nil.
func (l *Log) Transactions(ctx context.Context, handler Handler) (all []Transaction, err error) {
	if _, err := l.check(ctx); err != nil {
		return nil, failed("list transactions", err)
	}
	var prepared []ID
	if handler != nil { // before the log: rows come first
		if prepared, err = handler.Prepared(ctx); err != nil {
			return nil, failed("list transactions", err)
		}
	}
	rows, err := l.all(ctx)
	if err != nil {
		return nil, failed("list transactions", err)
	}
	agents, err := l.known(ctx)
	if err != nil {
		return nil, failed("list transactions", err)
	}
	orders, err := l.orders(ctx)
	seen := make(map[ID]bool)
	for _, r := range rows {
		seen[r.id] = true
		all = append(all, Transaction{r.id, State(r.Phase), r.finished, int(r.Elected), time.Unix(r.began, 0), r.agents, orders[r.id]})
	}
	for _, id := range prepared {
		if is := agents[id.agent]; !seen[id] && !is.forgot(id) {
			all = append(all, Transaction{ID: id, State: Unknown, Heuristic: orders[id]})
		}
	}
	return all, failed("list transactions", err)
}

// forgot reports whether a transaction of this agent was over at all agents.
func (k known) forgot(id ID) bool { return k.log == id.log && id.number < k.mark }

// maxReason is the most bytes of a reason.
const maxReason = 500

// Resolve decides a transaction for an operator, at this agent. The agent acts when it sees the decision, within [Options].Timeout.
// The reason has 1 to 500 bytes, and the log keeps it.
//
// This is for agents that have lost their majority for ever, and for [Unknown] work. While a majority can come back, its agents decide, and may do
// so otherwise. Tell all agents that are left the same. If the agent knows another decision, the error matches [dtx.ErrDecided], and nothing
// is changed. An error that matches [dtx.ErrNoTransaction] says that the transaction is over.
func (l *Log) Resolve(ctx context.Context, id ID, commit bool, reason string) error {
	_, err := l.check(ctx)
	if err == nil && (len(reason) < 1 || len(reason) > maxReason || !utf8.ValidString(reason)) {
		err = fmt.Errorf("%w: the reason has %d bytes: 1 to %d of UTF-8 are allowed", pawl.ErrInvalid, len(reason), maxReason)
	}
	if err == nil {
		err = l.resolve(ctx, id, commit, reason)
	}
	return failed("resolve", err)
}

func (l *Log) resolve(ctx context.Context, id ID, commit bool, reason string) error {
	agents, err := l.known(ctx)
	if err != nil {
		return err
	}
	if agents[id.agent].forgot(id) {
		return fmt.Errorf("%w: %v is over at all agents", dtx.ErrNoTransaction, id)
	}
	rows, err := l.all(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.id == id && r.Phase.Final() && (r.Phase == protocol.Committed) != commit {
			return fmt.Errorf("%w: %v is %v at this agent", dtx.ErrDecided, id, State(r.Phase))
		}
	}
	s := l.new().Add("INSERT INTO ").Table(l.resolved.Name).Add(" (agent, log, number, committed, resolved, reason) VALUES (").Value(id.agent).Add(", ").Value(id.log).
		Add(", ").Value(id.number).Add(", ").Value(bit(commit)).Add(", ", dialect.Seconds(l.dialect), ", ").Value(reason).Add(")")
	_, failed := s.Exec(ctx, l.db)
	if failed == nil {
		return nil
	}
	orders, err := l.orders(ctx)
	was := orders[id]
	switch {
	case err != nil || was == nil:
		return errors.Join(failed, err)
	case was.Commit != commit:
		return fmt.Errorf("%w: %v: an operator decided otherwise at %s: %s", dtx.ErrDecided, id, was.Time.UTC().Format(time.RFC3339), was.Reason)
	}
	return nil
}

// Heuristics returns the decisions of operators in this log, by transaction. The log keeps them for ever.
func (l *Log) Heuristics(ctx context.Context) (map[ID]*Heuristic, error) {
	_, err := l.check(ctx)
	if err != nil {
		return nil, failed("read the decisions of operators", err)
	}
	all, err := l.orders(ctx)
	return all, failed("read the decisions of operators", err)
}

func (l *Log) orders(ctx context.Context) (map[ID]*Heuristic, error) {
	query, args, err := l.new().Add("SELECT agent, log, number, committed, resolved, reason FROM ").Table(l.resolved.Name).Build()
	if err != nil {
		return nil, err
	}
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[ID]*Heuristic)
	for rows.Next() {
		var h Heuristic
		var at int64
		if err := rows.Scan(&h.ID.agent, &h.ID.log, &h.ID.number, &h.Commit, &at, &h.Reason); err != nil {
			return nil, err
		}
		h.Time = time.Unix(at, 0)
		all[h.ID] = &h
	}
	return all, rows.Err()
}
