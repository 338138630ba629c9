package dtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

const format = 1 // of the tables

// LogOptions are the settings of [NewLog].
type LogOptions struct {
	// Table is the name of the table of coordinators: 1 to 48 ASCII letters, digits and underscores. A schema and a dot
	// may be before it. Three more tables have this name and "_beats", "_decided" or "_resolved". Default "pawl_dtx".
	Table string
}

// Log is where transactions are decided: four tables in a database. A Log is safe for concurrent use.
type Log struct {
	dialect dialect.Dialect
	db      *sql.DB
	// A coordinator's row is locked by each decision and written by the fence only. So the beats have rows of their own.
	rows, beats, decided, resolved dialect.Table
}

// NewLog returns the log in a database. Nothing is asked yet. Nil opts are the defaults. Processes with the same
// database and table share the log, and finish the transactions of one another. The database must be the
// primary server, never a replica.
func NewLog(d dialect.Dialect, db *sql.DB, opts *LogOptions) (*Log, error) {
	o := LogOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Table == "" {
		o.Table = "pawl_dtx"
	}
	if db == nil {
		return nil, fmt.Errorf("dtx: %w: the database of the log is nil", pawl.ErrInvalid)
	}
	l := &Log{dialect: d, db: db,
		// The row 0 has the format in fenced, and the identity of the log in began.
		rows: dialect.Table{Name: o.Table, Columns: []dialect.Column{
			{Name: "id", Type: dialect.Integer, Key: true},
			{Name: "fenced", Type: dialect.Integer},
			{Name: "began", Type: dialect.Integer}, // in seconds since 1970
			{Name: "name", Type: dialect.Text},     // for operators
		}},
		beats: dialect.Table{Name: o.Table + "_beats", Columns: []dialect.Column{
			{Name: "id", Type: dialect.Integer, Key: true},
			{Name: "beat", Type: dialect.Integer},
		}},
		decided: dialect.Table{Name: o.Table + "_decided", Columns: []dialect.Column{
			{Name: "coordinator", Type: dialect.Integer, Key: true},
			{Name: "number", Type: dialect.Integer, Key: true},
			{Name: "decided", Type: dialect.Integer}, // in seconds since 1970
			{Name: "resources", Type: dialect.Bytes}, // names of the prepared ones, with commas
		}},
		// Decisions of operators.
		resolved: dialect.Table{Name: o.Table + "_resolved", Columns: []dialect.Column{
			{Name: "coordinator", Type: dialect.Integer, Key: true},
			{Name: "number", Type: dialect.Integer, Key: true},
			{Name: "committed", Type: dialect.Integer},
			{Name: "resolved", Type: dialect.Integer}, // in seconds since 1970
			{Name: "reason", Type: dialect.Text},
		}},
	}
	for _, table := range l.tables() {
		if _, err := table.Schema(d); err != nil || len(o.Table) > 48 {
			return nil, fmt.Errorf("dtx: %w: LogOptions.Table or dialect: 1 to 48 letters, digits and underscores are allowed: %v", pawl.ErrInvalid, err)
		}
	}
	return l, nil
}

// tables ends with the table that has the format, which Migrate thus makes last.
func (l *Log) tables() []dialect.Table {
	return []dialect.Table{l.beats, l.decided, l.resolved, l.rows}
}

// Schema returns the statements that make the tables if they are missing. Put them into your migrations.
func (l *Log) Schema() (all []string) {
	for _, table := range l.tables() {
		query, _ := table.Schema(l.dialect) //nolint:errcheck // NewLog has asked
		all = append(all, strings.Split(query, ";\n")...)
	}
	identity := map[dialect.Dialect]string{dialect.PostgreSQL: "floor(random() * 9e15)::bigint + 1", dialect.MySQL: "FLOOR(RAND() * 9e15) + 1",
		dialect.SQLite: "abs(random() % 9000000000000000) + 1"}[l.dialect]
	query, _, _ := l.new().Add("INSERT INTO ").Table(l.rows.Name).Add(" (id, fenced, began, name) SELECT 0, ", fmt.Sprint(format), ", ", identity, ", ''", //nolint:errcheck // as above
		map[dialect.Dialect]string{dialect.MySQL: " FROM DUAL"}[l.dialect], " WHERE NOT EXISTS (SELECT 1 FROM ").Table(l.rows.Name).Add(" WHERE id = 0)").Build()
	return append(all, query)
}

// Migrate makes the tables if they are missing. Several programs may do so at the same time. Tables of
// another format or shape are refused with an error that matches [pawl.ErrMismatch], and are left as they are.
func (l *Log) Migrate(ctx context.Context) error {
	return failed("migrate", dialect.Migrate(ctx, l.db, l.Schema(), func(ctx context.Context) error { _, err := l.check(ctx); return err }))
}

// Check does what Migrate does, but makes nothing: its error matches [dialect.ErrMissing] if a table is missing. A
// database that acknowledges commits before they are on disk is refused: the error names its setting. A standby, or a server with read_only = 1, is
// refused with an error that matches [pawl.ErrUnavailable].
func (l *Log) Check(ctx context.Context) error {
	_, err := l.sound(ctx)
	return err
}

// sound is Check, and returns the identity of the log.
func (l *Log) sound(ctx context.Context) (identity int64, err error) {
	identity, err = l.check(ctx)
	if err == nil {
		err = CheckDurable(ctx, l.dialect, l.db, l.rows.Name)
	}
	return identity, failed("check", err)
}

