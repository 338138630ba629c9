package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/outbox"
)

const (
	items  = 4         // in the stock
	supply = 1_000_000 // units of each item
)

func item(i int) string { return fmt.Sprintf("item-%d", i) }

// database is that of orders, of payments or of the stock.
type database struct {
	db      *sql.DB
	dialect dialect.Dialect
}

// openDatabase opens the database of a URL. A transaction takes the write lock of a SQLite file at its begin, so that others wait
// for it.
func openDatabase(ctx context.Context, url string) (*database, error) {
	if path, isFile := strings.CutPrefix(url, "sqlite:"); isFile {
		db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(path)+
			"?_txlock=immediate&_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)")
		return &database{db, dialect.SQLite}, err
	}
	d, err := open.OpenDatabase(ctx, url+"?connections=30")
	if err != nil {
		return nil, err
	}
	return &database{d.DB, d.Dialect}, nil
}

// bind writes placeholders as the database knows them.
func (d *database) bind(query string) string {
	if d.dialect != dialect.PostgreSQL {
		return query
	}
	for n := 1; strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}

// inTx repeats a transaction while another one is in its way.
func (d *database) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	return dialect.Repeat(ctx, dialect.Again, func() error { return d.once(ctx, fn) })
}

func (d *database) once(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (d *database) createOrders(ctx context.Context) error {
	box, err := outbox.New(d.dialect, nil)
	if err != nil {
		return err
	}
	log, err := dtx.NewLog(d.dialect, d.db, nil)
	if err != nil {
		return err
	}
	return errors.Join(d.create(ctx,
		"CREATE TABLE items (item varchar(20) PRIMARY KEY, ordered int NOT NULL)",
		"CREATE TABLE orders (id varchar(20) PRIMARY KEY, item varchar(20) NOT NULL, place int NOT NULL, units int NOT NULL, state varchar(20) NOT NULL)",
		"INSERT INTO items VALUES (?, 0)"), box.Migrate(ctx, d.db), log.Migrate(ctx))
}

// createStock makes no unique index on the deliveries, so that a delivery that comes again is seen.
func (d *database) createStock(ctx context.Context) error {
	seen, err := sqlidem.New(d.dialect, nil)
	if err != nil {
		return err
	}
	return errors.Join(d.create(ctx,
		"CREATE TABLE stock (item varchar(20) PRIMARY KEY, units int NOT NULL, delivered int NOT NULL)",
		"CREATE TABLE deliveries (item varchar(20) NOT NULL, n int NOT NULL, order_id varchar(20) NOT NULL, units int NOT NULL)",
		fmt.Sprintf("INSERT INTO stock VALUES (?, %d, 0)", supply)), seen.Migrate(ctx, d.db))
}

// create makes two tables, and inserts a row for each item.
func (d *database) create(ctx context.Context, first, second, insert string) error {
	for _, query := range []string{first, second} {
		if _, err := d.db.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	for i := range items {
		if _, err := d.db.ExecContext(ctx, d.bind(insert), item(i)); err != nil {
			return err
		}
	}
	return nil
}
