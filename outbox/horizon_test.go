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

// A transaction that stays open keeps MariaDB from cleaning its index, so that the entries of sent messages remain there. The relay
// reads such entries again for two seconds, and then no more. Else a message costs ever more reads of pages. A message of a
// transaction that was open all that time keeps its place in the order of its key.
func TestAnOldReaderCostsNothing(t *testing.T) {
	t.Parallel()
	server := testservers.MariaDB(t)
	config := testservers.MariaDBConfig(server.Addr)
	config.InterpolateParams = true
	d := newDatabaseAt(t, dialect.MySQL, config.FormatDSN())
	old, err := d.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var seen int
	if err := old.QueryRow("SELECT COUNT(*) FROM " + d.name).Scan(&seen); err != nil {
		t.Fatal(err)
	}
	late := outbox.Message{ID: "late", Topic: "t", Key: "late"}
	if _, err := d.table.Enqueue(t.Context(), old, late); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	var order []string
	p := publish(func(_ context.Context, m outbox.Message) error {
		if m.Key == late.Key { // one is under way at a time
			order = append(order, m.ID)
		}
		sent.Add(1)
		return nil
	})
	relay, stop := d.runAs(t, newClient(t), p, outbox.RelayOptions{})
	const messages = 1000
	// round returns how many pages the database has read for some messages.
	round := func(n int64) int64 {
		before := pagesRead(t, d)
		batch := make([]outbox.Message, messages)
		for i := range batch {
			batch[i] = outbox.Message{Topic: "t", Key: fmt.Sprint(i)}
		}
		d.enqueue(t, batch...)
		relay.Wake()
		until(t, "messages are sent", func() bool { return sent.Load() >= (n+1)*messages })
		return pagesRead(t, d) - before
	}
	most, last := round(0), int64(0)
	for n := int64(1); n < 200 && (n < 10 || last > most*85/100); n++ {
		most = max(most, last)
		last = round(n)
	}
	t.Logf("pages read for %d messages: %d at most, and then %d", messages, most, last)
	if last > most*85/100 {
		t.Error("the entries of sent messages are read again")
	}
	if err := old.Commit(); err != nil {
		t.Fatal(err)
	}
	next := d.enqueue(t, outbox.Message{ID: "next", Topic: "t", Key: late.Key})
	until(t, "the next message of the key is confirmed", func() bool { return d.is(t, outbox.Confirmed, next...) })
	stop()
	if got := fmt.Sprint(order); got != "[late next]" {
		t.Error(got)
	}
}

func pagesRead(t *testing.T, d *database) (n int64) {
	t.Helper()
	var name string
	if err := d.db.QueryRow("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'").Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
