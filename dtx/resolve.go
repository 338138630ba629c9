package dtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/internal/protocol"
)

// ErrDecided says that the log, or a coordinator that lives, decides the transaction: an operator must not.
var ErrDecided = errors.New("not for an operator to decide")

// ErrNoTransaction says that neither the log nor a database that answered knows the transaction. The transaction may run, and have
// prepared nothing yet. Or the transaction is over, and only its rows tell whether it was committed.
var ErrNoTransaction = errors.New("no such transaction")

// ErrLeft says that [Log.Resolve] has left a branch, because another connection has that branch. The decision stands, and recovery finishes
// the branch. On MariaDB the other connection may be the coordinator's own, which keeps the branch until it ends.
var ErrLeft = errors.New("another connection has the branch, so recovery finishes the branch later")

// Heuristic is the decision of an operator on a transaction that the log does not know. The name is that of the
// X/Open XA specification: nobody can tell whether the other branches were decided the same way.
type Heuristic struct {
	ID     ID
	Commit bool
	Reason string
	Time   time.Time // by the clock of the log's database, in whole seconds
}

// maxReason is the most bytes of a reason.
const maxReason = 500

// Resolve decides a transaction for an operator, and finishes its branches on the resources that answer. Recovery finishes the
// others. The reason has 1 to 500 bytes. Nil says that the branches on these resources are finished. While another connection has
// a branch, Resolve tries for a second, and then the error matches [ErrLeft].
//
// If the log has lost the transaction's coordinator, the operator decides, and the decision is kept with its reason. The first
// decision is for ever. To roll back a prepared transaction whose coordinator lives is no such decision: Resolve
// fences the coordinator, whose open transactions with several branches all abort. If the log decides otherwise, or a living coordinator may, the error
// matches [ErrDecided], and nothing is changed.
//
// The record of a commit is deleted when all branches are committed. So a transaction without a record and without a prepared branch may be
// committed, or rolled back, or run still. Then the error matches [ErrNoTransaction].
func (l *Log) Resolve(ctx context.Context, resources []*Resource, id ID, commit bool, reason string) error {
	identity, err := l.named(ctx, resources)
	if err == nil && (len(reason) < 1 || len(reason) > maxReason || !utf8.ValidString(reason)) {
		err = fmt.Errorf("%w: the reason has %d bytes: 1 to %d of UTF-8 are allowed", pawl.ErrInvalid, len(reason), maxReason)
	}
	if err == nil && id.log != identity {
		err = fmt.Errorf("%w: %v is of another log than %s", ErrNoTransaction, id, l.rows.Name)
	}
	if err == nil {
		err = l.resolve(ctx, resources, id, commit, reason)
	}
	return failed("resolve", err)
}

func (l *Log) resolve(ctx context.Context, resources []*Resource, id ID, commit bool, reason string) error {
	all, away := listAll(ctx, id.log, resources)
	for {
		var row protocol.Row
		var record bool
		err := l.onPrimary(ctx, func(conn *sql.Conn) (err error) { // a standby may have the row, and not yet the record
			if row, err = l.row(ctx, conn, id.coordinator); err == nil {
				record, err = l.has(ctx, conn, id)
			}
			return err
		})
		if err != nil {
			return err
		}
		switch protocol.Resolve(row, record, commit) {
		case protocol.Contradicted:
			if !record && !prepared(all, id) { // perhaps the commit is over, and its record is deleted
				return errors.Join(untold(id), away)
			}
			return contradiction(id, record, row)
		case protocol.FenceFirst:
			if !prepared(all, id) { // perhaps all is over, and the fence would abort other transactions
				return errors.Join(untold(id), away)
			}
			if err := l.fence(ctx, id.coordinator); err != nil {
				return err
			}
			continue
		case protocol.Heuristic:
			wish := Heuristic{ID: id, Commit: commit, Reason: reason}
			known, err := l.ordered(ctx, wish)
			if err != nil {
				return err
			}
			// Since the list the coordinator may have finished the branch and closed. A list that was read after the row tells.
			if all, away = listAll(ctx, id.log, resources); !known && !prepared(all, id) {
				return errors.Join(untold(id), away)
			}
			if !known {
				err = l.order(ctx, wish)
			}
			if err != nil {
				return err
			}
		}
		there, err := finishAll(ctx, all, id, commit)
		if err == nil && !there && !record && row == protocol.Fenced { // a record may have been deleted before it was looked for
			err = untold(id)
		}
		return errors.Join(away, err)
	}
}

