package sqlmark_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/internal/testservers"
)

// A mark that was raised, and whose answer is lost, is no conflict. In the simple protocol a pool would send the statement again, and find its
// own version. The row is locked until the network loses answers.
func TestLostAnswerIsNoConflict(t *testing.T) {
	server := testservers.SharedPostgres(t).Addr
	network := proxy.New(t, server)
	direct, table := postgres(t, server, pgx.QueryExecModeExec), "lost_answers"
	defer exec(t, direct, drop(dialect.PostgreSQL, table))
	all := registers(t, postgres(t, network.Addr, pgx.QueryExecModeSimpleProtocol), dialect.PostgreSQL, table)
	if err := all.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := all.Mark("it")
	first, err := mark.Raise(t.Context(), 1, id.Reading{})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := direct.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	exec(t, tx, "UPDATE "+table+" SET n = n")
	result := make(chan error, 1)
	go func() { _, err := mark.Raise(t.Context(), 2, first); result <- err }()
	until := func(query string) {
		for deadline, n := time.Now().Add(time.Minute), 0; n != 1; time.Sleep(5 * time.Millisecond) {
			if err := direct.QueryRow(query).Scan(&n); err != nil || time.Now().After(deadline) {
				t.Fatal("never: ", query, err)
			}
		}
	}
	until("SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE \"" + table + "\"%'")
	network.FreezeReplies()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	until("SELECT COUNT(*) FROM " + table + " WHERE n = 2")
	network.Thaw() // which ends the connections
	if err := <-result; !errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrConflict) {
		t.Error(err)
	}
}
