package dialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// Type is what a column holds.
type Type int

const (
	// Integer is a signed integer of 64 bits.
	Integer Type = 1 + iota
	// Text is up to 512 bytes of UTF-8 that are compared byte by byte: a collation may take two
	// texts for one.
	Text
	// Bytes is up to 16 MB of any bytes.
	Bytes
	// Counter is an Integer that the database counts up at each insert, and never gives again. A Counter is
	// the whole primary key of its table. After a failover that lost commits the database gives their numbers again. MySQL 5.7 that
	// restarts gives the largest numbers again if their rows are deleted.
	Counter
)

// Column is a column of a table.
type Column struct {
	Name  string
	Type  Type
	Key   bool // it is of the primary key, whose columns come first in the table
	Null  bool // it may be NULL
	Index bool // it has an index of its own, which Check does not ask for
}

// Table is a table that a program makes for itself. A Table is a description and safe for
// concurrent use.
type Table struct {
	Name    string // with its schema if it is not in the usual one
	Columns []Column
	Indexes []Index // of several columns, or of unique values; Check does not ask for them
}

// Index is an index of a table.
type Index struct {
	Columns []string
	Unique  bool
}

// ErrShape says that there is a table of this name whose columns, key, kind or engine are not
// what the program needs. Nothing was changed.
var ErrShape = errors.New("another shape")

// ErrMissing says that there is no such table.
var ErrMissing = errors.New("no such table")

// typeName is the type of a column as the statement that creates it says it, and as the catalog
// of the database says it.
func (d Dialect) typeName(t Type) (create, catalog string) {
	switch {
	case d == PostgreSQL && t == Counter:
		return "bigserial", "bigint"
	case d == MySQL && t == Counter:
		return "bigint AUTO_INCREMENT", "bigint"
	case d == SQLite && t == Counter:
		return "INTEGER PRIMARY KEY AUTOINCREMENT", "integer"
	case d == PostgreSQL && t == Text:
		return `text COLLATE "C"`, "text C"
	case d == PostgreSQL && t == Bytes:
		return "bytea", "bytea"
	case d == MySQL && t == Text:
		return "varbinary(512)", "varbinary(512)"
	case d == MySQL && t == Bytes:
		return "mediumblob", "mediumblob"
	case d == SQLite && t == Text:
		return "TEXT", "text"
	case d == SQLite && t == Bytes:
		return "BLOB", "blob"
	case d == SQLite:
		return "INTEGER", "integer"
	}
	return "bigint", "bigint"
}

// Schema returns the statement that creates the table if it is missing. Put it into migrations. With
// indexes there are more statements in it on PostgreSQL and SQLite, each after a semicolon and a new line.
func (t Table) Schema(d Dialect) (string, error) {
	s := New(d).Add("CREATE TABLE IF NOT EXISTS ").Table(t.Name).Add(" (")
	counts := false
	for i, c := range t.Columns {
		name, _ := d.typeName(c.Type)
		s.Add([]string{"", ", "}[min(i, 1)]).Name(c.Name).Add(" ", name)
		counts = counts || c.Type == Counter
		if !c.Null {
			s.Add(" NOT NULL")
		}
	}
	for _, x := range t.indexes() {
		if d == MySQL { // which creates no index "if not exists"
			s.Add(map[bool]string{false: ", KEY (", true: ", UNIQUE KEY ("}[x.Unique]).list(x.Columns).Add(")")
		}
	}
	if !counts || d != SQLite { // where the type of a counter says it
		s.Add(", PRIMARY KEY (").list(t.key()).Add(")")
	}
	s.Add(")", map[Dialect]string{MySQL: " ENGINE=InnoDB", SQLite: " STRICT"}[d])
	if !counts && d == SQLite {
		s.Add(", WITHOUT ROWID")
	}
	for _, x := range t.indexes() {
		if d != MySQL {
			t.index(s.Add(";\n"), x)
		}
	}
	query, _, err := s.Build()
	return query, err
}

// list appends names with commas between them.
func (s *Statement) list(names []string) *Statement {
	for i, name := range names {
		s.Add([]string{"", ", "}[min(i, 1)]).Name(name)
	}
	return s
}

// key returns the names of the columns of the primary key.
func (t Table) key() (names []string) {
	for _, c := range t.Columns {
		if c.Key {
			names = append(names, c.Name)
		}
	}
	return names
}