// untold says that nothing tells how a transaction ended, or whether it has.
func untold(id ID) error {
	return fmt.Errorf("%w: %v: the log has no record, and no branch is prepared on a resource that answered. "+
		"Only the rows tell whether the transaction runs, was committed, or was rolled back", ErrNoTransaction, id)
}

func contradiction(id ID, record bool, row protocol.Row) error {
	why := "the coordinator is fenced and the log has no record of a commit, so recovery rolls back each branch that is prepared"
	switch {
	case record:
		why = "commit is recorded, so recovery commits the branches"
	case row == protocol.Live:
		why = "the coordinator may live, and it alone can commit"
	}
	return fmt.Errorf("%w: %v: %s", ErrDecided, id, why)
}

func prepared(all map[*Resource][]listed, id ID) bool {
	for _, branches := range all {
		for _, b := range branches {
			if b.ID == id {
				return true
			}
		}
	}
	return false
}

// finishAll finishes the listed branches of a transaction. There says that some branch was prepared still, after the log was read. No
// record of such a transaction is deleted.
func finishAll(ctx context.Context, all map[*Resource][]listed, id ID, commit bool) (there bool, failed error) {
	tried := make(map[branchID]bool) // several resources may be one server of MariaDB, and list the same branch
	for r, branches := range all {
		for _, b := range branches {
			if b.ID != id || tried[b.branchID] {
				continue
			}
			was, err := r.finishSoon(ctx, b.name(), commit)
			there, tried[b.branchID] = there || was, err == nil || errors.Is(err, ErrLeft)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %v: %w", r.name, b, err))
			}
		}
	}
	return there, failed
}

// finishSoon is finish, again for a second while another connection has the branch.
func (r *Resource) finishSoon(ctx context.Context, b branchName, commit bool) (there bool, err error) {
	for began := time.Now(); ; {
		switch err = r.finish(ctx, b, commit); {
		case err == nil:
			return true, nil
		case errors.Is(err, errGone):
			return there, nil
		case !errors.Is(err, errOwned):
			return there, err
		}
		there = true
		if time.Since(began) > time.Second || !pause(ctx) {
			return there, ErrLeft
		}
	}
}

// order records the decision of an operator, unless there is one already.
func (l *Log) order(ctx context.Context, h Heuristic) error {
	s := l.new().Add("INSERT INTO ").Table(l.resolved.Name).Add(" (coordinator, number, committed, resolved, reason) VALUES (").
		Value(h.ID.coordinator).Add(", ").Value(h.ID.number).Add(map[bool]string{true: ", 1, ", false: ", 0, "}[h.Commit], dialect.Seconds(l.dialect), ", ").
		Value(h.Reason).Add(")")
	_, failed := l.exec(ctx, s)
	if failed == nil {
		return nil
	}
	known, err := l.ordered(ctx, h)
	if err == nil && !known {
		err = failed
	}
	return err
}

// ordered reports whether an operator has decided so. If an operator decided otherwise, the error matches [ErrDecided].
func (l *Log) ordered(ctx context.Context, h Heuristic) (known bool, err error) {
	all, err := l.heuristics(ctx, h.ID.log)
	was, known := all[h.ID]
	if known && was.Commit != h.Commit {
		err = fmt.Errorf("%w: %v: an operator decided otherwise at %s: %s", ErrDecided, h.ID, was.Time.UTC().Format(time.RFC3339), was.Reason)
	}
	return known, err
}

// Heuristics returns the decisions of operators, by transaction. The log keeps them for ever.
func (l *Log) Heuristics(ctx context.Context) (map[ID]Heuristic, error) {
	identity, err := l.check(ctx)
	if err != nil {
		return nil, failed("read the decisions of operators", err)
	}
	all, err := l.heuristics(ctx, identity)
	return all, failed("read the decisions of operators", err)
}

func (l *Log) heuristics(ctx context.Context, identity int64) (map[ID]Heuristic, error) {
	query, args, err := l.new().Add("SELECT coordinator, number, committed, resolved, reason FROM ").Table(l.resolved.Name).Build()
	if err != nil {
		return nil, err
	}
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[ID]Heuristic)
	for rows.Next() {
		h := Heuristic{ID: ID{log: identity}}
		var at int64
		if err := rows.Scan(&h.ID.coordinator, &h.ID.number, &h.Commit, &at, &h.Reason); err != nil {
			return nil, err
		}
		h.Time = time.Unix(at, 0)
		all[h.ID] = h
	}
	return all, rows.Err()
}
