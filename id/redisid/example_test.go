package redisid_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	_ "github.com/ncruces/go-sqlite3/driver"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/redisid"
	"github.com/pawl-go/pawl/id/sqlmark"
	"github.com/pawl-go/pawl/internal/testservers"
)

// Numbers from Redis, whose mark is in a database: also after a FLUSHALL none comes twice.
func ExampleNew() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "marks")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, "marks.db")))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	marks, err := sqlmark.New(db, dialect.SQLite, nil)
	if err == nil {
		err = marks.Create(ctx)
	}
	if err != nil {
		log.Fatal(err)
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(testservers.ForExample()).Addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	counter, err := redisid.New(client, "ids:orders", &redisid.Options{Mark: marks.Mark("orders"), Ahead: 1000})
	if err != nil {
		log.Fatal(err)
	}
	defer counter.Close(ctx) //nolint:errcheck // nothing is under way
	orders := id.NewStrict(counter)
	for range 2 {
		n, err := orders.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(n)
		if err := client.Do(ctx, client.B().Flushall().Build()).Error(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 1
	// 1001
}
