package threephase

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
)

const format = 1 // of the tables

// LogOptions are the settings of [NewLog].
type LogOptions struct {
	// Table is the name of the table of transactions: 1 to 48 ASCII letters, digits and underscores. A schema and a dot may be
	// before it. Two more tables have this name and "_agents" or "_resolved". Default "pawl_3pc".
	Table string
}

// Log is where one agent keeps its votes, promises and decisions: three tables in a database. A Log is safe for concurrent use.
type Log struct {
	dialect                dialect.Dialect
	db                     *sql.DB
	rows, agents, resolved dialect.Table
}

// NewLog returns the log in a database, such as a file of SQLite. Nothing is asked yet. Nil opts are the defaults. Each agent has a log of its
// own. The database must be the primary server, never a replica.
func NewLog(d dialect.Dialect, db *sql.DB, opts *LogOptions) (*Log, error) {
	o := LogOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Table == "" {
		o.Table = "pawl_3pc"
	}
	if db == nil {
		return nil, fmt.Errorf("threephase: %w: the database of the log is nil", pawl.ErrInvalid)
	}
	id := []dialect.Column{{Name: "agent", Type: dialect.Text, Key: true}, {Name: "log", Type: dialect.Integer, Key: true}, {Name: "number", Type: dialect.Integer, Key: true}}
	l := &Log{dialect: d, db: db,
		rows: dialect.Table{Name: o.Table, Columns: append(id[:3:3],
			dialect.Column{Name: "phase", Type: dialect.Integer},
			dialect.Column{Name: "elected", Type: dialect.Integer},
			dialect.Column{Name: "attempt", Type: dialect.Integer},
			dialect.Column{Name: "asked", Type: dialect.Integer},    // the handler was asked to prepare
			dialect.Column{Name: "finished", Type: dialect.Integer}, // the handler has carried the decision out
			dialect.Column{Name: "began", Type: dialect.Integer},    // in seconds since 1970
			dialect.Column{Name: "agents", Type: dialect.Text},      // mode and names
		)},
		// The row without a name has the identity of the log. The row of the agent of the log has the process that uses the log.
		agents: dialect.Table{Name: o.Table + "_agents", Columns: []dialect.Column{
			{Name: "name", Type: dialect.Text, Key: true},
			{Name: "log", Type: dialect.Integer},
			{Name: "mark", Type: dialect.Integer}, // transactions of that agent with smaller numbers are over, and forgotten
			{Name: "owner", Type: dialect.Integer},
			{Name: "writes", Type: dialect.Integer},
			{Name: "format", Type: dialect.Integer},
		}},
		// Decisions of operators.
		resolved: dialect.Table{Name: o.Table + "_resolved", Columns: append(id[:3:3],
			dialect.Column{Name: "committed", Type: dialect.Integer},
			dialect.Column{Name: "resolved", Type: dialect.Integer}, // in seconds since 1970
			dialect.Column{Name: "reason", Type: dialect.Text},
		)},
	}
	for _, table := range l.tables() {
		if _, err := table.Schema(d); err != nil || len(o.Table) > 48 {
			return nil, fmt.Errorf("threephase: %w: LogOptions.Table or dialect: 1 to 48 letters, digits and underscores are allowed: %v", pawl.ErrInvalid, err)
		}
	}
	return l, nil
}

// tables ends with the table that has the format, which Migrate thus makes last.
func (l *Log) tables() []dialect.Table { return []dialect.Table{l.rows, l.resolved, l.agents} }

// Schema returns the statements that make the tables if they are missing. Put them into your migrations.
func (l *Log) Schema() (all []string) {
	for _, table := range l.tables() {
		query, _ := table.Schema(l.dialect) //nolint:errcheck // NewLog has asked
		all = append(all, strings.Split(query, ";\n")...)
	}
	identity := map[dialect.Dialect]string{dialect.PostgreSQL: "floor(random() * 1e12)::bigint + 1", dialect.MySQL: "FLOOR(RAND() * 1e12) + 1",
		dialect.SQLite: "abs(random() % 1000000000000) + 1"}[l.dialect] // less than maxLog
	query, _, _ := l.new().Add("INSERT INTO ").Table(l.agents.Name).Add(" (name, log, mark, owner, writes, format) SELECT '', ", identity, ", 0, 0, 0, ", fmt.Sprint(format), //nolint:errcheck // as above
		map[dialect.Dialect]string{dialect.MySQL: " FROM DUAL"}[l.dialect], " WHERE NOT EXISTS (SELECT 1 FROM ").Table(l.agents.Name).Add(" WHERE name = '')").Build()
	return append(all, query)
}

// Migrate makes the tables if they are missing. Several programs may do so at the same time. Tables of another format or shape
// are refused with an error that matches [pawl.ErrMismatch], and are left as they are.
func (l *Log) Migrate(ctx context.Context) error {
	return failed("migrate", dialect.Migrate(ctx, l.db, l.Schema(), func(ctx context.Context) error { _, err := l.check(ctx); return err }))
}

// Check does what Migrate does, but makes nothing: its error matches [dialect.ErrMissing] if a table is missing. A database that
// acknowledges commits before they are on disk is refused: the error names its setting. A standby, or a server with read_only = 1, is refused
// with an error that matches [pawl.ErrUnavailable].
func (l *Log) Check(ctx context.Context) error {
	_, err := l.check(ctx)
	if err == nil {
		err = checkDurable(ctx, l.dialect, l.db, l.rows.Name)
	}
	return failed("check", err)
}

// CheckTables does what Check does, but takes any settings of the database, and a standby. So an operator reaches also a log that [New] refuses.
func (l *Log) CheckTables(ctx context.Context) error {
	_, err := l.check(ctx)
	return failed("check", err)
}

// checkDurable is another in tests, whose logs are in memory.
var checkDurable = dtx.CheckDurable

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
	err = l.new().Add("SELECT log, format FROM ").Table(l.agents.Name).Add(" WHERE name = ''").Scan(ctx, l.db, &identity, &is)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, fmt.Errorf("%w: the row of table %s with its format", dialect.ErrMissing, l.agents.Name)
	case err != nil:
		return 0, fmt.Errorf("read the format of table %s: %w", l.agents.Name, err)
	case is != format:
		return 0, fmt.Errorf("%w: table %s has format %d, and this version of pawl knows format %d", pawl.ErrMismatch, l.agents.Name, is, format)
	}
	return identity, nil
}

func (l *Log) new() *dialect.Statement { return dialect.New(l.dialect) }
