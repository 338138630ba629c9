package sequence_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id/sequence"
)

// Order numbers from two databases, of which either may be away. There may be ten some day.
func ExampleNew() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "orders")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var databases []sequence.Database
	for _, file := range []string{"a.db", "b.db"} {
		db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, file)))
		if err != nil {
			log.Fatal(err)
		}
		defer db.Close()
		databases = append(databases, sequence.Database{DB: db, Dialect: dialect.SQLite})
	}
	orders, err := sequence.New(ctx, databases, "orders", &sequence.Options{Step: 10})
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(ctx) //nolint:errcheck // nothing is under way
	for range 4 {
		n, err := orders.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(n)
	}
	// Output:
	// 1
	// 2
	// 11
	// 12
}
