package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/fence/sqlfence"
	"github.com/pawl-go/pawl/idem/sqlidem"
)

// open opens the file of a form. A transaction takes the write lock of its file at its begin, and
// others wait for it.
func open(dir string, form int) (*sql.DB, error) {
	file := filepath.ToSlash(filepath.Join(dir, fmt.Sprintf("form-%d.db", form)))
	return sql.Open("sqlite3", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
}

// create makes the tables of every form. A form uses some of them.
func create(ctx context.Context, dir string) error {
	for i := range forms {
		db, err := open(dir, i)
		if err != nil {
			return err
		}
		if err := errors.Join(createIn(ctx, db), db.Close()); err != nil {
			return fmt.Errorf("create the tables: %w", err)
		}
	}
	return nil
}

func createIn(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, `
		CREATE TABLE payments (id TEXT NOT NULL);
		CREATE TABLE noted (id TEXT PRIMARY KEY);
		CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT NOT NULL);
		INSERT INTO orders VALUES ('`+order+`', 'created');
		CREATE TABLE segments (n INTEGER PRIMARY KEY, units INTEGER NOT NULL)`); err != nil {
		return err
	}
	for n := range segment {
		if _, err := db.ExecContext(ctx, "INSERT INTO segments VALUES (?, ?)", n, units/segment); err != nil {
			return err
		}
	}
	keys, err := sqlidem.New(dialect.SQLite, nil)
	if err != nil {
		return err
	}
	stocks, err := stocks()
	if err != nil {
		return err
	}
	marks := sqlfence.Marks{Dialect: dialect.SQLite}
	if err := errors.Join(keys.Migrate(ctx, db), stocks.Create(ctx, db), marks.Create(ctx, db)); err != nil {
		return err
	}
	return inTx(ctx, db, func(tx *sql.Tx) error { return stocks.Put(ctx, tx, item, units) })
}

// pay is the effect of the forms that pay in their database.
func pay(ctx context.Context, db dialect.DB) error {
	_, err := db.ExecContext(ctx, "INSERT INTO payments (id) VALUES (?)", order)
	return err
}

func payments(ctx context.Context, db *sql.DB) (n int, err error) {
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&n)
	return n, err
}
