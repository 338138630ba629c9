package dtx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
)

// State is what the log says of a transaction.
type State int

const (
	// Running is a transaction whose coordinator is not fenced, and which is not decided. If the coordinator is dead, recovery
	// fences it after the lease.
	Running State = iota
	// Committing is a transaction with a record: recovery commits the other branches.
	Committing
	// Aborting is a transaction without a record, whose coordinator is fenced: recovery rolls back its branches.
	Aborting
	// Unknown is a transaction whose coordinator the log does not know. The log has lost rows, and an operator has to decide by [Log.Resolve].
	Unknown
	// Resolved is a transaction as Unknown, which an operator has decided.
	Resolved
)

// String returns the name of the state, in lower case.
func (s State) String() string {
	names := []string{"running", "committing", "aborting", "unknown", "resolved"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return names[s]
}

// Transaction is a transaction that has a prepared branch, or a record that is not deleted yet.
type Transaction struct {
	ID          ID
	State       State
	Coordinator string     // host and process ID; empty if the log does not know the coordinator
	Prepared    []Prepared // branches, in the order of the resources' names
	Recorded    []string   // names of all resources that commit, if there is a record
	Heuristic   *Heuristic // of an operator, or nil
}

// Prepared is a branch that is prepared: its rows are locked until the branch is finished.
type Prepared struct {
	Resource string        // name; of resources that share a server of MySQL or MariaDB, any one
	Age      time.Duration // since the branch was prepared, by the clock of its database; negative on MySQL and MariaDB, which do not tell
}

// Transactions returns the transactions of the log that are not finished on every resource, sorted by ID. The error joins those of
// resources that do not answer, and tells of a log on a standby, which may lack the last records. The transactions are returned all the same,
// without the branches of such resources.
func (l *Log) Transactions(ctx context.Context, resources []*Resource) ([]Transaction, error) {
	identity, err := l.named(ctx, resources)
	if err != nil {
		return nil, failed("list transactions", err)
	}
	branches, away := listAll(ctx, identity, resources) // before the log, as in recovery
	coordinators, err := l.coordinators(ctx)
	if err != nil {
		return nil, failed("list transactions", errors.Join(away, err))
	}
	records, err := l.records(ctx, identity)
	if errors.Is(err, errStandby) { // an operator looks on
		away = errors.Join(away, err)
		records, err = l.recordsAt(ctx, l.db, identity)
	}
	orders, unread := l.heuristics(ctx, identity)
	if err = errors.Join(err, unread); err != nil {
		return nil, failed("list transactions", errors.Join(away, err))
	}
	all := make(map[ID]*Transaction)
	get := func(id ID) *Transaction {
		t := all[id]
		if t == nil {
			c, known := coordinators[id.coordinator]
			t = &Transaction{ID: id, Coordinator: c.name, State: map[bool]State{true: Aborting, false: Running}[c.fenced]}
			if !known {
				t.State = Unknown
			}
			all[id] = t
		}
		return t
	}
	for _, r := range records {
		t := get(r.id)
		t.State, t.Recorded = Committing, r.resources
	}
	listed := make(map[branchID]bool)
	for r, some := range branches {
		for _, b := range some {
			if listed[b.branchID] {
				continue
			}
			listed[b.branchID] = true
			t := get(b.ID)
			t.Prepared = append(t.Prepared, Prepared{r.name, b.age})
		}
	}
	var sorted []Transaction
	for id, t := range all {
		if h, is := orders[id]; is && t.State == Unknown {
			t.State, t.Heuristic = Resolved, &h
		}
		slices.SortFunc(t.Prepared, func(a, b Prepared) int { return cmp.Compare(a.Resource, b.Resource) })
		sorted = append(sorted, *t)
	}
	slices.SortFunc(sorted, func(a, b Transaction) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
	return sorted, failed("list transactions", away)
}

// named checks the log and the resources, and returns the identity of the log.
func (l *Log) named(ctx context.Context, resources []*Resource) (identity int64, err error) {
	seen := make(map[string]bool)
	for _, r := range resources {
		if err := r.validate(); err != nil {
			return 0, err
		}
		if seen[r.name] {
			return 0, fmt.Errorf("%w: two resources have the name %s", pawl.ErrInvalid, r.name)
		}
		seen[r.name] = true
	}
	return l.check(ctx)
}

// process is a coordinator as its row has it.
type process struct {
	name   string
	fenced bool
}

func (l *Log) coordinators(ctx context.Context) (map[int64]process, error) {
	query, args, err := l.new().Add("SELECT id, name, fenced FROM ").Table(l.rows.Name).Add(" WHERE id > 0").Build()
	if err != nil {
		return nil, err
	}
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[int64]process)
	for rows.Next() {
		var id int64
		var p process
		if err := rows.Scan(&id, &p.name, &p.fenced); err != nil {
			return nil, err
		}
		all[id] = p
	}
	return all, rows.Err()
}
