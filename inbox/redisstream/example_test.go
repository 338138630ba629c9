package redisstream_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/redisstream"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// consume runs a consumer until two messages took effect.
func consume(ctx context.Context, client rueidis.Client, db *sql.DB, store *sqlidem.Store) error {
	source, err := redisstream.New(client, "orders", "billing", nil)
	if err != nil {
		return err
	}
	box, err := inbox.New("billing", nil)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	left := 2
	consumer, err := box.Consumer(db, store, source, func(_ context.Context, _ *sql.Tx, m inbox.Message) error {
		fmt.Println(m.Key, string(m.Payload)) // and write in the transaction
		if left--; left == 0 {
			stop() // the consumer still commits and acknowledges
		}
		return nil
	}, nil)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

// A consumer reads a stream. The second message comes twice.
func Example() {
	ctx := context.Background()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(testservers.ForExample()).Addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
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
	store, err := sqlidem.New(dialect.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	for _, what := range []string{"placed", "paid", "paid"} { // the relay of an outbox writes these
		add := client.B().Xadd().Key("orders").Id("*").FieldValue().FieldValue("id", "7-"+what).FieldValue("key", "order-7").
			FieldValue("time", time.Now().UTC().Format(time.RFC3339)).FieldValue("payload", what).Build()
		if err := client.Do(ctx, add).Error(); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(consume(ctx, client, db, store))
	// Output:
	// order-7 placed
	// order-7 paid
	// <nil>
}
