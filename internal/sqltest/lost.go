package sqltest

import (
	"database/sql"
	"testing"
	"time"
)

// LostAnswer runs a statement of PostgreSQL whose answer is lost, and returns what run returns. Lock locks rows that the statement waits for. Waits is the
// statement as LIKE knows it. Then is called when the statement is free to take effect, and before run hears of the loss. Lose and heal are of the
// network of run.
func LostAnswer(t testing.TB, direct *sql.DB, lock, waits string, lose, heal, then func(), run func() error) error {
	t.Helper()
	tx, err := direct.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if _, err := tx.Exec(lock); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- run() }()
	Until(t, direct, "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '"+waits+"'")
	lose()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	then()
	heal()
	return <-result
}

// Until waits until the answer to a query is 1.
func Until(t testing.TB, db *sql.DB, query string) {
	t.Helper()
	for deadline, n := time.Now().Add(time.Minute), 0; n != 1; time.Sleep(5 * time.Millisecond) {
		if err := db.QueryRow(query).Scan(&n); err != nil || time.Now().After(deadline) {
			t.Fatal("never: ", query, err)
		}
	}
}
