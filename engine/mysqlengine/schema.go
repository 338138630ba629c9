package mysqlengine

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// leaseVersion is that of the tables and procedures of lease mode, which have changed together.
const leaseVersion = 8

// leaseLayout is the first version with the tables of ours.
const leaseLayout = 4

// The server's numbers of errors.
const (
	noDatabaseRight  = 1044
	noTableRight     = 1142
	noColumn         = 1054
	knownColumn      = 1060
	noTable          = 1146
	readOnly         = 1290
	noProcedureRight = 1370
	lockTimeout      = 1205
	deadlock         = 1213
	interrupted      = 1317
	killed           = 1927
	idleTooLong      = 4031
	noThread         = 1094
	noMemoryTables   = 3098
)

func hasNumber(err error, numbers ...uint16) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && slices.Contains(numbers, refused.Number)
}

// rolledBack reports whether the procedure has undone what it did, because others were in the way.
func rolledBack(err error) bool { return hasNumber(err, deadlock, lockTimeout) }

// tables are those of a mode, with its procedures.
type tables struct {
	name        string // for messages
	meta        string // the table that has their version and format
	version     int    // that this program knows
	definitions func() []string
	routine     string // the last procedure of theirs
	unseen      bool   // this user is not told which procedures there are
	alone       bool   // one server has to know all locks

	layout int      // the first version that has our tables
	live   string   // the query of how many use older ones
	old    []string // those of them that are made anew
}

// denied reports whether err says that this user may not do that.
func denied(err error) bool { return hasNumber(err, noDatabaseRight, noTableRight, noProcedureRight) }

// migrate makes sure that the tables are there, and of our version.
func migrate(ctx context.Context, db *sql.DB, t tables) error {
	return sqlengine.Schema{
		Name: t.name, Version: t.version,
		Find:    func(ctx context.Context) (int, error) { return t.find(ctx, db) },
		Missing: func(err error) bool { return hasNumber(err, noTable) },
		Denied:  denied,
		Create: func(ctx context.Context) error {
			err := t.explain(t.create(ctx, db))
			if t.unseen = denied(err); t.unseen { // a user that may only read sees no procedures
				if is, failed := t.find(ctx, db); failed == nil && is == t.version {
					return nil
				}
			}
			return err
		},
	}.Migrate(ctx)
}

// writers finds the setting of a cluster in which several servers take writes: Galera, or group replication in multi-primary mode. Some
// servers have the setting in a session only.
const writers = "SHOW VARIABLES WHERE variable_name = 'wsrep_on' AND value = 'ON' OR variable_name = 'group_replication_single_primary_mode' AND value = 'OFF'"

// explain says what stood in the way of new tables.
func (t tables) explain(err error) error {
	switch {
	case hasNumber(err, lockTimeout):
		return fmt.Errorf("%s are old, and a transaction that has read them keeps them from an upgrade, such as the transaction of a dump. Run this again after its end: %w", t.name, err)
	case hasNumber(err, noMemoryTables):
		return fmt.Errorf("%w: group replication takes no table in memory, and such a table tells of restarts: %w", engine.ErrUnsupported, err)
	}
	return err
}

