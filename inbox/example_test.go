package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/inbox"
)

// openBills opens a database with a table of bills.
func openBills(ctx context.Context) (db *sql.DB, closeDB func()) {
	dir, err := os.MkdirTemp("", "inbox")
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, "app.db"))+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE bills (customer text)"); err != nil {
		log.Fatal(err)
	}
	return db, func() { db.Close(); os.RemoveAll(dir) } //nolint:errcheck // an example
}

// A broker delivers a message twice, and one bill is written.
func ExampleInbox_Do() {
	ctx := context.Background()
	db, closeDB := openBills(ctx)
	defer closeDB()
	store, err := sqlidem.New(dialect.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	box, err := inbox.New("billing", nil)
	if err != nil {
		log.Fatal(err)
	}
	handle := func(m inbox.Message) (repeat bool, err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return false, err
		}
		defer tx.Rollback()
		repeat, err = box.Do(ctx, store.In(tx), m, func(ctx context.Context) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO bills VALUES (?)", string(m.Payload))
			return err
		})
		if err != nil {
			return false, err
		}
		return repeat, tx.Commit()
	}
	message := inbox.Message{ID: "order-7-placed", Key: "order-7", Payload: []byte("Ada"), Time: time.Now()}
	for range 2 {
		fmt.Println(handle(message))
	}
	var bills int
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM bills").Scan(&bills); err != nil {
		log.Fatal(err)
	}
	fmt.Println(bills, "bill")
	// Output:
	// false <nil>
	// true <nil>
	// 1 bill
}
