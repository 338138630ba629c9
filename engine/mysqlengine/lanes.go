package mysqlengine

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/internal/sqlengine"
	"github.com/pawl-go/pawl/internal/turn"
)

// lanes are the ways to the server. Heartbeats have a connection of their own, which
// they keep; all else has the rest of the pool.
type lanes struct {
	db    *sql.DB
	renew string // the query that has the connection of its own

	own     turn.Turn // of the call that uses what follows
	conn    *sql.Conn
	closing bool
}

// query asks the server once, without a prepared statement. Text and bytes become literals that need no escaping.
func (l *lanes) query(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error {
	ask := l.shared
	if query == l.renew {
		ask = l.alone
	}
	for _, arg := range args {
		switch arg.(type) {
		case string, []byte:
			arg = text(arg)
		}
		query = strings.Replace(query, "?", fmt.Sprint(arg), 1)
	}
	err := ask(ctx, query, row)
	if hasNumber(err, readOnly) {
		l.leave(ctx)
	}
	return err
}

// shared asks on any connection of the pool, and closes the connection of a request that failed. A
// server that kills a query may run no handlers, and then the transaction stays open.
func (l *lanes) shared(ctx context.Context, query string, row func(scan func(...any) error) error) error {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return err
	}
	rows, err := conn.QueryContext(ctx, query)
	if err = sqlengine.Each(rows, err, row); err != nil && !rolledBack(err) {
		destroy(conn)
	}
	conn.Close() //nolint:errcheck // it goes back, or is closed
	return err
}

// destroy closes a connection that the pool would keep.
func destroy(conn *sql.Conn) {
	conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // which closes it
}

// alone asks on the connection that nothing else uses. If the server has closed that connection meanwhile, alone asks once
// more on another, because a renewal may be done twice.
func (l *lanes) alone(ctx context.Context, query string, row func(scan func(...any) error) error) error {
	if err := l.own.Take(ctx); err != nil {
		return err
	}
	defer l.own.Give()
	fresh := l.conn == nil
	told := false
	err := l.onOwn(ctx, query, func(scan func(...any) error) error { told = true; return row(scan) })
	if !fresh && !told && (errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) || hasNumber(err, killed, idleTooLong)) {
		err = l.onOwn(ctx, query, row)
	}
	return err
}

// onOwn asks on that connection, and keeps it as long as it works.
func (l *lanes) onOwn(ctx context.Context, query string, row func(scan func(...any) error) error) (err error) {
	if l.closing {
		return sql.ErrConnDone
	}
	if l.conn == nil {
		if l.conn, err = l.db.Conn(ctx); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil && !rolledBack(err) {
			l.drop()
		}
	}()
	rows, err := l.conn.QueryContext(ctx, query)
	return sqlengine.Each(rows, err, row)
}

// drop closes the connection that renews.
func (l *lanes) drop() {
	if l.conn != nil {
		destroy(l.conn)
		l.conn = nil
	}
}

// leave closes the connections that nobody uses: they lead to a server that takes no
// writes any more, and new ones may lead to another.
func (l *lanes) leave(ctx context.Context) {
	if l.own.TryTake() { // else the renewal under way finds out by itself
		l.drop()
		l.own.Give()
	}
	for range l.db.Stats().Idle {
		conn, err := l.db.Conn(ctx)
		if err != nil {
			return
		}
		destroy(conn)
	}
}

// close gives up the connection.
func (l *lanes) close() {
	l.own.Take(context.Background()) //nolint:errcheck // that context does not end
	l.closing = true
	l.drop()
	l.own.Give()
}
