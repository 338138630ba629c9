package sqliteengine

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/pawl-go/pawl/engine"
)

// tx is one use of the connection, and what is to be done after it.
type tx struct {
	*Engine
	now     int64
	last    int64  // token or version given out
	session string // that asks
	ends    int64  // when that session ends, 0 when there is none

	messages []message
	buried   []string // sessions that were removed
}

// use waits for the connection and classifies what comes of it. It calls do
// again while another process has the file locked.
func (e *Engine) use(ctx context.Context, verb string, do func(*tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	t := &tx{Engine: e}
	err := do(t)
	for errors.Is(err, sqlite3.BUSY) && ctx.Err() == nil {
		time.Sleep(time.Millisecond) // SQLite has waited itself, unless it saw no use in it
		*t = tx{Engine: e}
		err = do(t)
	}
	<-e.turn
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		t.deliver()
	}
	return engine.Unavailable(verb, err)
}

// transact is one verb: step sees no ended session.
func (e *Engine) transact(ctx context.Context, verb, session string, step func(*tx) error) error {
	return e.use(ctx, verb, func(t *tx) error {
		t.session = session
		return t.run(ctx, func() error {
			var first int64
			err := t.get(`SELECT last, coalesce((SELECT ends FROM pawl_sessions WHERE id = ?), 0),
				coalesce((SELECT min(ends) FROM pawl_sessions), 1 << 62) FROM pawl_meta`, args{session}, &t.last, &t.ends, &first)
			before := t.last
			if err == nil && first <= t.now {
				err = t.sweep()
			}
			if err == nil {
				err = step(t)
			}
			if err == nil && t.last != before {
				err = t.exec(`UPDATE pawl_meta SET last = ?`, t.last)
			}
			return err
		})
	})
}

// run does all of step or nothing. Only the wait for the write lock ends with
// ctx: after that it is a matter of microseconds, and the outcome is known.
func (t *tx) run(ctx context.Context, step func() error) error {
	begin, err := t.prepared(`BEGIN IMMEDIATE`)
	if err != nil {
		return err
	}
	_, err = begin.ExecContext(ctx)
	if err == nil {
		t.now = now()
		err = step()
	}
	if err == nil {
		err = t.exec(`COMMIT`)
	}
	if err != nil {
		t.exec(`ROLLBACK`) //nolint:errcheck // SQLite may have done so itself
	}
	return err
}

func (t *tx) prepared(query string) (*sql.Stmt, error) {
	if stmt := t.stmts[query]; stmt != nil {
		return stmt, nil
	}
	stmt, err := t.conn.PrepareContext(context.Background(), query)
	if err == nil {
		t.stmts[query] = stmt
	}
	return stmt, err
}

func (t *tx) exec(query string, args ...any) error {
	stmt, err := t.prepared(query)
	if err == nil {
		_, err = stmt.ExecContext(context.Background(), args...)
	}
	return err
}

type args = []any

// get reads one row. Without one it returns [sql.ErrNoRows].
func (t *tx) get(query string, args args, into ...any) error {
	stmt, err := t.prepared(query)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(context.Background(), args...).Scan(into...)
}

// each reads all rows. It must not use the connection for anything else.
func (t *tx) each(query string, args args, row func(scan func(...any) error) error) error {
	stmt, err := t.prepared(query)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(context.Background(), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (t *tx) strings(query string, args ...any) (all []string, err error) {
	err = t.each(query, args, func(scan func(...any) error) error {
		all = append(all, "")
		return scan(&all[len(all)-1])
	})
	return all, err
}
