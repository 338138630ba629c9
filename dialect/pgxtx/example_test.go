package pgxtx_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dialect/pgxtx"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// An order is booked once, although the message that asks for it is delivered twice. The order, its key and
// the message that tells of it are one transaction of pgx.
func Example() {
	ctx := context.Background()
	url := testservers.PostgresURL(testservers.SharedPostgres(testservers.ForExample()).Addr)
	pool, err := pgxpool.New(ctx, url) // the pool that you have
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	keys, err := sqlidem.New(dialect.PostgreSQL, &sqlidem.Options{Table: "example_keys"})
	if err != nil {
		log.Fatal(err)
	}
	messages, err := outbox.New(dialect.PostgreSQL, &outbox.Options{Table: "example_messages"})
	if err != nil {
		log.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool) // the same connections, to make the tables
	defer db.Close()
	if err := keys.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	if err := messages.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE example_orders (id bigserial, item text)"); err != nil {
		log.Fatal(err)
	}
	defer pool.Exec(ctx, "DROP TABLE example_keys, example_messages, example_messages_parts, example_orders")

	book := func(message, item string) (id int64, replayed bool, err error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return 0, false, err
		}
		defer tx.Rollback(ctx)
		key := idem.Key{Scope: "orders", ID: message}
		id, replayed, err = idem.Do(ctx, keys.In(pgxtx.Of(tx)), key, idem.FingerprintOf([]byte(item)), func(ctx context.Context) (id int64, err error) {
			if err := tx.QueryRow(ctx, "INSERT INTO example_orders (item) VALUES ($1) RETURNING id", item).Scan(&id); err != nil {
				return 0, err
			}
			_, err = messages.Enqueue(ctx, pgxtx.Of(tx), outbox.Message{Topic: "orders", Key: item})
			return id, err
		})
		if err != nil {
			return 0, false, err // if dialect.Again(err): repeat the transaction
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
