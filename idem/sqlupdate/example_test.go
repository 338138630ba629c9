package sqlupdate_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence/sqlfence"
	"github.com/pawl-go/pawl/idem/sqlupdate"
)

// An order that is paid once, however often the request comes.
func ExampleUpdater_Do() {
	ctx := context.Background()
	db, err := sql.Open("sqlite3", "file:sqlupdate?mode=memory&cache=shared&_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("CREATE TABLE orders (id integer PRIMARY KEY, paid boolean); INSERT INTO orders VALUES (42, false)"); err != nil {
		log.Fatal(err)
	}
	marks := sqlfence.Marks{Dialect: dialect.SQLite}
	if err := marks.Create(ctx, db); err != nil {
		log.Fatal(err)
	}
	client, err := pawl.New(ctx, memengine.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	updater := sqlupdate.New(db, marks, nil)
	orders := client.Striped("orders", 100)
	for range 2 {
		done, err := updater.Do(ctx, orders.For("42"),
			func(ctx context.Context, tx *sql.Tx) (paid bool, err error) {
				err = tx.QueryRowContext(ctx, "SELECT paid FROM orders WHERE id = 42").Scan(&paid)
				return paid, err
			},
			func(ctx context.Context, tx *sql.Tx) error {
				fmt.Println("pay")
				_, err := tx.ExecContext(ctx, "UPDATE orders SET paid = true WHERE id = 42")
				return err
			})
		fmt.Println(done, err)
	}
	// Output:
	// pay
	// false <nil>
	// true <nil>
}
