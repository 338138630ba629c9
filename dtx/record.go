package dtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/internal/protocol"
)

// exec runs a statement of its own transaction, again while other transactions are in the way.
func (l *Log) exec(ctx context.Context, s *dialect.Statement) (changed int64, err error) {
	err = dialect.Repeat(ctx, dialect.Again, func() error {
		result, err := s.Exec(ctx, l.db)
		if err == nil {
			changed, err = result.RowsAffected()
		}
		return err
	})
	return changed, err
}

// repeat runs a statement that may run twice, again while connections of the pool turn out to be lost.
func (l *Log) repeat(ctx context.Context, s *dialect.Statement) (changed int64, err error) {
	for {
		changed, err = l.exec(ctx, s)
		if !dialect.Lost(err) || !pause(ctx) {
			return changed, err
		}
	}
}

// register makes a coordinator's row, if the log still has its identity. The row is on disk before the first branch is prepared. So a branch
// without a row is of a log that was lost, and recovery does not touch the branch.
func (l *Log) register(ctx context.Context, identity int64, name string) (id int64, err error) {
	id = rand.Int64N(1<<62) + 1
	s := l.new().Add("INSERT INTO ").Table(l.rows.Name).Add(" (id, fenced, began, name) SELECT ")
	typed := map[dialect.Dialect][2]string{dialect.PostgreSQL: {"::bigint", "::text"}}[l.dialect]
	s.Value(id).Add(typed[0], ", 0, ", dialect.Seconds(l.dialect), ", ").Value(name).Add(typed[1])
	n, err := l.exec(ctx, s.Add(" FROM ").Table(l.rows.Name).Add(" WHERE id = 0 AND began = ").Value(identity))
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: table %s is no longer the log with which this coordinator began", pawl.ErrMismatch, l.rows.Name)
	}
	if err == nil {
		_, err = l.exec(ctx, l.new().Add("INSERT INTO ").Table(l.beats.Name).Add(" (id, beat) VALUES (").Value(id).Add(", 0)"))
	}
	return id, failed("register", err)
}

// beat shows recovery that the coordinator lives. Fenced is true if a recovery has taken the coordinator for dead.
func (l *Log) beat(ctx context.Context, id int64) (fenced bool, err error) {
	if _, err := l.repeat(ctx, l.new().Add("UPDATE ").Table(l.beats.Name).Add(" SET beat = beat + 1 WHERE id = ").Value(id)); err != nil {
		return false, err
	}
	row, err := l.row(ctx, l.db, id)
	return err == nil && row != protocol.Live, err
}

// probe runs each statement that a coordinator needs, without effect, so that a missing right is found at the start.
func (l *Log) probe(ctx context.Context, id int64) error {
	none := ID{coordinator: -1}
	_, err := l.beat(ctx, id)
	if err == nil {
		err = l.fence(ctx, none.coordinator)
	}
	if err == nil {
		_, err = l.decide(ctx, l.db, none, nil)
	}
	if err == nil {
		err = l.forget(ctx, none.coordinator, []int64{none.number})
	}
	for _, table := range []dialect.Table{l.rows, l.beats} {
		if err == nil {
			_, err = l.repeat(ctx, l.new().Add("DELETE FROM ").Table(table.Name).Add(" WHERE id = ").Value(none.coordinator))
		}
	}
	return failed("try the log", err)
}

// row reads a coordinator's row.
func (l *Log) row(ctx context.Context, db dialect.DB, id int64) (protocol.Row, error) {
	var fenced int
	err := l.new().Add("SELECT fenced FROM ").Table(l.rows.Name).Add(" WHERE id = ").Value(id).Scan(ctx, db, &fenced)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return protocol.Unknown, nil
	case err != nil || fenced == 0:
		return protocol.Live, err
	}
	return protocol.Fenced, nil
}

// decide is the commit point: one statement that writes the record only if the coordinator's row is not fenced. The statement
// locks the row, so a fence waits for its end. Db is the log's database, or the transaction of its branch.
func (l *Log) decide(ctx context.Context, db dialect.DB, id ID, resources []string) (written bool, err error) {
	s := l.new().Add("INSERT INTO ").Table(l.decided.Name).Add(" (coordinator, number, decided, resources) SELECT id, ")
	switch l.dialect { // which do not tell the type of a parameter by the column
	case dialect.PostgreSQL:
		s.Value(id.number).Add("::bigint, ", dialect.Seconds(l.dialect), ", ").Value([]byte(strings.Join(resources, ","))).Add("::bytea")
	default:
		s.Value(id.number).Add(", ", dialect.Seconds(l.dialect), ", ").Value([]byte(strings.Join(resources, ",")))
	}
	s.Add(" FROM ").Table(l.rows.Name).Add(" WHERE fenced = 0 AND id = ").Value(id.coordinator)
	s.Add(map[dialect.Dialect]string{dialect.PostgreSQL: " FOR SHARE", dialect.MySQL: " LOCK IN SHARE MODE"}[l.dialect])
	if db != dialect.DB(l.db) {
		result, err := s.Exec(ctx, db)
		if err != nil {
			return false, err
		}
		n, err := result.RowsAffected()
		return n == 1, err
	}
	n, err := l.exec(ctx, s)
	return n == 1, err
}

