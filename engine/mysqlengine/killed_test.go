package mysqlengine_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestKilledQuery: a server that kills a query may not run the handlers of its procedure, and leaves the
// transaction open. The pool must not keep that connection. The transaction has the lock of many names, and an application that
// shares the pool would write in that transaction.
func TestKilledQuery(t *testing.T) {
	const kills, connections, timedOut = 600, 2, 1969
	pool := database(t, testservers.MariaDB(t).Addr, "root", nil)
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(connections)
	s, c := sessiontest.Open(t, newEngine(t, pool, nil), time.Hour), sessiontest.Whole(t, sessiontest.Fair)
	killed := func(err error) int {
		var refused *mysql.MySQLError
		if errors.As(err, &refused) && refused.Number == timedOut {
			return 1
		}
		return 0
	}
	for round, n := 0, 0; n < kills; round++ {
		var asked error
		if round%2 == 0 {
			_, asked = s.Enter(t.Context(), c, false)
		} else {
			asked = s.Leave(t.Context(), c.Resource, c.ID)
		}
		n += killed(asked)
		var taken [connections]*sql.Conn
		for i := range taken {
			conn, err := pool.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			taken[i] = conn
			exec(t, conn, "SET SESSION max_statement_time = 0")
			var open bool
			if err := conn.QueryRowContext(t.Context(), "SELECT @@in_transaction").Scan(&open); err != nil || open {
				t.Fatalf("after %d kills the pool has a connection with an open transaction: %v, %v; the request: %v", n, open, err, asked)
			}
			exec(t, conn, fmt.Sprintf("SET SESSION max_statement_time = %f", 0.0005*rand.Float64()))
		}
		for _, conn := range taken {
			conn.Close() //nolint:errcheck // it goes back to the pool
		}
	}
}
