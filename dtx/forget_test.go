package dtx

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

// Records are forgotten while a transaction that has written the record of another one is open. On MariaDB a DELETE with IN waited for that transaction.
func TestForgetBesideAnOpenTransaction(t *testing.T) {
	t.Parallel()
	db := testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr)
	log, err := NewLog(dialect.MySQL, db, &LogOptions{Table: fmt.Sprintf("forget_%d", time.Now().UnixNano())})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	insert := "INSERT INTO " + log.decided.Name + " (coordinator, number, decided, resources) VALUES (7, ?, 0, '')"
	var numbers []int64
	for number := range int64(20) {
		if _, err := db.ExecContext(t.Context(), insert, number); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, number)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the table is of this test
	if _, err := tx.ExecContext(t.Context(), insert, 50); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	if err := log.forget(ctx, 7, numbers); err != nil {
		t.Error(err)
	}
	left := -1
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+log.decided.Name).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d records are left, %v", left, err)
	}
}
