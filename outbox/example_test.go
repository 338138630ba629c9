package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/outbox"
)

// printer is a broker that prints, and says when a message has come.
type printer struct{ came chan struct{} }

func (p printer) Publish(_ context.Context, m outbox.Message) error {
	fmt.Println(m.Topic, m.Key, string(m.Payload))
	p.came <- struct{}{}
	return nil
}

// openOrders opens a database with a table of orders.
func openOrders(ctx context.Context) (db *sql.DB, closeDB func()) {
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, "app.db"))+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id text)"); err != nil {
		log.Fatal(err)
	}
	return db, func() { db.Close(); os.RemoveAll(dir) } //nolint:errcheck // an example
}

// An order and its message are one commit. An order that is rolled back sends nothing.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	db, closeDB := openOrders(ctx)
	defer closeDB()
	table, err := outbox.New(dialect.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := table.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	order := func(id string, fails bool) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", id); err != nil {
			return err
		}
		_, err = table.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: id, Payload: []byte("placed")})
		if err != nil || fails {
			return err
		}
		return tx.Commit()
	}
	for id, fails := range map[string]bool{"order-7": false, "order-8": true} {
		if err := order(id, fails); err != nil {
			log.Fatal(err)
		}
	}

	client, err := pawl.New(ctx, memengine.New(), nil) // all relays of the table need one store: Redis, PostgreSQL and so on
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	broker := printer{make(chan struct{}, 1)}
	relay, err := table.Relay(client, db, broker, nil)
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- relay.Run(ctx) }()
	<-broker.came
	stop()
	fmt.Println(<-ended)
	// Output:
	// orders order-7 placed
	// <nil>
}

// A consumer's reply marks a message as done.
func ExampleTable_Complete() {
	ctx := context.Background()
	db, closeDB := openOrders(ctx)
	defer closeDB()
	table, err := outbox.New(dialect.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := table.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	ids, err := table.Enqueue(ctx, db, outbox.Message{Topic: "orders", Key: "order-7"})
	if err != nil {
		log.Fatal(err)
	}
	// A relay with RelayOptions.Resend sends the message, and the consumer replies with the message's ID.
	if err := table.Complete(ctx, db, ids...); err != nil {
		log.Fatal(err)
	}
	e, err := table.Status(ctx, db, ids[0])
	fmt.Println(e.State, err)
	// Output: done <nil>
}
