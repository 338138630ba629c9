package mysqlengine

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// leaseVersion is that of the tables and procedures of lease mode.
const leaseVersion = 1

// The server's numbers of what can go wrong.
const (
	noDatabaseRight  = 1044
	noTableRight     = 1142
	noTable          = 1146
	noProcedureRight = 1370
	lockTimeout      = 1205
	deadlock         = 1213
)

func hasNumber(err error, numbers ...uint16) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && slices.Contains(numbers, refused.Number)
}

// migrate makes sure that the tables are there, and of our version.
func (e *Engine) migrate(ctx context.Context) error {
	err := e.checkTables(ctx, e.db)
	if hasNumber(err, noTable) || errors.Is(err, errOlder) {
		err = e.createTables(ctx)
		if hasNumber(err, noDatabaseRight, noTableRight, noProcedureRight) {
			return fmt.Errorf("open: %w: the tables are missing or old, and this user may not create them: "+
				"let one who may run pawl store init: %w", engine.ErrUnavailable, err)
		}
	}
	if err == nil || errors.Is(err, engine.ErrUnsupported) {
		return err
	}
	return engine.Unavailable("open", err)
}

var errOlder = errors.New("the tables are of an older version")

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (e *Engine) checkTables(ctx context.Context, db querier) error {
	var version int
	err := db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version), 0) FROM "+e.language.prefix+"meta").Scan(&version)
	switch {
	case err != nil:
		return err
	case version < leaseVersion:
		return errOlder
	case version > leaseVersion:
		return fmt.Errorf("open: %w: the tables are of version %d, this program knows version %d", engine.ErrUnsupported, version, leaseVersion)
	}
	return nil
}

// createTables does it one client at a time. The server keeps each statement,
// so the version comes last.
func (e *Engine) createTables(ctx context.Context) error {
	conn, err := e.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // ends the connection, and its lock and mode
	lock := "SELECT GET_LOCK(CONCAT('pawl init ', LEFT(MD5(DATABASE()), 16)), 30)"
	if err := conn.QueryRowContext(ctx, lock).Scan(new(sql.NullInt64)); err != nil {
		return err
	}
	if err := e.checkTables(ctx, conn); err == nil || !hasNumber(err, noTable) && !errors.Is(err, errOlder) {
		return err // somebody did it meanwhile
	}
	for _, statement := range e.definitions() {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) definitions() []string {
	l := e.language
	all := []string{"SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"} // nothing is ever cut
	tables, routines := sqlengine.Rules(l)
	all = append(all, tables...)
	all = append(all,
		"CREATE TABLE IF NOT EXISTS "+l.prefix+"slots (id BIGINT NOT NULL PRIMARY KEY, last BIGINT NOT NULL)"+l.TableEnd(),
		"CREATE TABLE IF NOT EXISTS "+l.prefix+"meta (version INT NOT NULL PRIMARY KEY)"+l.TableEnd())
	values := make([]string, slots)
	for i := range values {
		values[i] = fmt.Sprintf("(%d, 0)", i)
	}
	all = append(all, "INSERT IGNORE INTO "+l.prefix+"slots (id, last) VALUES "+strings.Join(values, ", "))
	for _, r := range routines {
		all = append(all, "DROP PROCEDURE IF EXISTS "+l.prefix+r.Name, r.Text)
	}
	for _, name := range []string{"start", "step", "finish", "put"} {
		all = append(all, "DROP PROCEDURE IF EXISTS "+l.prefix+"call_"+name, l.wrap(name))
	}
	return append(all, fmt.Sprintf("INSERT INTO %smeta (version) VALUES (%d)", l.prefix, leaseVersion))
}
