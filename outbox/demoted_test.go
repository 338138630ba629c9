package outbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// A server is made read-only, as at a switchover, and keeps the connections of the relay. The relay leaves each of these connections, and so may
// reach the new primary. Until then the operator reads why nothing is sent.
func TestARelayLeavesADemotedServer(t *testing.T) {
	t.Parallel()
	server := testservers.MariaDB(t)
	root := newDatabaseAt(t, dialect.MySQL, testservers.MariaDBConfig(server.Addr).FormatDSN())
	do := func(query string) {
		t.Helper()
		if _, err := root.db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	connections := func() (ids []int64) {
		t.Helper()
		rows, err := root.db.QueryContext(t.Context(), "SELECT id FROM information_schema.processlist WHERE user = 'relay'")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	do("CREATE USER relay") // without the right to write while the server is read-only
	do("GRANT ALL ON pawl.* TO relay")
	opened, err := open.OpenDatabase(t.Context(), "mysql://relay@"+server.Addr+"/pawl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() }) //nolint:errcheck // nothing is lost
	relay := *root
	relay.db = opened.DB
	var faults faults
	relay.run(t, newClient(t), publish(func(context.Context, outbox.Message) error { return nil }), outbox.RelayOptions{OnError: faults.add})
	before := root.enqueue(t, outbox.Message{Topic: "t"})
	until(t, "confirmed", func() bool { return root.is(t, outbox.Confirmed, before...) })
	old := connections()
	do("SET GLOBAL read_only = 1")
	after := root.enqueue(t, outbox.Message{Topic: "t"})
	until(t, "the operator reads why", func() bool { return strings.Contains(faults.some("read-only"), "outbox: ") })
	until(t, "no connection is the old one", func() bool {
		return !slices.ContainsFunc(connections(), func(id int64) bool { return slices.Contains(old, id) })
	})
	do("SET GLOBAL read_only = 0")
	until(t, "confirmed", func() bool { return root.is(t, outbox.Confirmed, after...) })
}