// indexes returns the indexes of single columns and the others.
func (t Table) indexes() (all []Index) {
	for _, c := range t.Columns {
		if c.Index {
			all = append(all, Index{Columns: []string{c.Name}})
		}
	}
	return append(all, t.Indexes...)
}

// index appends the statement that creates an index if it is missing. An index is in
// the schema of its table. SQLite says so at the name of the index, and PostgreSQL must not.
func (t Table) index(s *Statement, x Index) {
	schema, name, found := strings.Cut(t.Name, ".")
	if !found {
		schema, name = "", t.Name
	}
	s.Add(map[bool]string{false: "CREATE INDEX IF NOT EXISTS ", true: "CREATE UNIQUE INDEX IF NOT EXISTS "}[x.Unique])
	if found && s.dialect == SQLite {
		s.Name(schema).Add(".")
	}
	s.Name(name + "_" + strings.Join(x.Columns, "_")).Add(" ON ")
	if s.dialect == SQLite {
		s.Name(name)
	} else {
		s.Table(t.Name)
	}
	s.Add(" (").list(x.Columns).Add(")")
}

// makes is how often Migrate tries a statement while another program makes the same tables.
const makes = 10

// Migrate runs the statements that make tables, unless check returns nil. Check returns an error that matches
// [ErrMissing] if something is missing; Migrate returns every other error, and makes nothing then. Several
// programs may do so at the same time. After a statement that fails, Migrate runs no later one. So let check ask for what the last
// statement makes, as a row with the format. Else a program that is killed between two statements leaves an index out, and no later
// Migrate makes that index. A user who may not make tables adds no missing row to tables that are there, because an earlier statement fails. Let the
// owner of the tables run the statements then.
func Migrate(ctx context.Context, db DB, statements []string, check func(context.Context) error) error {
	return migrate(ctx, db, statements, check, "make the tables")
}

func migrate(ctx context.Context, db DB, statements []string, check func(context.Context) error, what string) error {
	if err := check(ctx); !errors.Is(err, ErrMissing) {
		return err
	}
	made, making := 0, error(nil)
	for tries := 1; made < len(statements); tries++ {
		_, err := db.ExecContext(ctx, statements[made])
		if err == nil {
			made, making, tries = made+1, nil, 0
			continue
		}
		if making == nil { // in a transaction of PostgreSQL the later errors only say that this one came before
			making = err
		}
		if tries == makes || ctx.Err() != nil { // PostgreSQL may refuse one of two programs that create a table at once
			break
		}
	}
	checking := check(ctx)
	if making == nil || checking != nil && !errors.Is(checking, ErrMissing) || checking == nil && made == 0 { // without the right, beside a program that has it
		return checking
	}
	return fmt.Errorf("%s: %w", what, making)
}

// Create creates the table if it is missing, and then checks it. Several programs may do
// so at the same time. On PostgreSQL and SQLite a program that is killed meanwhile may leave an index out, and no later Create makes that index.
func (t Table) Create(ctx context.Context, db *sql.DB, d Dialect) error {
	query, err := t.Schema(d)
	if err != nil {
		return err
	}
	return migrate(ctx, db, strings.Split(query, ";\n"), func(ctx context.Context) error { return t.Check(ctx, db, d) }, "create table "+t.Name)
}

// Check returns an error that matches [ErrShape], and names the difference, unless the table
// has the columns and the key that Create would make. Check returns [ErrMissing] when there is no
// such table. A table may not have further columns.
func (t Table) Check(ctx context.Context, db *sql.DB, d Dialect) error {
	if _, err := t.Schema(d); err != nil {
		return err
	}
	found, err := t.read(ctx, db, d)
	if d == MySQL && err == nil && len(found) == 0 {
		found, err = t.visible(ctx, db)
	}
	switch {
	case err != nil:
		return fmt.Errorf("look at table %s: %w", t.Name, err)
	case len(found) == 0:
		return fmt.Errorf("%w: %s", ErrMissing, t.Name)
	}
	for _, want := range t.Columns {
		_, catalog := d.typeName(want.Type)
		is, ok := found[strings.ToLower(want.Name)]
		why := ""
		switch {
		case !ok:
			why = "is missing"
		case is.kind != catalog:
			why = fmt.Sprintf("is %s, not %s", is.kind, catalog)
		case is.null != want.Null:
			why = fmt.Sprintf("may be NULL: %t, not %t", is.null, want.Null)
		case is.key != want.Key:
			why = fmt.Sprintf("is of the primary key: %t, not %t", is.key, want.Key)
		}
		if why != "" {
			return fmt.Errorf("table %s has %w: column %s %s", t.Name, ErrShape, want.Name, why)
		}
		delete(found, strings.ToLower(want.Name))
	}
	for name, is := range found {
		if name == "" {
			return fmt.Errorf("table %s has %w: it is %s", t.Name, ErrShape, is.kind)
		}
		return fmt.Errorf("table %s has %w: column %s is not known", t.Name, ErrShape, name)
	}
	return nil
}

