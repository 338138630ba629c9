package dialect_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// A statement whose answer is lost is sent once, also by a pool whose driver takes the loss for a statement that was not sent. The row
// of the statement is locked until the network loses answers.
func TestExecIsSentOnce(t *testing.T) {
	server := testservers.SharedPostgres(t).Addr
	network := proxy.New(t, server)
	direct := open(t, "pgx", testservers.PostgresURL(server))
	pool := open(t, "pgx", testservers.PostgresURL(network.Addr)+"&default_query_exec_mode=simple_protocol")
	exec(t, direct, "CREATE TABLE once (n bigint)")
	defer exec(t, direct, "DROP TABLE once")
	exec(t, direct, "INSERT INTO once VALUES (0)")
	tx, err := direct.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	exec(t, tx, "UPDATE once SET n = n")
	result := make(chan error, 1)
	go func() {
		_, err := dialect.New(dialect.PostgreSQL).Add("UPDATE once SET n = n + 1").Exec(t.Context(), pool)
		result <- err
	}()
	is := func(query string) (n int) {
		if err := direct.QueryRow(query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	until := func(query string) {
		for deadline := time.Now().Add(time.Minute); is(query) != 1; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("never: ", query)
			}
		}
	}
	until("SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE once SET n = n + 1'")
	network.FreezeReplies()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	until("SELECT n FROM once")
	network.Thaw() // which ends the connections
	if err := <-result; !dialect.Lost(err) {
		t.Error(err)
	}
	if n := is("SELECT n FROM once"); n != 1 {
		t.Errorf("the statement took effect %d times", n)
	}
}
