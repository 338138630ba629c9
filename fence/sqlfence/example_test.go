package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/sqlfence"
)

// accounts returns a database with one account.
func accounts(ctx context.Context) *sql.DB {
	db, err := sql.Open("sqlite3", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	_, err = db.ExecContext(ctx, `
		CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0, version INTEGER NOT NULL DEFAULT 1);
		INSERT INTO account (id, balance) VALUES (7, 100)`)
	if err != nil {
		log.Fatal(err)
	}
	return db
}

// Whatever a transaction writes is protected by the check at its beginning. The
// holder of token 33 was frozen, and that of 34 wrote meanwhile.
func ExampleMarks() {
	ctx := context.Background()
	db := accounts(ctx)
	defer db.Close()
	marks := sqlfence.Marks{Dialect: sqlfence.SQLite}
	if err := marks.Create(ctx, db); err != nil { // or Schema, in your migrations
		log.Fatal(err)
	}

	add := func(token fence.Token, amount int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := marks.Check(ctx, tx, "account/7", token); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance + ? WHERE id = 7", amount); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(add(34, 50))
	fmt.Println(add(33, -100))
	fmt.Println(add(34, 1))
	// Output:
	// <nil>
	// stale fencing token: "account/7" has seen a newer token than 33
	// <nil>
}

// A row with a column for the token is checked and written by one statement.
func ExampleTable_UpdateIfNotOlder() {
	ctx := context.Background()
	db := accounts(ctx)
	defer db.Close()
	account := sqlfence.Table{Dialect: sqlfence.SQLite, Name: "account"}
	seven := sqlfence.Columns{"id": 7}

	fmt.Println(account.UpdateIfNotOlder(ctx, db, seven, 34, sqlfence.Columns{"balance": 150}))
	err := account.UpdateIfNotOlder(ctx, db, seven, 33, sqlfence.Columns{"balance": 0})
	fmt.Println(errors.Is(err, fence.ErrStale))
	// Output:
	// <nil>
	// true
}

// Without a lock: of two who read the same version, the first to write wins.
func ExampleTable_UpdateIfVersion() {
	ctx := context.Background()
	db := accounts(ctx)
	defer db.Close()
	account := sqlfence.Table{Dialect: sqlfence.SQLite, Name: "account"}
	seven := sqlfence.Columns{"id": 7}

	fmt.Println(account.UpdateIfVersion(ctx, db, seven, 1, sqlfence.Columns{"balance": 150}))
	_, err := account.UpdateIfVersion(ctx, db, seven, 1, sqlfence.Columns{"balance": 0})
	fmt.Println(errors.Is(err, sqlfence.ErrConflict))
	// Output:
	// 2 <nil>
	// true
}
