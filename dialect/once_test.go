package dialect_test

import (
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sqltest"
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
	err := sqltest.LostAnswer(t, direct, "UPDATE once SET n = n", "UPDATE once SET n = n + 1", network.FreezeReplies, network.Thaw,
		func() { sqltest.Until(t, direct, "SELECT n FROM once") },
		func() error {
			_, err := dialect.New(dialect.PostgreSQL).Add("UPDATE once SET n = n + 1").Exec(t.Context(), pool)
			return err
		})
	if !dialect.Lost(err) {
		t.Error(err)
	}
	var n int
	if err := direct.QueryRow("SELECT n FROM once").Scan(&n); err != nil || n != 1 {
		t.Errorf("the statement took effect %d times, %v", n, err)
	}
}
