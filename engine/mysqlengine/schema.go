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
const leaseVersion = 2

// The server's numbers of what can go wrong.
const (
	noDatabaseRight  = 1044
	noTableRight     = 1142
	noTable          = 1146
	readOnly         = 1290
	noProcedureRight = 1370
	lockTimeout      = 1205
	deadlock         = 1213
)

func hasNumber(err error, numbers ...uint16) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && slices.Contains(numbers, refused.Number)
}

// tables are those of a mode, with its procedures.
type tables struct {
	name        string // for messages
	meta        string // the table that has their version
	version     int    // that this program knows
	definitions func() []string
}

// migrate makes sure that the tables are there, and of our version.
func migrate(ctx context.Context, db *sql.DB, t tables) error {
	return sqlengine.Schema{
		Name: t.name, Version: t.version,
		Find:    func(ctx context.Context) (int, error) { return t.find(ctx, db) },
		Missing: func(err error) bool { return hasNumber(err, noTable) },
		Denied:  func(err error) bool { return hasNumber(err, noDatabaseRight, noTableRight, noProcedureRight) },
		Create:  func(ctx context.Context) error { return t.create(ctx, db) },
	}.Migrate(ctx)
}

// find refuses a connection whose statements are not committed by themselves: they
// would be in transactions that nobody ends.
func (t tables) find(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (version int, err error) {
	var autocommit bool
	err = db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version), 0), @@autocommit FROM "+t.meta).Scan(&version, &autocommit)
	if err == nil && !autocommit {
		err = fmt.Errorf("%w: autocommit is off: turn it on for this user", engine.ErrUnsupported)
	}
	return version, err
}

// create makes everything, one client at a time. The server keeps each
// statement, so the version comes last.
func (t tables) create(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // ends the connection, and its lock and mode
	var locked sql.NullBool
	lock := "SELECT GET_LOCK(CONCAT('pawl init ', LEFT(MD5(DATABASE()), 16)), 30)"
	if err := conn.QueryRowContext(ctx, lock).Scan(&locked); err != nil {
		return err
	}
	if !locked.Bool {
		return errors.New("another client is creating the tables, for more than 30 seconds")
	}
	if is, err := t.find(ctx, conn); err == nil && is >= t.version || err != nil && !hasNumber(err, noTable) {
		return err // somebody did it meanwhile
	}
	strict := "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'" // nothing is ever cut
	for _, statement := range append([]string{strict}, t.definitions()...) {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (l language) definitions() []string {
	all, routines := sqlengine.Rules(l)
	all = append(all,
		"CREATE TABLE IF NOT EXISTS "+l.prefix+"slots (id BIGINT NOT NULL PRIMARY KEY, last BIGINT NOT NULL)"+l.TableEnd(),
		"CREATE TABLE IF NOT EXISTS "+l.prefix+"meta (version INT NOT NULL PRIMARY KEY)"+l.TableEnd())
	values := make([]string, 2*slots)
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
