// Package dialect names the SQL in which databases differ, once: PostgreSQL, MySQL and
// MariaDB, SQLite. A [Statement] has their placeholders and quoted names. A [Table] is
// created and checked in their words. [Repeat] calls again after collisions. [Again], [Duplicate], [LockTimeout], [Lost] and
// [ReadOnly] understand the errors of their drivers. The package imports no driver: the caller brings a [DB] of any.
// The import path of a driver contains "mysql" or "sqlite", or the errors of the driver have a method SQLState.
//
// Names of tables and columns are never put into a statement unless they are plain, see
// [ErrName]. Values are sent as parameters.
package dialect

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Dialect is the SQL that a database speaks.
type Dialect int

const (
	// PostgreSQL is 9.5 or later, or a database with the same SQL.
	PostgreSQL Dialect = 1 + iota
	// MySQL is MySQL 5.7 or MariaDB 10.2, or later.
	MySQL
	// SQLite is 3.37 or later.
	SQLite
)

// String returns the name of the database.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	}
	return "dialect " + strconv.Itoa(int(d))
}

// Validate returns an error unless the dialect is one of this package.
func (d Dialect) Validate() error {
	if d < PostgreSQL || d > SQLite {
		return fmt.Errorf("Dialect is %d: it has to be PostgreSQL, MySQL or SQLite", int(d))
	}
	return nil
}