// attached reports whether SQLite has attached the database of the table.
func (l *Log) attached(ctx context.Context) (is bool, err error) {
	schema, _, found := strings.Cut(l.rows.Name, ".")
	if l.dialect != dialect.SQLite || !found {
		return true, nil
	}
	err = l.new().Add("SELECT COUNT(*) > 0 FROM pragma_database_list WHERE name = ").Value(schema).Add(" COLLATE NOCASE").Scan(ctx, l.db, &is)
	return is, err
}

// onPrimary calls fn with a connection, unless its server is a standby.
func (l *Log) onPrimary(ctx context.Context, fn func(*sql.Conn) error) error {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // back to the pool
	if err := primary(ctx, l.dialect, conn); err != nil {
		return err
	}
	return fn(conn)
}

// CheckTables does what Check does, but takes any settings of the database, and a standby. So an operator reaches also a log that [New] refuses.
func (l *Log) CheckTables(ctx context.Context) error {
	_, err := l.check(ctx)
	return failed("check", err)
}

// check returns the identity of the log.
func (l *Log) check(ctx context.Context) (identity int64, err error) {
	for _, table := range l.tables() {
		if err := table.Check(ctx, l.db, l.dialect); errors.Is(err, dialect.ErrShape) {
			return 0, fmt.Errorf("%w: %w", pawl.ErrMismatch, err)
		} else if err != nil {
			return 0, err
		}
	}
	var is int
	err = l.new().Add("SELECT fenced, began FROM ").Table(l.rows.Name).Add(" WHERE id = 0").Scan(ctx, l.db, &is, &identity)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, fmt.Errorf("%w: the row of table %s with its format", dialect.ErrMissing, l.rows.Name)
	case err != nil:
		return 0, fmt.Errorf("read the format of table %s: %w", l.rows.Name, err)
	case is != format:
		return 0, fmt.Errorf("%w: table %s has format %d, and this version of pawl knows format %d", pawl.ErrMismatch, l.rows.Name, is, format)
	}
	return identity, nil
}

// CheckDurable returns an error unless a commit of a log is on disk when the database acknowledges the commit. The error matches
// [pawl.ErrUnsupported], and names the setting. Some settings are of each connection, as all of SQLite are: CheckDurable sees those of one. In
// SQLite the main database has to flush, and so has an attached database with the table of the log. Other attached databases are not judged: a branch must
// write to none that does not flush. A standby, or a server with read_only = 1, may lack commits: the error matches [pawl.ErrUnavailable].
//
// SQLite as shipped is taken. Yet in journal mode delete a power failure right after a commit may undo that commit. Mode WAL with synchronous = full does not, and
// neither does synchronous = extra.
func CheckDurable(ctx context.Context, d dialect.Dialect, db *sql.DB, table string) error {
	settings := flushes(d, table)
	if d == dialect.MySQL {
		settings = append(settings, setting{"autocommit", "SELECT @@autocommit", []string{"1"}, "a decision is acknowledged and never committed"})
	}
	return checkSettings(ctx, d, db, settings)
}

func checkSettings(ctx context.Context, d dialect.Dialect, db *sql.DB, settings []setting) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // back to the pool
	if err := primary(ctx, d, conn); err != nil {
		return err
	}
	for _, s := range settings {
		var is string
		if err := dialect.New(d).Add(s.query).Scan(ctx, conn, &is); err != nil {
			return err
		}
		if !slices.Contains(s.good, is) {
			return fmt.Errorf("%w: the setting %s of %v is %q, so %s: allowed are %q", pawl.ErrUnsupported, s.name, d, is, s.so, s.good)
		}
	}
	return nil
}

type setting struct {
	name, query string
	good        []string
	so          string
}

const forgets = "a crash would lose decisions"

// flushes are the settings with which a database flushes. In SQLite the main database and that of the table count: one in memory has a journal in memory. With a
// binary log that is not flushed, InnoDB does not flush the commit either.
func flushes(d dialect.Dialect, table string) (all []setting) {
	switch d {
	case dialect.PostgreSQL:
		return []setting{
			{"synchronous_commit", "SELECT current_setting('synchronous_commit')", []string{"on", "local", "remote_write", "remote_apply"}, forgets},
			{"fsync", "SELECT current_setting('fsync')", []string{"on"}, forgets},
		}
	case dialect.MySQL:
		return []setting{
			{"innodb_flush_log_at_trx_commit", "SELECT @@global.innodb_flush_log_at_trx_commit", []string{"1", "3"}, forgets + " (try: SET GLOBAL innodb_flush_log_at_trx_commit = 1)"},
			{"sync_binlog", "SELECT IF(@@global.log_bin, @@global.sync_binlog, 1)", []string{"1"}, forgets + " (try: SET GLOBAL sync_binlog = 1)"},
		}
	}
	schemas := []string{"main"}
	if schema, _, found := strings.Cut(table, "."); found && schema != "main" {
		schemas = append(schemas, schema)
	}
	for _, schema := range schemas {
		all = append(all, setting{schema + ".journal_mode", `PRAGMA "` + schema + `".journal_mode`, []string{"delete", "truncate", "persist", "wal"}, forgets},
			setting{schema + ".synchronous", `PRAGMA "` + schema + `".synchronous`, []string{"2", "3"}, forgets})
	}
	return all
}

func (l *Log) new() *dialect.Statement { return dialect.New(l.dialect) }
