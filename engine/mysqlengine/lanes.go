package mysqlengine

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/internal/sqlengine"
	"github.com/pawl-go/pawl/internal/turn"
)

// lanes are the ways to the server. Heartbeats have a connection of their own, which
// they keep; all else has the rest of the pool.
type lanes struct {
	db    *sql.DB
	renew string   // the query that has the connection of its own
	stmts sync.Map // of the pool: query → *sql.Stmt

	own     turn.Turn // of the call that uses what follows
	conn    *sql.Conn
	stmt    *sql.Stmt // that renews, on conn
	closing bool
}

func newLanes(db *sql.DB, renew string) *lanes {
	return &lanes{db: db, renew: renew, own: turn.New(1)}
}

// query asks the server once.
func (l *lanes) query(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error {
	var err error
	if query == l.renew {
		err = l.alone(ctx, args, row)
	} else {
		err = l.shared(ctx, query, args, row)
	}
	if hasNumber(err, readOnly) {
		l.leave(ctx)
	}
	return err
}

// shared asks on any connection of the pool.
func (l *lanes) shared(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error {
	stmt, known := l.stmts.Load(query)
	if !known {
		made, err := l.db.PrepareContext(ctx, query)
		if err != nil {
			return err
		}
		if stmt, known = l.stmts.LoadOrStore(query, made); known { // another call was first
			defer made.Close()
		}
	}
	rows, err := stmt.(*sql.Stmt).QueryContext(ctx, args...)
	return sqlengine.Each(rows, err, row)
}

// alone asks on the connection that nothing else uses. If that has ended meanwhile, alone asks once
// more on a new one, because a renewal may be done twice.
func (l *lanes) alone(ctx context.Context, args []any, row func(scan func(...any) error) error) error {
	if err := l.own.Take(ctx); err != nil {
		return err
	}
	defer l.own.Give()
	fresh := l.conn == nil
	err := l.onOwn(ctx, args, row)
	if errors.Is(err, driver.ErrBadConn) && !fresh { // the driver says so before the first row only
		err = l.onOwn(ctx, args, row)
	}
	return err
}

// onOwn asks on that connection, and keeps it as long as it works.
func (l *lanes) onOwn(ctx context.Context, args []any, row func(scan func(...any) error) error) (err error) {
	if l.closing {
		return sql.ErrConnDone
	}
	if l.conn == nil {
		if l.conn, err = l.db.Conn(ctx); err != nil {
			return err
		}
	}
	defer func() {
		var refused *mysql.MySQLError
		if err != nil && !errors.As(err, &refused) {
			l.drop()
		}
	}()
	if l.stmt == nil {
		if l.stmt, err = l.conn.PrepareContext(ctx, l.renew); err != nil {
			return err
		}
	}
	rows, err := l.stmt.QueryContext(ctx, args...)
	return sqlengine.Each(rows, err, row)
}

// drop gives up the connection that renews.
func (l *lanes) drop() {
	if l.conn != nil {
		l.conn.Close() //nolint:errcheck // nothing was begun on it
		l.conn, l.stmt = nil, nil
	}
}

// leave closes the connections that nobody uses: they lead to a server that takes no
// writes any more, and new ones may lead to another.
func (l *lanes) leave(ctx context.Context) {
	if l.own.TryTake() { // else the renewal under way finds out by itself
		if l.conn != nil {
			l.conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // which closes it
			l.drop()
		}
		l.own.Give()
	}
	for range l.db.Stats().Idle {
		conn, err := l.db.Conn(ctx)
		if err != nil {
			return
		}
		conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // which closes it
		conn.Close()                                           //nolint:errcheck // it is closed
	}
}

// close gives up the connection and the statements.
func (l *lanes) close() {
	l.own.Take(context.Background()) //nolint:errcheck // that context does not end
	l.closing = true
	l.drop()
	l.own.Give()
	l.stmts.Range(func(_, stmt any) bool {
		stmt.(*sql.Stmt).Close() //nolint:errcheck // a connection that broke has taken its statement along
		return true
	})
}