// visible reads the columns of a table that the catalog of MySQL did not have. That catalog hides tables to which the user
// has no right. The user may have got a right meanwhile.
func (t Table) visible(ctx context.Context, db *sql.DB) (map[string]found, error) {
	var none int
	err := New(MySQL).Add("SELECT 1 FROM ").Table(t.Name).Add(" LIMIT 0").Scan(ctx, db, &none)
	if _, number, _ := codes(err); number == 1142 { // denied
		return nil, err
	}
	return t.read(ctx, db, MySQL)
}

// found is a column as it is in the database.
type found struct {
	kind      string
	null, key bool
}

// The catalogs. A row without a name tells a fault of the table as a whole.
const (
	pgColumns = `SELECT a.attname, format_type(a.atttypid, a.atttypmod) || CASE WHEN a.atttypid = 'text'::regtype THEN ' ' || l.collname ELSE '' END,
		NOT a.attnotnull, COALESCE(a.attnum = ANY(i.indkey), false)
		FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary LEFT JOIN pg_collation l ON l.oid = a.attcollation
		WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
		UNION ALL SELECT '', 'no ordinary table', false, false FROM pg_class WHERE oid = to_regclass($1) AND relkind NOT IN ('r', 'p')`
	myColumns = `SELECT column_name, column_type, is_nullable = 'YES', column_key = 'PRI' FROM information_schema.columns
		WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?
		UNION ALL SELECT '', CONCAT('of the engine ', COALESCE(engine, table_type)), 0, 0 FROM information_schema.tables
		WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? AND COALESCE(engine, '') <> 'InnoDB'`
	liteColumns = `SELECT name, type, NOT "notnull", pk > 0 FROM pragma_table_info(?, ?)`
)

func (t Table) read(ctx context.Context, db *sql.DB, d Dialect) (map[string]found, error) {
	query, args := liteColumns, []any(nil)
	schema, name, ok := strings.Cut(t.Name, ".")
	if !ok {
		schema, name = "", t.Name
	}
	switch d {
	case PostgreSQL:
		quoted, _, err := New(d).Table(t.Name).Build()
		if err != nil {
			return nil, err
		}
		query, args = pgColumns, []any{quoted}
	case MySQL:
		query, args = myColumns, []any{schema, name, schema, name}
	case SQLite:
		if schema == "" {
			schema = "main"
		}
		args = []any{name, schema}
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string]found)
	for rows.Next() {
		var column string
		var is found
		if err := rows.Scan(&column, &is.kind, &is.null, &is.key); err != nil {
			return nil, err
		}
		is.kind = strings.Replace(is.kind, "(20)", "", 1) // the width to show, which MySQL 8 no longer has
		if d != PostgreSQL {
			is.kind = strings.ToLower(is.kind)
		}
		all[strings.ToLower(column)] = is
	}
	return all, rows.Err()
}

// Seconds returns the SQL of the time of the database in whole seconds since 1970. No time zone, and no change to
// or from summer time, is in it.
func Seconds(d Dialect) string {
	switch d {
	case PostgreSQL:
		return "floor(extract(epoch FROM clock_timestamp()))::bigint"
	case MySQL:
		return "UNIX_TIMESTAMP()"
	}
	return "CAST(strftime('%s', 'now') AS INTEGER)"
}

// Primary returns the SQL of a condition: the server is no standby of PostgreSQL, and has no read_only on MySQL and MariaDB. Nothing else
// tells a replica there. The variable read_only is a number, and a text since MariaDB 12.
func Primary(d Dialect) string {
	switch d {
	case PostgreSQL:
		return "NOT pg_is_in_recovery()"
	case MySQL:
		return "CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF')"
	}
	return "1 = 1"
}

// StatementSeconds is [Seconds] at the start of the statement. PostgreSQL uses no index for a time that goes on while a statement runs.
func StatementSeconds(d Dialect) string {
	if d == PostgreSQL {
		return "floor(extract(epoch FROM statement_timestamp()))::bigint"
	}
	return Seconds(d)
}
