package halfmsg_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/halfmsg"
)

// openShop opens a database, which is that of the coordinator and of the producer here.
func openShop(ctx context.Context) (db *sql.DB, coordinator *halfmsg.Coordinator, barrier *halfmsg.Barrier, closeShop func()) {
	dir, err := os.MkdirTemp("", "halfmsg")
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, "app.db"))+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		log.Fatal(err)
	}
	box, err := outbox.New(dialect.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if coordinator, err = halfmsg.New(dialect.SQLite, db, box, nil); err != nil {
		log.Fatal(err)
	}
	if barrier, err = halfmsg.NewBarrier(dialect.SQLite, nil); err != nil {
		log.Fatal(err)
	}
	_, err = db.ExecContext(ctx, "CREATE TABLE orders (id text)")
	if err := errors.Join(err, box.Migrate(ctx, db), coordinator.Migrate(ctx), barrier.Migrate(ctx, db)); err != nil {
		log.Fatal(err)
	}
	return db, coordinator, barrier, func() { db.Close(); os.RemoveAll(dir) } //nolint:errcheck // an example
}

// The messages of an order that is committed are in the outbox of the coordinator. A relay sends them.
func ExampleSend() {
	ctx := context.Background()
	db, coordinator, barrier, closeShop := openShop(ctx) // in another process the coordinator is a halfmsg.Client
	defer closeShop()
	order := func(id string, problem error) {
		messages := []outbox.Message{{Topic: "orders", Key: id, Payload: []byte("placed")}}
		half, err := halfmsg.Send(ctx, coordinator, "shop", barrier, db, nil, messages, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", id)
			return errors.Join(err, problem)
		})
		e, unknown := coordinator.Status(ctx, half)
		if unknown != nil {
			log.Fatal(unknown)
		}
		fmt.Println(id, e.State, err)
	}
	order("order-7", nil)
	order("order-8", errors.New("no such customer"))
	// Output:
	// order-7 submitted <nil>
	// order-8 aborted no such customer
}
