package keytable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// Format is the format of the table. A row of the table says it, as its owner. The name of that row has
// no bar, so it is of no key. The row never expires.
const (
	Format    = 1
	formatRow = "format"
)

// Schema returns the statements that make the table. Migrations run them.
func (t Table) Schema() ([]string, error) {
	create, err := t.table.Schema(t.Dialect)
	if err != nil {
		return nil, err
	}
	insert := t.new().Add("INSERT INTO ").Table(t.table.Name).Add(" (name, fingerprint, owner, state, expires) SELECT ",
		fmt.Sprintf("'%s', %s, %d, 0, %d", formatRow, map[dialect.Dialect]string{dialect.PostgreSQL: "''::bytea", dialect.MySQL: "''", dialect.SQLite: "x''"}[t.Dialect], Format, int64(math.MaxInt64)),
		map[dialect.Dialect]string{dialect.MySQL: " FROM DUAL"}[t.Dialect], " WHERE NOT EXISTS (SELECT 1 FROM ").Table(t.table.Name).Add(" WHERE name = '", formatRow, "')")
	query, _, err := insert.Build()
	return append(strings.Split(create, ";\n"), query), err
}

// Migrate makes the table, or brings it to the format of this version. Several programs may do
// so at the same time.
func (t Table) Migrate(ctx context.Context, db *sql.DB) error {
	statements, err := t.Schema()
	if err != nil {
		return err
	}
	return dialect.Migrate(ctx, db, statements, func(ctx context.Context) error { return t.Check(ctx, db) })
}

// Check returns an error that matches [dialect.ErrMissing] if the table or the row with its format is
// missing. The error matches [pawl.ErrMismatch] if the table has another format or shape.
func (t Table) Check(ctx context.Context, db *sql.DB) error {
	shape := t.table.Check(ctx, db, t.Dialect)
	if shape != nil && !errors.Is(shape, dialect.ErrShape) {
		return shape
	}
	var format int64
	read := t.new().Add("SELECT owner FROM ").Table(t.table.Name).Add(" WHERE name = '", formatRow, "'").Scan(ctx, db, &format)
	switch {
	case read == nil && format != Format: // of which the shape is not known
		return fmt.Errorf("%w: table %s has format %d, and this version of pawl knows format %d", pawl.ErrMismatch, t.table.Name, format, Format)
	case shape != nil:
		return fmt.Errorf("%w: %w", pawl.ErrMismatch, shape)
	case errors.Is(read, sql.ErrNoRows):
		return fmt.Errorf("%w: the row of table %s with its format", dialect.ErrMissing, t.table.Name)
	case read != nil:
		return fmt.Errorf("read the format of table %s: %w", t.table.Name, read)
	}
	return nil
}

// MostSwept is how many keys one sweep deletes at most.
const MostSwept = 10_000

// Sweep deletes keys that have expired, at most so many, and returns how many. A key on which a
// transaction works is not seen, or is locked and skipped.
func (t Table) Sweep(ctx context.Context, db *sql.DB, limit int) (n int, err error) {
	if limit < 1 || limit > MostSwept {
		return 0, fmt.Errorf("%w: limit is %d: 1 to %d are allowed", pawl.ErrInvalid, limit, MostSwept)
	}
	n, err = t.sweep(ctx, db, limit)
	if err != nil {
		return 0, fmt.Errorf("sweep table %s: %w", t.table.Name, err)
	}
	return n, nil
}

func (t Table) sweep(ctx context.Context, db *sql.DB, limit int) (int, error) {
	if t.Dialect == dialect.SQLite { // a sweeper with nothing to delete is no writer, and waits for none
		if names, err := t.expired(ctx, db, 1); err != nil || len(names) == 0 {
			return 0, err
		}
	}
	// READ COMMITTED, so that MySQL locks no gaps; the others need no transaction of their own.
	tx, err := db.BeginTx(ctx, map[bool]*sql.TxOptions{true: {Isolation: sql.LevelReadCommitted}}[t.Dialect != dialect.SQLite])
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()              //nolint:errcheck // after the commit there is nothing to undo
	if t.Dialect == dialect.SQLite { // a write that changes nothing makes this transaction the writer before it reads, see package stock
		if _, err := t.new().Add("DELETE FROM ").Table(t.table.Name).Add(" WHERE name = ''").Exec(ctx, tx); err != nil {
			return 0, err
		}
	}
	names, err := t.expired(ctx, tx, limit)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	swept := int64(0)
	for some := range slices.Chunk(names, 1000) {
		result, err := dialect.DeleteByKey(t.new(), t.table.Name, "name", some).Add(" AND expires <= ", t.now()).Exec(ctx, tx)
		if err != nil {
			return 0, err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return 0, err
		}
		swept += n
	}
	return int(swept), tx.Commit()
}

// find returns the statement that finds expired keys that no other transaction has locked.
func (t Table) find(limit int) *dialect.Statement {
	s := t.new().Add("SELECT name FROM ").Table(t.table.Name).Add(" WHERE expires <= ", dialect.StatementSeconds(t.Dialect), " LIMIT ").Value(limit)
	if t.Dialect != dialect.SQLite { // which has one writer
		s.Add(" FOR UPDATE SKIP LOCKED")
	}
	return s
}

// expired returns the names of expired keys.
func (t Table) expired(ctx context.Context, db dialect.DB, limit int) (names []string, err error) {
	query, args, err := t.find(limit).Build()
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