// ask fences the coordinator's row and looks for the record, in one transaction. A missing record says that nothing is
// committed only if no recovery has fenced the row before: recovery deletes records behind its fence.
func (l *Log) ask(ctx context.Context, id ID) (protocol.Kind, error) {
	opts := &sql.TxOptions{Isolation: sql.LevelReadCommitted} // the record is read after the wait for the row
	if l.dialect == dialect.SQLite {
		opts = nil
	}
	tx, err := l.db.BeginTx(ctx, opts)
	if err != nil {
		return protocol.LogSilent, err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit
	result, err := l.fencing(id.coordinator).Exec(ctx, tx)
	if err != nil {
		return protocol.LogSilent, err
	}
	first, err := result.RowsAffected()
	if err != nil {
		return protocol.LogSilent, err
	}
	found, err := l.has(ctx, tx, id)
	if err != nil {
		return protocol.LogSilent, err
	}
	switch err := tx.Commit(); {
	case found: // a record stays
		return protocol.LogFound, nil
	case err != nil || first == 0:
		return protocol.LogSilent, err
	}
	return protocol.LogMissing, nil
}

func (l *Log) fencing(coordinator int64) *dialect.Statement {
	return l.new().Add("UPDATE ").Table(l.rows.Name).Add(" SET fenced = 1 WHERE fenced = 0 AND id = ").Value(coordinator)
}

// fence makes sure that a coordinator decides nothing more.
func (l *Log) fence(ctx context.Context, coordinator int64) error {
	_, err := l.repeat(ctx, l.fencing(coordinator))
	return err
}

func (l *Log) has(ctx context.Context, db dialect.DB, id ID) (bool, error) {
	var one int
	err := l.new().Add("SELECT 1 FROM ").Table(l.decided.Name).Add(" WHERE coordinator = ").Value(id.coordinator).Add(" AND number = ").Value(id.number).Scan(ctx, db, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// Committed reports whether commit of a transaction is decided and some branch may still have to follow. The record is deleted
// some time after all branches are committed. So false says nothing about a transaction that was committed before.
func (l *Log) Committed(ctx context.Context, id ID) (bool, error) {
	is, err := l.has(ctx, l.db, id)
	return is, failed("read the log", err)
}

// record is a decision to commit.
type record struct {
	id        ID
	resources []string
}

// records returns all decisions. A standby may lack the last ones, and is refused.
func (l *Log) records(ctx context.Context, identity int64) (all []record, err error) {
	err = l.onPrimary(ctx, func(conn *sql.Conn) (err error) {
		all, err = l.recordsAt(ctx, conn, identity)
		return err
	})
	return all, err
}

func (l *Log) recordsAt(ctx context.Context, db dialect.DB, identity int64) (all []record, err error) {
	query, args, err := l.new().Add("SELECT coordinator, number, resources FROM ").Table(l.decided.Name).Build()
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r := record{id: ID{log: identity}}
		var names []byte
		if err := rows.Scan(&r.id.coordinator, &r.id.number, &names); err != nil {
			return nil, err
		}
		if len(names) > 0 {
			r.resources = strings.Split(string(names), ",")
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// beating returns the beats of all coordinators that are not fenced, and the others. A coordinator that died in register never beats.
func (l *Log) beating(ctx context.Context) (beats map[int64]int64, fenced []int64, err error) {
	query, args, err := l.new().Add("SELECT r.id, r.fenced, COALESCE(b.beat, -1) FROM ").Table(l.rows.Name).Add(" r LEFT JOIN ").Table(l.beats.Name).
		Add(" b ON b.id = r.id WHERE r.id > 0").Build()
	if err != nil {
		return nil, nil, err
	}
	rows, err := l.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	beats = make(map[int64]int64)
	for rows.Next() {
		var id, is, beat int64
		if err := rows.Scan(&id, &is, &beat); err != nil {
			return nil, nil, err
		}
		if is != 0 {
			fenced = append(fenced, id)
		} else {
			beats[id] = beat
		}
	}
	return beats, fenced, rows.Err()
}

// unregister deletes a coordinator's row: nothing of its transactions is prepared, and none begins. A row that has to stay needs no beats.
func (l *Log) unregister(ctx context.Context, id int64) error {
	for _, table := range []dialect.Table{l.rows, l.beats} {
		s := l.new().Add("DELETE FROM ").Table(table.Name).Add(" WHERE id = ").Value(id)
		if table.Name == l.rows.Name {
			s.Add(" AND fenced = 0 AND NOT EXISTS (SELECT 1 FROM ").Table(l.decided.Name).Add(" WHERE coordinator = ").Value(id).Add(")")
		}
		if _, err := l.repeat(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// forget deletes records of a coordinator, all of whose branches are committed.
func (l *Log) forget(ctx context.Context, coordinator int64, numbers []int64) error {
	for len(numbers) > 0 {
		n := min(len(numbers), 500)
		s := dialect.DeleteByKey(l.new(), l.decided.Name, "number", numbers[:n]).Add(" AND coordinator = ").Value(coordinator)
		if _, err := l.repeat(ctx, s); err != nil {
			return err
		}
		numbers = numbers[n:]
	}
	return nil
}
