package stock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/stock"
)

// Units are taken in the transaction that writes the order.
func ExampleTable_Take() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stock")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, "app.db"))) // the *sql.DB that you have
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	stocks, err := stock.New(dialect.SQLite, &stock.Options{Parts: 4})
	if err == nil {
		err = stocks.Create(ctx, db) // or Schema, in your migrations
	}
	if err != nil {
		log.Fatal(err)
	}
	transact := func(f func(tx *sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := f(tx); err != nil {
			return err // and dialect.Again(err) says whether to repeat it
		}
		return tx.Commit()
	}
	fmt.Println(transact(func(tx *sql.Tx) error { return stocks.Put(ctx, tx, "sku-7", 10) }))
	fmt.Println(transact(func(tx *sql.Tx) error { return stocks.Take(ctx, tx, "sku-7", 8) }))
	err = transact(func(tx *sql.Tx) error { return stocks.Take(ctx, tx, "sku-7", 3) })
	fmt.Println(errors.Is(err, stock.ErrSoldOut), err)
	// Output:
	// <nil>
	// <nil>
	// true pawl_stock: take 3 of "sku-7": sold out: 3 units of "sku-7" are wanted, 2 are left
}
