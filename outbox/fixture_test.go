package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/sqltest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

func TestMain(m *testing.M) {
	if os.Getenv("PAWL_OUTBOX_WORKER") != "" {
		if err := work(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testservers.Main(m))
}

// database is one of the test, with a table of messages.
type database struct {
	sqltest.Database
	db    *sql.DB
	name  string
	table *outbox.Table
}

// each runs a test on every database and with every client, with a table that no other test has.
func each(t *testing.T, test func(t *testing.T, d *database)) {
	t.Helper()
	for _, on := range sqltest.All(t) {
		t.Run(on.Name, func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, on))
		})
	}
}

func newDatabase(t *testing.T, on sqltest.Database) *database {
	t.Helper()
	d := &database{Database: on, name: sqltest.NewName("box")}
	if err := d.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.db.Close() }) //nolint:errcheck // nothing is lost
	if err := d.table.Migrate(t.Context(), d.db); err != nil {
		t.Fatal(err)
	}
	return d
}

// open opens the database of a name and a source.
func (d *database) open() (err error) {
	if d.db, err = d.Open(); err != nil {
		return err
	}
	d.table, err = outbox.New(d.Dialect, &outbox.Options{Table: d.name, MaxPayload: 100})
	return err
}

// enqueue puts messages in a transaction of their own.
func (d *database) enqueue(t *testing.T, messages ...outbox.Message) []string {
	t.Helper()
	tx, err := d.Begin(t.Context(), d.db)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit
	ids, err := d.table.Enqueue(t.Context(), tx, messages...)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return ids
}

// publish is a function as a publisher.
type publish func(ctx context.Context, m outbox.Message) error

func (p publish) Publish(ctx context.Context, m outbox.Message) error { return p(ctx, m) }

func newClient(t *testing.T) *pawl.Client {
	t.Helper()
	client, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // nothing is lost
	return client
}

// run runs a relay until the test calls stop, or ends.
func (d *database) run(t *testing.T, client *pawl.Client, p outbox.Publisher, opts outbox.RelayOptions) (r *outbox.Relay, stop func()) {
	t.Helper()
	if opts.Poll == 0 {
		opts.Poll = 20 * time.Millisecond
	}
	opts.Backoff, opts.MaxBackoff = time.Millisecond, 20*time.Millisecond
	r, err := d.table.Relay(client, d.db, p, &opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return r, stop
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// is reports whether the messages are in a state.
func (d *database) is(t *testing.T, state outbox.State, ids ...string) bool {
	t.Helper()
	for _, id := range ids {
		e, err := d.table.Status(t.Context(), d.db, id)
		if err != nil {
			t.Fatal(err)
		}
		if e.State != state {
			return false
		}
	}
	return true
}
