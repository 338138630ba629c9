package sqlengine_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// counted is a server that tells how much it read for a try.
type counted struct {
	server
	prefix string // of the tables
	arg    func(n int) string
	series string // a table of the numbers n from 2 to the parameter 1
	work   func(t *testing.T, conn *sql.Conn, try ...any) int64
}

// postgresWork is how many pages one call reads. A page is read once for each row.
func postgresWork(t *testing.T, conn *sql.Conn, try ...any) int64 {
	var text string
	query := "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM tries.step('enter', $1, $2, $3, $3, '', 1, 'semaphore', $4, 0, 0)"
	if err := conn.QueryRowContext(t.Context(), query, try...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var plans []struct {
		Plan struct {
			Hit  int64 `json:"Shared Hit Blocks"`
			Read int64 `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// mariadbWork is how many rows one call reads.
func mariadbWork(t *testing.T, conn *sql.Conn, try ...any) int64 {
	reads := func() (all int64) {
		rows, err := conn.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read%'")
		err = sqlengine.Each(rows, err, func(scan func(...any) error) error {
			var name string
			var n int64
			err := scan(&name, &n)
			all += n
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	none := reads()
	none = reads() - none // what the question reads itself
	before := reads()
	session, resource, id, capacity := try[0], try[1], try[2], try[3]
	if _, err := conn.ExecContext(t.Context(), "CALL tries_call_step('enter', ?, ?, ?, ?, '', 1, 'semaphore', ?, 0, 0)", session, resource, id, id, capacity); err != nil {
		t.Fatal(err)
	}
	return reads() - before - none
}

// TestTriesOfAFullSemaphore: a try that fails reads as much beside 10,000 holders as beside 100. That
// holds after grants and leaves, and after a holder has died whose session is not buried yet.
func TestTriesOfAFullSemaphore(t *testing.T) {
	for name, c := range map[string]func(t *testing.T) counted{
		"PostgreSQL": func(t *testing.T) counted {
			return counted{postgres(t, "tries"), "tries.", func(n int) string { return fmt.Sprint("$", n) }, "generate_series(2, $1::int) AS s(n)", postgresWork}
		},
		"MariaDB": func(t *testing.T) counted {
			return counted{mariadb(t, "tries"), "tries_", func(int) string { return "?" }, "(SELECT seq AS n FROM seq_2_to_100000 WHERE seq <= ?) AS s", mariadbWork}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := c(t)
			few := c.tries(t, 100)
			for what, many := range c.tries(t, 10_000) {
				if t.Logf("%s: %d reads beside 100 holders, %d beside 10,000", what, few[what], many); many > 2*few[what]+50 {
					t.Errorf("%s: %d reads beside 10,000 holders, and %d beside 100", what, many, few[what])
				}
			}
		})
	}
}

// tries returns how much the tries read that fail beside so many holders.
func (c counted) tries(t *testing.T, holders int64) map[string]int64 {
	spec := engine.Spec{Kind: engine.KindSemaphore, Capacity: holders}
	name := fmt.Sprintf("tries %d", holders)
	live, dying, tries := sessiontest.Open(t, c, time.Hour), sessiontest.Open(t, c, time.Hour), sessiontest.Open(t, c, time.Hour)
	step := func(s engine.Session, op queue.Op, id string) bool {
		t.Helper()
		token, _, err := sqlengine.Step(t.Context(), s, name, queue.Request{Op: op, Spec: spec, Claim: queue.Claim{ID: id, Owner: id, Session: s.ID(), Weight: 1}})
		if err != nil && !errors.Is(err, engine.ErrBusy) {
			t.Fatal(err)
		}
		return token != 0
	}
	conn, err := c.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	try := func() int64 {
		t.Helper()
		if step(tries, queue.Enter, "try") {
			t.Fatal("it was not full")
		}
		return c.work(t, conn, tries.ID(), name, "try", holders)
	}
	step(live, queue.Enter, "h1")
	copied := strings.NewReplacer("P.", c.prefix, "SERIES", c.series, "NAME", c.arg(2)).Replace(
		`INSERT INTO P.claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waits, news, slot)
			SELECT resource, n, session, CONCAT('h', n), CONCAT('h', n), label, weight, token + n, since, granted, kind, capacity, barging, waits, news, slot
			FROM P.claims, SERIES WHERE resource = NAME`)
	if _, err := conn.ExecContext(t.Context(), copied, holders-2, name); err != nil {
		t.Fatal(err)
	}
	if !step(live, queue.Enter, "last") || !step(dying, queue.Enter, "dying") {
		t.Fatal("it was full")
	}
	reads := map[string]int64{"full": try()}
	for i := range 3 {
		step(live, queue.Leave, fmt.Sprint("h", 2+i))
		if !step(live, queue.Enter, fmt.Sprint("new", i)) {
			t.Fatal("a permit is lost")
		}
	}
	reads["after leaves"] = try()
	step(live, queue.Leave, "new2") // the last holder
	if !step(live, queue.Enter, "new3") {
		t.Fatal("a permit is lost")
	}
	reads["after the last left"] = try()
	if _, err := c.db.Exec(c.kill, dying.ID()); err != nil {
		t.Fatal(err)
	}
	if !step(live, queue.Enter, "heir") {
		t.Fatal("the dead holder's permit is lost")
	}
	reads["beside a dead session"] = try() // which is not buried
	return reads
}