// DB is what statements run in: a *sql.DB, *sql.Tx or *sql.Conn, or a pgx.Tx by package pgxtx. A DB may also be a
// branch of a distributed transaction, because nothing here begins or ends a transaction. A DB is for
// one goroutine at a time, unless it is a *sql.DB. All rows are closed before the next statement.
type DB interface {
	// ExecContext runs a statement.
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	// QueryContext runs a query.
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Batcher is an optional part of a [DB]. Some clients send several statements in one round trip.
type Batcher interface {
	DB
	// Batch returns the same transaction. Each of its statements travels with a command, which runs
	// after the statement. After a failure nothing more runs, and the
	// error is that of the first that failed. The rows of a query have to be read to their end, or closed.
	Batch(after string) DB
}

// CheckTx returns an error if db is no transaction: nil, or a *sql.DB, whose statements may run in a connection
// and a transaction each. CheckTx does not know whether a *sql.Conn is in a transaction.
func CheckTx(db DB) error {
	switch db.(type) {
	case nil:
		return errors.New("the transaction is nil")
	case *sql.DB:
		return errors.New("a *sql.DB is no transaction: begin one")
	}
	return nil
}

// Columns are names of columns and their values. Values are sent as parameters.
type Columns map[string]any

// ErrName says that a table or column has a name that this package does not put
// into a statement. Names have 1 to 63 ASCII letters, digits and underscores,
// and do not begin with a digit. The name of a table may have a schema and a dot
// before it. Names are quoted, so keywords are well, and on PostgreSQL upper case
// is not lower case.
var ErrName = errors.New("bad name of a table or column")

// names are the names that mean the same in every encoding of a connection.
var names = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Statement is SQL in the making. The methods append and return it, and do nothing after a
// mistake, which Build returns. A Statement is for one goroutine.
type Statement struct {
	dialect Dialect
	text    strings.Builder
	args    []any
	err     error
}

// New begins a statement.
func New(d Dialect) *Statement { return &Statement{dialect: d, err: d.Validate()} }

// Err returns the first mistake, such as a bad name.
func (s *Statement) Err() error { return s.err }

// Fail makes err the first mistake, unless there is one.
func (s *Statement) Fail(err error) *Statement {
	if s.err == nil {
		s.err = err
	}
	return s
}

// Add appends pieces of SQL as they are, and never input of a user.
func (s *Statement) Add(pieces ...string) *Statement {
	for _, piece := range pieces {
		s.text.WriteString(piece)
	}
	return s
}

// Table appends a quoted name that may have a schema.
func (s *Statement) Table(name string) *Statement {
	if schema, table, found := strings.Cut(name, "."); found {
		return s.Name(schema).Add(".").Name(table)
	}
	return s.Name(name)
}

// Name appends a quoted name.
func (s *Statement) Name(name string) *Statement {
	if !names.MatchString(name) {
		s.Fail(fmt.Errorf("%w: %.80q", ErrName, name))
	}
	if s.dialect == MySQL {
		return s.Add("`", name, "`")
	}
	return s.Add(`"`, name, `"`)
}

// Value appends the placeholder of a parameter.
func (s *Statement) Value(v any) *Statement {
	s.args = append(s.args, v)
	if s.dialect == PostgreSQL {
		return s.Add("$", strconv.Itoa(len(s.args)))
	}
	return s.Add("?")
}

// Columns appends "name = value" for each, in one order always, so that the
// database can keep the statement prepared.
func (s *Statement) Columns(c Columns, between string) *Statement {
	for i, name := range slices.Sorted(maps.Keys(c)) {
		if i > 0 {
			s.Add(between)
		}
		s.Name(name).Add(" = ").Value(c[name])
	}
	return s
}

// InsertIfAbsent returns the statement that inserts a row, unless there is one with the same
// key, which it leaves as it is. Key is a column of the primary key. On MySQL the affected
// rows do not say whether the row was there.
func InsertIfAbsent(d Dialect, table, key string, row Columns) *Statement {
	s := New(d).Add("INSERT INTO ").Table(table)
	columns := slices.Sorted(maps.Keys(row))
	for i, name := range columns {
		s.Add([]string{" (", ", "}[min(i, 1)]).Name(name)
	}
	for i, name := range columns {
		s.Add([]string{") VALUES (", ", "}[min(i, 1)]).Value(row[name])
	}
	if s.Add(")"); d != MySQL {
		return s.Add(" ON CONFLICT DO NOTHING")
	}
	// INSERT IGNORE would ignore other mistakes as well.
	return s.Add(" ON DUPLICATE KEY UPDATE ").Name(key).Add(" = ").Name(key)
}

// quoted makes a text an element of an array of PostgreSQL. A replacer builds tables, so there is a single one.
var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// Among appends the condition that a column has one of 1 or more values. On PostgreSQL the text of the statement is the same for any number of
// values, so that the database can keep the statement prepared. On MySQL a text is compared as bytes.
func Among[K int64 | string](s *Statement, column string, values []K) *Statement {
	if s.Name(column); s.dialect == PostgreSQL {
		list, kind := make([]string, len(values)), "bigint"
		for i, v := range values {
			list[i] = fmt.Sprint(v)
			if text, ok := any(v).(string); ok {
				list[i], kind = `"`+quoted.Replace(text)+`"`, "text"
			}
		}
		return s.Add(" = ANY(").Value("{"+strings.Join(list, ",")+"}").Add("::", kind, "[])")
	}
	for i, v := range values {
		s.Add([]string{" IN (", ", "}[min(i, 1)])
		literal(s, v)
	}
	return s.Add(")")
}

// literal appends a value. A driver of MySQL needs three round trips for a statement with parameters, and one without any.
func literal[K int64 | string](s *Statement, value K) {
	text, ok := any(value).(string)
	switch {
	case !ok:
		s.Add(fmt.Sprint(value))
	case s.dialect == MySQL:
		s.Add("x'", hex.EncodeToString([]byte(text)), "'")
	default:
		s.Value(text)
	}
}

// DeleteByKey appends a DELETE of the rows that have one of 1 to 1,000 values in the column of the primary key. Add may append AND and further
// conditions. On MySQL a DELETE with IN reads a small table without the index, and so waits for each transaction that has changed any row.
// MariaDB obeys no hint there. Therefore the values are a table there, and each row is found by its key.
func DeleteByKey[K int64 | string](s *Statement, table, key string, values []K) *Statement {
	s.Add("DELETE FROM ").Table(table)
	if s.dialect != MySQL {
		return Among(s.Add(" WHERE "), key, values)
	}
	for i, v := range values {
		s.Add([]string{" USING (SELECT ", " UNION ALL SELECT "}[min(i, 1)])
		literal(s, v)
		s.Add(" AS chosen")
	}
	return s.Add(") AS chosen STRAIGHT_JOIN ").Table(table).Add(" FORCE INDEX (PRIMARY) WHERE ").Table(table).Add(".").Name(key).Add(" = chosen.chosen")
}

// Build returns the text and the parameters of the statement, or the first mistake.
func (s *Statement) Build() (query string, args []any, err error) {
	if s.err != nil {
		return "", nil, s.err
	}
	return s.text.String(), s.args, nil
}

// Exec runs the statement once. A *sql.DB would send a statement again after driver.ErrBadConn. In the simple protocol pgx 5.12 says that
// also of a statement whose answer is lost. The second answer would say that nothing changed, although the first statement took effect. The
// drivers of the other databases say that only of a statement that was not sent.
func (s *Statement) Exec(ctx context.Context, db DB) (sql.Result, error) {
	query, args, err := s.Build()
	if err != nil {
		return nil, err
	}
	if pool, is := db.(*sql.DB); is && s.dialect == PostgreSQL {
		conn, err := pool.Conn(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Close() //nolint:errcheck // back to the pool
		db = conn          // which repeats nothing
	}
	return db.ExecContext(ctx, query, args...)
}

// Scan runs the statement as a query of one row and copies the columns of the row to dest. Scan
// returns sql.ErrNoRows when there is no row. Scan reads the answer to its end: a statement that
// writes outside of a transaction is committed when Scan returns nil.
func (s *Statement) Scan(ctx context.Context, db DB, dest ...any) error {
	query, args, err := s.Build()
	if err != nil {
		return err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return sql.ErrNoRows
	}
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	return rows.Close()
}
