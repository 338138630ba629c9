package rabbit_test

import (
	"context"
	"database/sql"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/rabbit"
)

// A consumer reads the queue "billing" until ctx ends, and writes a bill for each order. The database has the table of bills.
func Example() {
	consume := func(ctx context.Context, url string, db *sql.DB) error {
		store, err := sqlidem.New(dialect.PostgreSQL, nil)
		if err != nil {
			return err
		}
		if err := store.Migrate(ctx, db); err != nil {
			return err
		}
		source, err := rabbit.New(rabbit.Dial(url, amqp.Config{}), "billing", nil)
		if err != nil {
			return err
		}
		box, err := inbox.New("billing", nil)
		if err != nil {
			return err
		}
		consumer, err := box.Consumer(db, store, source, func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO bills (customer) VALUES ($1)", string(m.Payload))
			return err
		}, &inbox.ConsumerOptions{OnError: func(err error) { fmt.Println(err) }})
		if err != nil {
			return err
		}
		return consumer.Run(ctx)
	}
	_ = consume // internal/inboxtest runs such consumers, kills them, and compares the books
}
