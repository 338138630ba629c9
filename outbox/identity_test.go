package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/outbox"
)

// clientOf returns a further client of a store.
func clientOf(t *testing.T, store *memengine.Engine) *pawl.Client {
	t.Helper()
	client, err := pawl.New(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // nothing is lost
	return client
}

// Tables of one name in two databases have their relays in one lock store, as two services of one user have. Each relay sends all of its table.
func TestTablesOfOneNameInOneLockStore(t *testing.T) {
	t.Parallel()
	store, all := memengine.New(), make([]outbox.Message, 200)
	for i := range all {
		all[i].Topic = "t"
	}
	var relays []*outbox.Relay
	var databases []*database
	var ids [][]string
	for i := range 2 {
		d := newDatabase(t, dialect.SQLite)
		var err error
		if d.table, err = outbox.New(d.dialect, nil); err == nil {
			err = d.table.Migrate(t.Context(), d.db)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, _ := d.run(t, clientOf(t, store), publish(func(context.Context, outbox.Message) error { return nil }), outbox.RelayOptions{Balance: 20 * time.Millisecond})
		relays, databases = append(relays, r), append(databases, d)
		if i == 0 {
			until(t, "the first has all partitions", func() bool { return r.Stats().Partitions == outbox.Partitions })
		}
	}
	until(t, "the second has partitions", func() bool { return relays[1].Stats().Partitions >= 8 })
	for _, d := range databases {
		ids = append(ids, d.enqueue(t, all...))
	}
	for i, d := range databases {
		until(t, "all is confirmed", func() bool { return d.is(t, outbox.Confirmed, ids[i]...) })
		until(t, "each relay has all partitions", func() bool { return relays[i].Stats().Partitions == outbox.Partitions })
	}
}

// Relays share a table also if one names the table with its schema. The partitions have the name that the documentation tells.
func TestRelaysOfATableWithItsSchema(t *testing.T) {
	t.Parallel()
	d, store := newDatabase(t, dialect.PostgreSQL), memengine.New()
	idle := publish(func(context.Context, outbox.Message) error { return nil })
	first, _ := d.run(t, clientOf(t, store), idle, outbox.RelayOptions{Balance: 20 * time.Millisecond})
	until(t, "the first has all partitions", func() bool { return first.Stats().Partitions == outbox.Partitions })
	is, err := clientOf(t, store).Show(t.Context(), d.slots(t))
	if err != nil || len(is.Holders) != outbox.Partitions {
		t.Errorf("%d holders, %v", len(is.Holders), err)
	}
	var names *outbox.Table
	if names, err = outbox.New(d.dialect, &outbox.Options{Table: "public." + d.name}); err != nil {
		t.Fatal(err)
	}
	d.table = names
	second, _ := d.run(t, clientOf(t, store), idle, outbox.RelayOptions{Balance: 20 * time.Millisecond})
	until(t, "the relays share", func() bool { return first.Stats().Partitions == 8 && second.Stats().Partitions == 8 })
}

// A table is restored from a backup of before its first relay, while a relay runs. That relay and the next one share the partitions.
func TestRelaysOfARestoredTable(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		store := memengine.New()
		idle := publish(func(context.Context, outbox.Message) error { return nil })
		opts := outbox.RelayOptions{Balance: 20 * time.Millisecond, Rescan: 50 * time.Millisecond}
		first, _ := d.run(t, clientOf(t, store), idle, opts)
		until(t, "the first has all partitions", func() bool { return first.Stats().Partitions == outbox.Partitions })
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+"_parts SET beat = 0, token = 0 WHERE part >= 0"); err != nil {
			t.Fatal(err)
		}
		second, _ := d.run(t, clientOf(t, store), idle, opts)
		until(t, "the relays share", func() bool { return first.Stats().Partitions == 8 && second.Stats().Partitions == 8 })
		ids := d.enqueue(t, outbox.Message{Topic: "t"}, outbox.Message{Topic: "t"}, outbox.Message{Topic: "t"}, outbox.Message{Topic: "t"})
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
	})
}
