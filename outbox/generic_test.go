package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// TestPreparedStatements: PostgreSQL keeps a plan for all values of a prepared statement. With such a plan, too, a relay reads the messages of
// its own partitions only. By the primary key it would read those of all partitions, sixteen times as many.
func TestPreparedStatements(t *testing.T) {
	t.Parallel()
	const messages, batch = 20_000, 1000
	d := newDatabaseAt(t, dialect.PostgreSQL, testservers.PostgresURL(testservers.Postgres(t).Addr)+"&options=-c%20plan_cache_mode%3Dforce_generic_plan")
	for i := 0; i < messages; i += batch {
		var all []outbox.Message
		for j := range batch {
			all = append(all, outbox.Message{Topic: "t", Key: fmt.Sprint((i + j) % 500), Payload: make([]byte, 100)})
		}
		d.enqueue(t, all...)
	}
	if _, err := d.db.Exec("VACUUM ANALYZE " + d.name); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	_, stop := d.run(t, newClient(t), publish(func(context.Context, outbox.Message) error { sent.Add(1); return nil }), outbox.RelayOptions{})
	until(t, "all are sent", func() bool { return sent.Load() >= messages })
	stop()
	d.db.SetMaxIdleConns(0) // connections tell the statistics of what they read when they end, at the latest
	until(t, "the other connections have ended", func() bool {
		var others int
		err := d.db.QueryRow("SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()").Scan(&others)
		return err == nil && others == 0
	})
	var read int
	if err := d.db.QueryRow("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE relname = $1 AND indexrelname = $1 || '_pkey'", d.name).Scan(&read); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d entries of the primary key were read for %d messages", read, messages)
	if read < messages/2 { // each confirm finds its message so
		t.Error("the statistics lack what was read")
	}
	if read > 4*messages {
		t.Error("the messages of other partitions were read")
	}
}
