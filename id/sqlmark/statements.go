package sqlmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
)

// guards are conditions of each UPDATE, and of each SELECT: the server flushes and takes
// writes, as it is set now. In PostgreSQL the condition also turns the flush on until the transaction ends.
var guards = map[dialect.Dialect]string{
	dialect.PostgreSQL: `(current_setting('fsync') = 'on' AND ` + dialect.Primary(dialect.PostgreSQL) + `
		AND (SELECT c.relpersistence FROM pg_catalog.pg_class c WHERE c.oid = t.tableoid) = 'p'
		AND CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) ELSE 'on' END = 'on')`,
	dialect.MySQL: `(@@GLOBAL.innodb_flush_log_at_trx_commit = 1 AND (@@GLOBAL.log_bin = 0 OR @@GLOBAL.sync_binlog = 1)
		AND ` + dialect.Primary(dialect.MySQL) + ` AND @@autocommit = 1)`,
	dialect.SQLite: dialect.Primary(dialect.SQLite),
}

// read returns the number as it is. Where the guard is not fulfilled it says why.
func (r register) read(ctx context.Context) (is id.Reading, err error) {
	var guarded bool
	err = dialect.New(r.dialect).Add("SELECT n, version, ", guards[r.dialect], " FROM ").Table(r.table.Name).
		Add(" AS t WHERE name = ").Value(r.key).Scan(ctx, r.db, &is.Value, &is.Version, &guarded)
	missing := errors.Is(err, sql.ErrNoRows)
	switch {
	case err != nil && !missing:
		return id.Reading{}, err
	case !guarded: // or nobody knows
		if err := r.flushes(ctx, true); err != nil {
			return id.Reading{}, err
		}
	}
	if is.Value < 0 || is.Version == 0 && is.Value != 0 {
		return id.Reading{}, fmt.Errorf("%w: %q is %d", errOthers, r.key, is.Value)
	}
	return is, nil
}

// begin makes the row, with version 0: no number was taken yet.
func (r register) begin(ctx context.Context) error {
	_, err := dialect.InsertIfAbsent(r.dialect, r.table.Name, "name", dialect.Columns{"name": r.key, "n": 0, "version": 0}).Exec(ctx, r.db)
	return err
}

// add counts by one UPDATE.
func (c counter) add(ctx context.Context, n int64) (last int64, err error) {
	for {
		last, done, err := c.update(ctx, "n + ", n, "n", " >= 0 AND n <= ", math.MaxInt64-n)
		if err != nil || done {
			return last, err
		}
		is, err := c.read(ctx) // or it says why not
		switch {
		case err != nil:
			return 0, err
		case is.Value > math.MaxInt64-n:
			return 0, fmt.Errorf("%w: %d numbers after %d", id.ErrExhausted, n, is.Value)
		}
		if err := c.begin(ctx); err != nil {
			return 0, err
		}
	}
}

// update sets the number to what it was, if so, and v, where a column compares with a bound,
// and returns the number. The update is committed when update returns true.
func (r register) update(ctx context.Context, was string, v int64, column, compares string, bound int64) (n int64, done bool, err error) {
	s := dialect.New(r.dialect).Add("UPDATE ").Table(r.table.Name).Add(" AS t SET n = ")
	if r.dialect == dialect.MySQL {
		s.Add("LAST_INSERT_ID(", was).Value(v).Add(")")
	} else {
		s.Add(was).Value(v)
	}
	s.Add(", version = version + 1 WHERE name = ").Value(r.key).Add(" AND ", column, compares).Value(bound).Add(" AND ", guards[r.dialect])
	switch r.dialect {
	case dialect.MySQL:
		return execMySQL(ctx, r.db, s)
	case dialect.SQLite:
		err = r.execSQLite(ctx, s.Add(" RETURNING n"), &n)
	default:
		err = r.scanOnce(ctx, s.Add(" RETURNING n"), &n)
	}
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return n, err == nil, err
}

// scanOnce sends the statement once. A pool would send it again after some answers that are lost, and find its own version.
func (r register) scanOnce(ctx context.Context, s *dialect.Statement, n *int64) error {
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // back to the pool
	return s.Scan(ctx, conn, n)
}

// execMySQL takes the number from the answer, because MariaDB has no UPDATE that returns rows.
// The version changes always, so an affected row is a row that was found.
func execMySQL(ctx context.Context, db *sql.DB, s *dialect.Statement) (n int64, done bool, err error) {
	result, err := s.Exec(ctx, db)
	if err != nil {
		return 0, false, err
	}
	rows, err := result.RowsAffected()
	if err != nil || rows == 0 {
		return 0, false, err
	}
	n, err = result.LastInsertId()
	return n, err == nil, err
}