// find refuses a connection whose statements are not committed by themselves: they would be in
// transactions that nobody ends. Tables without procedures are taken for older ones: mysqldump leaves
// procedures out, unless it is told otherwise. Names are sent as bytes, so character sets change none.
func (t tables) find(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (version int, err error) {
	var format, several, is string
	if t.alone {
		if err = db.QueryRowContext(ctx, writers).Scan(&several, &is); err == nil {
			err = fmt.Errorf("%w: %s is %s: each server of the cluster has row locks of its own: use lease mode", engine.ErrUnsupported, several, is)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return 0, err
		}
	}
	var autocommit, complete bool
	err = db.QueryRowContext(ctx, "SELECT version, @@autocommit, format, EXISTS "+
		"(SELECT 1 FROM information_schema.routines r WHERE r.routine_schema = DATABASE() AND r.routine_name = '"+t.routine+"') FROM "+t.meta+
		" ORDER BY version DESC LIMIT 1").Scan(&version, &autocommit, &format, &complete)
	switch {
	case hasNumber(err, noColumn) || errors.Is(err, sql.ErrNoRows): // of a build before there was a mark, or half made
		return 0, nil
	case err == nil && !autocommit:
		err = fmt.Errorf("%w: autocommit is off: turn it on for this user", engine.ErrUnsupported)
	case err == nil:
		err = engine.CheckFormat(format)
	}
	if !complete && version == t.version && !t.unseen && !engine.CreatesNothing(ctx) {
		version--
	}
	return version, err
}

// replace makes room for our tables where older ones are, if nobody uses them. Tables of format 1
// have no mark.
func (t tables) replace(ctx context.Context, conn *sql.Conn, version int) error {
	var format sql.NullString
	err := conn.QueryRowContext(ctx, "SELECT MAX(format) FROM "+t.meta).Scan(&format)
	marked := !hasNumber(err, noColumn)
	if marked && (err != nil || version >= t.layout) {
		return nil // they are missing, or ours
	}
	var users int
	if _, err := conn.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"); err != nil {
		return err
	}
	if err := conn.QueryRowContext(ctx, t.live).Scan(&users); err != nil && !hasNumber(err, noTable) {
		return err
	}
	if users > 0 {
		return fmt.Errorf("%w: %s of version %d, format %s, are in use: stop those clients, or use another prefix: this program knows version %d, format %s",
			engine.ErrUnsupported, t.name, version, cmp.Or(format.String, "1"), t.version, engine.Format())
	}
	for _, table := range t.old {
		if _, err := conn.ExecContext(ctx, "DROP TABLE IF EXISTS "+table); err != nil {
			return err
		}
	}
	if !marked {
		_, err = conn.ExecContext(ctx, "ALTER TABLE "+t.meta+" ADD COLUMN format VARBINARY(16) NOT NULL DEFAULT '1'")
	}
	return err
}

// strict cuts nothing. Procedures keep the character set in which they were made. All sessions wait behind the
// upgrade of a table, which waits for transactions that have read the table: so that upgrade gives up soon.
const strict = "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', character_set_client = 'utf8mb4', collation_connection = 'utf8mb4_bin', lock_wait_timeout = 1"

// create makes everything, one client at a time. The server keeps each
// statement, so the version comes last.
func (t tables) create(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer destroy(conn) // with its lock and mode
	var locked sql.NullBool
	lock := "SELECT GET_LOCK(CONCAT('pawl init ', LEFT(MD5(DATABASE()), 16)), 30)"
	if err := conn.QueryRowContext(ctx, lock).Scan(&locked); err != nil {
		return err
	}
	if !locked.Bool {
		return errors.New("another client is creating the tables since more than 30 seconds")
	}
	is, err := t.find(ctx, conn)
	if err == nil && is >= t.version || err != nil && !hasNumber(err, noTable) {
		return err // somebody did it meanwhile
	}
	if _, err := conn.ExecContext(ctx, strict); err != nil {
		return err
	}
	if err := t.replace(ctx, conn, is); err != nil {
		return err
	}
	for _, statement := range t.definitions() {
		if _, err := conn.ExecContext(ctx, statement); err != nil && !hasNumber(err, knownColumn) {
			return err
		}
	}
	return nil
}

func (l language) definitions() []string {
	all, routines := sqlengine.Rules(l)
	all = append(all,
		"CREATE TABLE IF NOT EXISTS "+l.prefix+"slots (id BIGINT NOT NULL PRIMARY KEY, last BIGINT NOT NULL)"+l.TableEnd(),
		"CREATE TABLE IF NOT EXISTS "+l.prefix+"meta (version INT NOT NULL PRIMARY KEY, format VARBINARY(16) NOT NULL)"+l.TableEnd(),
		"CREATE TABLE IF NOT EXISTS "+l.prefix+"belief (one INT NOT NULL PRIMARY KEY, ttl BIGINT NOT NULL, weak INT NOT NULL)"+l.TableEnd(),
		"CREATE TABLE IF NOT EXISTS "+l.prefix+"boot (one INT NOT NULL PRIMARY KEY, since BIGINT NOT NULL, grace BIGINT NOT NULL) ENGINE=MEMORY",
		"DROP PROCEDURE IF EXISTS "+l.prefix+"booted", l.booted())
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
	// New tables have forgotten nothing.
	return append(all,
		fmt.Sprintf("INSERT IGNORE INTO %[1]sboot (one, since, grace) SELECT 1, %[2]s, 0 FROM %[1]sslots l WHERE l.id = 0 AND NOT EXISTS (SELECT 1 FROM %[1]sbelief b)", l.prefix, l.Now()),
		fmt.Sprintf("REPLACE INTO %smeta (version, format) VALUES (%d, '%s')", l.prefix, leaseVersion, engine.Format()))
}
