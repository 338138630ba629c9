package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// fullable returns a database whose disk can be made full. The database then has some room left. Fill takes away the
// room to grow, and room gives it back.
func fullable(t *testing.T, kind dialect.Dialect) (d *database, payload int, fill func() (room func())) {
	t.Helper()
	var server *testservers.Server
	size := 2 << 20
	switch kind {
	case dialect.PostgreSQL:
		server = testservers.Postgres(t)
		d, payload = newDatabaseAt(t, kind, testservers.PostgresURL(server.Addr)), 1600 // so that a page has no room for a new version of a row
		if testservers.AsShipped() {
			size = 18 << 20 // a file of the log has 16 MB
		}
	case dialect.MySQL:
		server = testservers.MariaDB(t, "--innodb-log-file-size=8M")
		config := testservers.MariaDBConfig(server.Addr)
		config.InterpolateParams = true
		d, payload, size = newDatabaseAt(t, kind, config.FormatDSN()), 60_000, 16<<20 // the system tablespace has 12 MB
	default:
		d, payload = newDatabase(t, kind), 1600
		d.db.SetMaxOpenConns(1) // the bound is that of a connection
		fill = func() func() {
			pages := func(n string) {
				if _, err := d.db.Exec("PRAGMA max_page_count = " + n); err != nil {
					t.Error(err)
				}
			}
			pages("150")
			return func() { pages("100000") }
		}
	}
	if server != nil {
		fill = func() func() { return server.Full(size) }
	}
	var err error
	if d.table, err = outbox.New(kind, &outbox.Options{Table: d.name, MaxPayload: payload}); err != nil {
		t.Fatal(err)
	}
	return d, payload, fill
}

// TestAFullDisk: when the database has no room, a producer gets one clear error, and its message is not there. The relay loses nothing
// and keeps the order of keys. The relay goes on when there is room.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	signal.Ignore(syscall.SIGXFSZ) // the servers inherit that
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			fullDisk(t, kind)
		})
	}
}

func fullDisk(t *testing.T, kind dialect.Dialect) {
	d, payload, fill := fullable(t, kind)
	room := fill()
	var ids []string
	enqueue := func(n int) error {
		var batch []outbox.Message
		for range n {
			batch = append(batch, outbox.Message{ID: fmt.Sprintf("%d-%d", len(ids)%8, len(ids)/8), Topic: "t", Key: fmt.Sprint(len(ids) % 8), Payload: bytes.Repeat([]byte{'x'}, payload)})
			ids = append(ids, batch[len(batch)-1].ID)
		}
		_, err := d.table.Enqueue(t.Context(), d.db, batch...)
		if err != nil {
			ids = ids[:len(ids)-n]
		}
		return err
	}
	fails := 0
	for n := 8; fails < 5 && len(ids) < 50_000; { // also the room in pages that are there is used up
		err := enqueue(n)
		if err != nil {
			n = 1
			fails++
			t.Log(err)
			if !strings.HasPrefix(err.Error(), "outbox: enqueue: ") || strings.Contains(err.Error(), "\n") || len(ids) < 8 {
				t.Fatalf("after %d messages: %v", len(ids), err)
			}
		}
	}
	if fails < 5 {
		t.Fatalf("the disk is not full after %d messages", len(ids))
	}
	var sent order
	var faults faults
	d.run(t, newClient(t), publish(func(_ context.Context, m outbox.Message) error { sent.add(m.ID); return nil }), outbox.RelayOptions{OnError: faults.add, Window: 8})
	full := func() string { return faults.some("outbox: write results: ") }
	until(t, "the relay cannot mark, or has sent all in the room that there is", func() bool {
		said := full()
		if said != "" {
			t.Log(said)
		}
		return said != "" || d.dialect != dialect.PostgreSQL && d.is(t, outbox.Confirmed, ids...)
	})
	if d.dialect == dialect.PostgreSQL {
		for range 3 {
			until(t, "the relay tries again", func() bool { return full() != "" })
		}
		if d.is(t, outbox.Confirmed, ids...) {
			t.Error("all is confirmed on a full disk")
		}
	}
	t.Logf("%d sendings of %d messages while the disk is full", len(sent.all()), len(ids))
	room()
	until(t, "a producer goes on", func() bool { return enqueue(1) == nil })
	until(t, "all is confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
	inTurn(t, sent.all(), ids)
}
