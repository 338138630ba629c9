package outbox_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// doubt leaves a transaction in doubt, whose session is gone. The function end commits the transaction.
func (d *database) doubt(t *testing.T, name string, work func(tx dialect.DB) error) (end func()) {
	t.Helper()
	id := "'" + strings.TrimPrefix(d.name, "box_") + name + "'"
	begin, ends, commit := "BEGIN", []string{"PREPARE TRANSACTION " + id}, "COMMIT PREPARED "+id
	if d.dialect == dialect.MySQL {
		begin, ends, commit = "XA START "+id, []string{"XA END " + id, "XA PREPARE " + id}, "XA COMMIT "+id
	}
	conn, err := d.db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.ExecContext(context.Background(), begin)
	if err == nil {
		err = work(conn)
	}
	for _, query := range ends {
		if err == nil {
			_, err = conn.ExecContext(context.Background(), query)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // the session ends
	return func() {
		until(t, commit, func() bool { _, err := d.db.ExecContext(context.Background(), commit); return err == nil })
	}
}

// doubtful returns a database that prepares transactions.
func doubtful(t *testing.T, kind dialect.Dialect) *database {
	t.Helper()
	if kind == dialect.PostgreSQL { // as shipped it prepares no transaction
		server := testservers.Postgres(t, "-c", "max_prepared_transactions=4")
		return newDatabaseAt(t, kind, testservers.PostgresURL(server.Addr))
	}
	return newDatabase(t, kind)
}

// A consumer has completed a message in a transaction that is in doubt now, so that nobody can mark the message. The relay sends the other
// keys of the partition meanwhile, and marks them. Repeats of other messages go on, and old messages are deleted.
func TestACompletionInDoubtStopsNoOtherKey(t *testing.T) {
	t.Parallel()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			d := doubtful(t, kind)
			doubtStopsNoOtherKey(t, d, d)
		})
	}
}

// The same holds where the server ends each statement of the relay after half a second. The relay itself would wait for longer.
func TestACompletionInDoubtBehindAStatementTimeout(t *testing.T) {
	t.Parallel()
	for kind, limit := range map[dialect.Dialect]string{dialect.PostgreSQL: "&statement_timeout=500", dialect.MySQL: "&max_statement_time=0.5"} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			d := doubtful(t, kind)
			relay := &database{dialect: kind, name: d.name, source: d.source + limit}
			if err := relay.open(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { relay.db.Close() }) //nolint:errcheck // nothing is lost
			relay.relays = d.relays
			doubtStopsNoOtherKey(t, d, relay)
		})
	}
}

func doubtStopsNoOtherKey(t *testing.T, d, relay *database) {
	var ends []func()
	complete := func(id string) {
		ends = append(ends, d.doubt(t, id, func(tx dialect.DB) error { return d.table.Complete(t.Context(), tx, id) }))
	}
	keys := []string{"k"} // in one partition
	for len(keys) < 4 {
		keys = append(keys, sameAs(keys[len(keys)-1]))
	}
	var repeats atomic.Int64
	first := sync.OnceFunc(func() { complete("4 new") })
	p := publish(func(_ context.Context, m outbox.Message) error {
		switch {
		case m.ID == "4 new":
			first() // before the confirm
		case m.ID == "3 old":
			repeats.Add(1)
		}
		return nil
	})
	d.enqueue(t, outbox.Message{ID: "2 old", Topic: "t", Key: keys[1]}, outbox.Message{ID: "3 old", Topic: "t", Key: keys[2]}, outbox.Message{ID: "1 gone", Topic: "t", Key: keys[3]})
	if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = CASE id WHEN '1 gone' THEN 3 ELSE 2 END, changed = changed - 100000000"); err != nil {
		t.Fatal(err)
	}
	complete("2 old")
	d.enqueue(t, outbox.Message{ID: "4 new", Topic: "t", Key: "k"})
	_, stop := relay.run(t, newClient(t), p, outbox.RelayOptions{Resend: time.Second})
	for i := range 5 {
		ids := d.enqueue(t, outbox.Message{ID: fmt.Sprint("5 ", i), Topic: "t", Key: keys[1]}, outbox.Message{ID: fmt.Sprint("6 ", i), Topic: "t", Key: keys[3]})
		until(t, fmt.Sprint("confirmed ", i), func() bool { return d.is(t, outbox.Confirmed, ids...) })
	}
	until(t, "others are repeated", func() bool { return repeats.Load() > 0 })
	until(t, "old ones are deleted", func() bool {
		var n int
		err := d.db.QueryRow("SELECT COUNT(*) FROM " + d.name + " WHERE id = '1 gone'").Scan(&n)
		return err == nil && n == 0
	})
	if !d.is(t, outbox.Pending, "4 new") || !d.is(t, outbox.Confirmed, "2 old") {
		t.Error("the transactions are not in doubt")
	}
	for _, end := range ends {
		end()
	}
	ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "k"})
	until(t, "the key goes on", func() bool { return d.is(t, outbox.Confirmed, ids...) })
	if !d.is(t, outbox.Done, "4 new", "2 old") {
		t.Error("the completions are lost")
	}
	stop()
}
