package webhook_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/webhook"
	"github.com/pawl-go/pawl/outbox"
	sender "github.com/pawl-go/pawl/outbox/webhook"
)

var secret = []byte("24 to 64 bytes, from your settings")

// consume runs a consumer of a source until ctx ends.
func consume(ctx context.Context, db *sql.DB, source *webhook.Source) error {
	store, err := sqlidem.New(dialect.SQLite, nil)
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx, db); err != nil {
		return err
	}
	box, err := inbox.New("billing", nil)
	if err != nil {
		return err
	}
	consumer, err := box.Consumer(db, store, source, func(_ context.Context, _ *sql.Tx, m inbox.Message) error {
		fmt.Println(m.Key, string(m.Payload)) // and write in the transaction
		return nil
	}, nil)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

// A server takes messages of an outbox. The second message comes twice.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("", "inbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, "app.db"))+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	source, err := webhook.New(&webhook.Options{Secrets: [][]byte{secret}})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(source) // or http.ListenAndServe
	defer server.Close()
	done := make(chan error, 1)
	go func() { done <- consume(ctx, db, source) }()

	publisher, err := sender.New(server.URL, sender.Options{Secret: secret}) // of the relay
	if err != nil {
		log.Fatal(err)
	}
	for _, what := range []string{"placed", "paid", "paid"} {
		m := outbox.Message{ID: "7-" + what, Topic: "order", Key: "order-7", Payload: []byte(what), Time: time.Now()}
		for publisher.Publish(ctx, m) != nil { // as a relay does; the consumer may not run yet
			time.Sleep(10 * time.Millisecond)
		}
	}
	stop()
	fmt.Println(<-done)
	// Output:
	// order-7 placed
	// order-7 paid
	// <nil>
}
