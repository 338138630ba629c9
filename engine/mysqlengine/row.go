package mysqlengine

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/rowengine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// RowOptions change where the names of row mode are kept. The zero value is the
// default.
type RowOptions struct {
	// Prefix begins the name of every table and procedure: letters, digits and
	// underscores. Default "pawl_".
	Prefix string
}

// rows has the methods of a Row, and no name that users see.
type rows = rowengine.Engine

// Row is the row mode in one database. Create it with [NewRow].
type Row struct{ *rows }

var _ engine.Engine = Row{}

// Caps implements [engine.Engine].
func (Row) Caps() engine.Caps { return rowengine.Caps("mysql row", time.Second) }

// NewRow returns the row mode on a database, which stays the caller's. Nil opts
// are the defaults. NewRow creates the tables and procedures where they are missing,
// if the user may.
//
// Once they are there a user needs EXECUTE on the database, SELECT on row_claims and row_boot, and SELECT and UPDATE on
// row_meta. A right on a single procedure goes when a later version replaces the procedure.
//
// Each lock that is held or waited for takes a connection for itself, so
// SetMaxOpenConns bounds how many there can be. A claim above that is refused, as by a store that is
// away. A database that others use, too, may have no free connection before: then a claim waits for
// one. A holder needs no other connection to renew or release; operators, and a look after a broken
// connection, do need one.
//
// A cluster in which several servers take writes, such as Galera, is refused, because each server has
// row locks of its own. The TTL is rounded up to seconds.
func NewRow(ctx context.Context, db *sql.DB, opts *RowOptions) (Row, error) {
	prefix, err := checkPrefix(cmp.Or(opts, new(RowOptions)).Prefix)
	if err == nil {
		err = migrate(ctx, db, tables{
			name: "the tables of row mode", meta: prefix + "row_meta", version: rowVersion, definitions: func() []string { return rowDefinitions(prefix) }, routine: prefix + "row_wait",
			live: "SELECT COUNT(*) FROM " + prefix + "row_claims", old: []string{prefix + "row_claims"}, alone: true,
		})
	}
	if err != nil {
		return Row{}, err
	}
	return Row{rowengine.New(&rowStore{db, prefix}, Row{}.Caps(), db.Stats().MaxOpenConnections)}, nil
}

// rowStore implements [rowengine.Store].
type rowStore struct {
	db     *sql.DB
	prefix string
}

// Check implements [rowengine.Store].
func (s *rowStore) Check(ctx context.Context, ttl time.Duration) error {
	_, err := s.db.ExecContext(ctx, fmt.Sprintf("UPDATE %srow_meta SET ttl = %[2]d WHERE ttl < %[2]d", s.prefix, ttl.Microseconds()))
	return err
}

// text is a string, or bytes, as a literal that needs no escaping, so that a call is one
// round trip without a prepared statement.
func text(s any) string { return fmt.Sprintf("x'%x'", s) }

// rowConn implements [rowengine.Conn].
type rowConn struct {
	*sql.Conn
	prefix string
}

// Connect implements [rowengine.Store].
func (s *rowStore) Connect(ctx context.Context) (rowengine.Conn, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &rowConn{conn, s.prefix}, nil
}

// call runs a procedure of a claim. call asks the driver itself, because database/sql starts a
// goroutine for each result.
func (c *rowConn) call(ctx context.Context, procedure string, r *rowengine.Request) (rowengine.Answer, error) {
	var token, grace sql.NullInt64
	ttl := (r.TTL + time.Second - 1) / time.Second
	query := fmt.Sprintf("CALL %srow_%s(%s, %s, %s, %s, %s, %t, %t, %d)", c.prefix, procedure,
		text(r.Resource), text(r.ID), text(r.Owner), text(r.Session), text(r.Label), r.Barging, r.Wait, ttl)
	err := c.Raw(func(conn any) error {
		queryer, ok := conn.(driver.QueryerContext)
		if !ok {
			return driver.ErrSkip
		}
		rows, err := queryer.QueryContext(ctx, query, nil)
		if err != nil {
			return err
		}
		got := make([]driver.Value, 2)
		err = rows.Next(got)
		err = errors.Join(err, token.Scan(got[0]), grace.Scan(got[1]))     // before a packet overwrites got
		if more, ok := rows.(driver.RowsNextResultSet); ok && err == nil { // Close would wait for the end of the call without ctx
			if end := more.NextResultSet(); end != io.EOF {
				err = end
			}
		}
		return errors.Join(err, rows.Close())
	})
	if errors.Is(err, driver.ErrSkip) { // a driver around the driver
		err = c.QueryRowContext(ctx, query).Scan(&token, &grace)
	}
	if err == nil && !(token.Valid && grace.Valid) {
		err = errors.New("the server does not say when it started")
	}
	return rowengine.Answer{Token: fence.Token(token.Int64), Grace: time.Duration(grace.Int64) * time.Microsecond}, err
}

// Enter implements [rowengine.Conn].
func (c *rowConn) Enter(ctx context.Context, r *rowengine.Request) (rowengine.Answer, error) {
	return c.call(ctx, "enter", r)
}

// Wait implements [rowengine.Conn]. The server ends the wait after a TTL, because it would not
// notice before that the client is dead.
func (c *rowConn) Wait(ctx context.Context, r *rowengine.Request) (rowengine.Answer, error) {
	got, err := c.call(ctx, "wait", r)
	if err != nil && ctx.Err() == nil && hasNumber(err, interrupted) {
		err = rowengine.ErrBroken
	}
	return got, err
}

