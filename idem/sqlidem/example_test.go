package sqlidem_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
)

// A client sends an order twice. The second request gets the result of the first, also if it was
// declined. The same key with another content is refused.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sqlidem")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, "app.db"))) // the *sql.DB that you have
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	store, err := sqlidem.New(dialect.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE payments (cents int)"); err != nil {
		log.Fatal(err)
	}

	pay := func(key string, cents int) (status string, replayed bool, err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return "", false, err
		}
		defer tx.Rollback()
		content := idem.FingerprintOf(fmt.Append(nil, cents))
		status, replayed, err = idem.Do(ctx, store.In(tx), idem.Key{Scope: "pay/user-7", ID: key}, content, func(ctx context.Context) (string, error) {
			if cents > 1000 {
				return "declined", nil // a value: a repeat is declined as well
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES (?)", cents)
			return "paid", err
		})
		if err != nil {
			return "", false, err
		}
		return status, replayed, tx.Commit()
	}
	fmt.Println(pay("click-1", 500))
	fmt.Println(pay("click-1", 500))
	_, _, err = pay("click-1", 700)
	fmt.Println(errors.Is(err, idem.ErrReused))
	fmt.Println(pay("click-2", 5000))
	fmt.Println(pay("click-2", 5000))
	// Output:
	// paid false <nil>
	// paid true <nil>
	// true
	// declined false <nil>
	// declined true <nil>
}
