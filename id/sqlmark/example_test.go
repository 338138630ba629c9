package sqlmark_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/sqlmark"
)

// Strictly rising numbers of a table: the calls of a process that wait at the same time share
// a request.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sqlmark")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(dir, "app.db"))) // the *sql.DB that you have
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	registers, err := sqlmark.New(db, dialect.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := registers.Create(ctx); err != nil {
		log.Fatal(err) // the database does not flush, or the table has another shape
	}
	invoices := id.NewStrict(registers.Counter("invoices"))
	for range 2 {
		fmt.Println(invoices.Next(ctx))
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
}