// execSQLite runs the statement in a transaction that is flushed, whatever the connection
// does else. A statement alone would not say whether its commit failed.
func (r register) execSQLite(ctx context.Context, s *dialect.Statement, n *int64) (err error) {
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // back to the pool
	flush, pragma := 0, `PRAGMA "`+r.schema()+`".synchronous`
	if err := conn.QueryRowContext(ctx, pragma).Scan(&flush); err != nil {
		return err
	}
	if flush < 2 { // FULL
		if _, err := conn.ExecContext(ctx, pragma+" = FULL"); err != nil {
			return err
		}
		defer conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("%s = %d", pragma, flush)) //nolint:errcheck // it only gets slower
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if err := s.Scan(ctx, tx, n); err != nil {
		return err
	}
	return tx.Commit()
}

// flushes says why the database is not one to keep marks in, if so. Before the table is there
// nothing is asked about it.
func (r *Registers) flushes(ctx context.Context, table bool) error {
	switch r.dialect {
	case dialect.PostgreSQL:
		return r.flushesPostgreSQL(ctx, table)
	case dialect.MySQL:
		return r.flushesMySQL(ctx)
	}
	return r.flushesSQLite(ctx)
}

func loses(format string, args ...any) error {
	return fmt.Errorf("%w: %s: a crash would lose numbers that were handed out", pawl.ErrUnsupported, fmt.Sprintf(format, args...))
}

func noWrites(why string) error { return fmt.Errorf("%w: %s", pawl.ErrUnavailable, why) }

func (r *Registers) flushesPostgreSQL(ctx context.Context, table bool) error {
	quoted, _, err := dialect.New(r.dialect).Table(r.table.Name).Build()
	if err != nil {
		return err
	}
	var fsync, kind string
	var primary, readOnly bool
	err = r.db.QueryRowContext(ctx, `SELECT current_setting('fsync'), `+dialect.Primary(dialect.PostgreSQL)+`, current_setting('transaction_read_only') = 'on',
		COALESCE((SELECT relpersistence::text FROM pg_catalog.pg_class WHERE oid = to_regclass($1)), '')`, quoted).Scan(&fsync, &primary, &readOnly, &kind)
	switch {
	case err != nil:
		return err
	case fsync != "on":
		return loses("the server runs with fsync = %s", fsync)
	case !primary:
		return noWrites("the server is a replica")
	case readOnly:
		return noWrites("the server or the session has default_transaction_read_only = on")
	case table && kind != "p":
		return loses("table %s is unlogged or temporary", r.table.Name)
	}
	return nil
}

func (r *Registers) flushesMySQL(ctx context.Context) error {
	var flush, sync int
	var log, primary, commits bool
	err := r.db.QueryRowContext(ctx, `SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog,
		`+dialect.Primary(dialect.MySQL)+`, @@autocommit`).Scan(&flush, &log, &sync, &primary, &commits)
	switch {
	case err != nil:
		return err
	case flush != 1:
		return loses("the server runs with innodb_flush_log_at_trx_commit = %d", flush)
	case log && sync != 1:
		return loses("the server has a binary log and runs with sync_binlog = %d", sync)
	case !commits:
		return loses("the connection has autocommit = 0")
	case !primary:
		return noWrites("the server has read_only = 1, as replicas have")
	}
	return nil
}

// schema is the database of a SQLite connection that has the table: each has its own flush.
func (r *Registers) schema() string {
	if schema, _, found := strings.Cut(r.table.Name, "."); found {
		return schema
	}
	return "main"
}

func (r *Registers) flushesSQLite(ctx context.Context) error {
	schema := r.schema()
	var file, journal string
	var readOnly bool
	err := r.db.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = ?`, schema).Scan(&file)
	if err == nil {
		err = r.db.QueryRowContext(ctx, `PRAGMA "`+schema+`".journal_mode`).Scan(&journal)
	}
	if err == nil {
		err = r.db.QueryRowContext(ctx, "PRAGMA query_only").Scan(&readOnly)
	}
	switch {
	case err != nil:
		return err
	case file == "":
		return loses("the database is in memory")
	case journal == "memory" || journal == "off":
		return loses("the database has journal_mode = %s", journal)
	case readOnly:
		return noWrites("the connection has query_only = on")
	}
	return nil
}
