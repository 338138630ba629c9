package pgxidem_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/pgxidem"
	"github.com/pawl-go/pawl/internal/testservers"
)

// An order is booked once, although the message that asks for it is delivered twice.
func Example() {
	ctx := context.Background()
	url := testservers.PostgresURL(testservers.SharedPostgres(testservers.ForExample()).Addr)
	pool, err := pgxpool.New(ctx, url) // the pool that you have
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	store, err := pgxidem.New(&pgxidem.Options{Table: "example_keys"})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE example_orders (id bigserial, item text)"); err != nil {
		log.Fatal(err)
	}
	defer pool.Exec(ctx, "DROP TABLE example_keys, example_orders")

	book := func(message, item string) (id int64, replayed bool, err error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return 0, false, err
		}
		defer tx.Rollback(ctx)
		id, replayed, err = idem.Do(ctx, store.In(tx), idem.Key{Scope: "orders", ID: message}, idem.FingerprintOf([]byte(item)), func(ctx context.Context) (id int64, err error) {
			err = tx.QueryRow(ctx, "INSERT INTO example_orders (item) VALUES ($1) RETURNING id", item).Scan(&id)
			return id, err
		})
		if err != nil {
			return 0, false, err
		}
		return id, replayed, tx.Commit(ctx)
	}
	fmt.Println(book("message-1", "book"))
	fmt.Println(book("message-1", "book"))
	fmt.Println(book("message-2", "pen"))
	// Output:
	// 1 false <nil>
	// 1 true <nil>
	// 2 false <nil>
}