// Ping implements [rowengine.Conn]. The server that took over does not know a lock of a server that
// was made read-only.
func (c *rowConn) Ping(ctx context.Context) error {
	var open string
	err := c.QueryRowContext(ctx, "SELECT CAST(@@GLOBAL.read_only AS CHAR)").Scan(&open)
	if err == nil && open != "0" && open != "OFF" {
		err = errors.New("the server is read-only: another may have taken over")
	}
	return err
}

// Alive implements [rowengine.Conn]: the driver looks at the socket when a
// connection is taken from the pool.
func (c *rowConn) Alive() bool {
	err := c.Raw(func(conn any) error {
		if r, ok := conn.(driver.SessionResetter); ok {
			return r.ResetSession(context.Background())
		}
		return nil
	})
	return err == nil
}

// Free implements [rowengine.Conn].
func (c *rowConn) Free(ctx context.Context) error {
	_, err := c.ExecContext(ctx, "CALL "+c.prefix+"row_leave()")
	if err == nil {
		return c.Close()
	}
	c.Destroy()
	if hasNumber(err, killed, idleTooLong) {
		err = fmt.Errorf("%w: %w", rowengine.ErrEnded, err)
	}
	return err
}

// Destroy implements [rowengine.Conn].
func (c *rowConn) Destroy() { destroy(c.Conn) }

// peek reads what open transactions have written: that is where claims are.
func (s *rowStore) peek(ctx context.Context, query string, row func(scan func(...any) error) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // it has read
	rows, err := tx.QueryContext(ctx, strings.ReplaceAll(query, "pawl_", s.prefix))
	return sqlengine.Each(rows, err, row)
}

// List implements [rowengine.Store].
func (s *rowStore) List(ctx context.Context, prefix string) (names []string, err error) {
	// The byte 0xFF is in no UTF-8.
	query := "SELECT DISTINCT resource FROM pawl_row_claims WHERE resource >= " + text(prefix) + " AND resource < " + text(prefix+"\xff")
	err = s.peek(ctx, query, func(scan func(...any) error) error {
		names = append(names, "")
		return scan(&names[len(names)-1])
	})
	return names, err
}

// Show implements [rowengine.Store].
func (s *rowStore) Show(ctx context.Context, name string) (r engine.Resource, err error) {
	query := `SELECT id, held, claim, owner, session, label, barging, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)),
			COALESCE(TIMESTAMPDIFF(MICROSECOND, granted, UTC_TIMESTAMP(6)), 0)
		FROM pawl_row_claims WHERE resource = ` + text(name) + ` ORDER BY held DESC, id`
	err = s.peek(ctx, query, func(scan func(...any) error) error {
		c := engine.ClaimInfo{Held: engine.Unknown, Left: engine.Unknown}
		var id, age, since int64
		var held bool
		if err := scan(&id, &held, &c.ID, &c.Owner, &c.Session, &c.Label, &r.Barging, &age, &since); err != nil {
			return err
		}
		if held {
			c.Token, c.Held = fence.Token(id), time.Duration(since)*time.Microsecond
		}
		c.Age = time.Duration(age) * time.Microsecond
		// For an instant a claim that is being granted is there twice.
		if !slices.ContainsFunc(r.Claims, func(is engine.ClaimInfo) bool { return is.ID == c.ID }) {
			r.Claims = append(r.Claims, c)
		}
		return nil
	})
	return r, err
}

// Grace implements [rowengine.Store]. As long as no client has noticed a restart, or another server, the whole grace is to come.
func (s *rowStore) Grace(ctx context.Context) (left time.Duration, err error) {
	query := "SELECT COALESCE(GREATEST(COALESCE(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), (SELECT ready FROM %[1]srow_boot WHERE one = " + rowServer + `)), MAX(ttl)),
		MAX(IF(server IN (0, @@GLOBAL.server_id), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), moved), ttl))), 0) FROM %[1]srow_meta`
	err = s.db.QueryRowContext(ctx, fmt.Sprintf(query, s.prefix)).Scan((*int64)(&left))
	return left * time.Microsecond, err
}

// Break implements [rowengine.Store]. A waiter stays connected; a holder has nothing to interrupt.
// To kill the query of an idle connection does nothing.
func (s *rowStore) Break(ctx context.Context, resource, claim string, gently bool) (found bool, err error) {
	query := `SELECT CONCAT('KILL ', IF(c.held OR COALESCE(p.command, '') <> 'Query' AND NOT ` + strconv.FormatBool(gently) + `, 'CONNECTION ', 'QUERY '), c.conn)
		FROM pawl_row_claims c LEFT JOIN information_schema.processlist p ON p.id = c.conn
		WHERE c.resource = ` + text(resource) + ` AND c.claim = ` + text(claim)
	var kills []string
	err = s.peek(ctx, query, func(scan func(...any) error) error {
		kills = append(kills, "")
		return scan(&kills[len(kills)-1])
	})
	for _, kill := range kills {
		if _, failed := s.db.ExecContext(ctx, kill); failed != nil && !hasNumber(failed, noThread) {
			err = errors.Join(err, failed)
		}
	}
	return len(kills) > 0, err
}
