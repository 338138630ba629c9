package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/runtest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

func TestMain(m *testing.M) {
	if os.Getenv("PAWL_OUTBOX_WORKER") != "" {
		if err := work(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testservers.Main(m))
}

// database is one of the test, with a table of messages.
type database struct {
	dialect        dialect.Dialect
	driver, source string
	db             *sql.DB
	name           string
	table          *outbox.Table
	relays         *waked
}

// waked are the relays of a table in this process. A producer wakes them after its commit.
type waked struct {
	mu  sync.Mutex
	all []*outbox.Relay
}

func (w *waked) add(r *outbox.Relay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, r)
}

func (w *waked) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.all {
		r.Wake()
	}
}

var drivers = map[dialect.Dialect]string{dialect.PostgreSQL: "pgx", dialect.MySQL: "mysql", dialect.SQLite: "sqlite3"}

// each runs a test on every database, with a table that no other test has, beside other tests.
func each(t *testing.T, test func(t *testing.T, d *database)) {
	t.Helper()
	t.Parallel()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, kind))
		})
	}
}

var tables atomic.Int64

func newDatabase(t *testing.T, kind dialect.Dialect) *database {
	t.Helper()
	return newDatabaseAt(t, kind, "")
}

// newDatabaseAt makes the table in the database of a source, or in the shared one.
func newDatabaseAt(t *testing.T, kind dialect.Dialect, source string) *database {
	t.Helper()
	d := &database{dialect: kind, name: fmt.Sprintf("box_%d_%d", time.Now().UnixNano(), tables.Add(1))}
	switch {
	case source != "":
		d.source = source
	case kind == dialect.PostgreSQL:
		d.source = testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
	case kind == dialect.MySQL:
		config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
		config.InterpolateParams = true
		d.source = config.FormatDSN()
	default:
		d.source = "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")) +
			"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
	}
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
	if d.db, err = sql.Open(drivers[d.dialect], d.source); err != nil {
		return err
	}
	d.db.SetMaxOpenConns(12)
	d.relays = &waked{}
	d.table, err = outbox.New(d.dialect, &outbox.Options{Table: d.name, MaxPayload: 100})
	return err
}

// exec runs a statement with values in the places of question marks.
func (d *database) exec(ctx context.Context, db dialect.DB, query string, args ...any) error {
	s := dialect.New(d.dialect)
	n := 0
	for _, c := range query {
		if c == '?' {
			s.Value(args[n])
			n++
		} else {
			s.Add(string(c))
		}
	}
	_, err := s.Exec(ctx, db)
	return err
}

// enqueue puts messages in a transaction of their own, and wakes the relays.
func (d *database) enqueue(t *testing.T, messages ...outbox.Message) []string {
	t.Helper()
	tx, err := d.db.BeginTx(t.Context(), nil)
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
	d.relays.wake()
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

// connect returns a client of the store at a URL, and a function that closes the client. A busy machine may not answer in time at once.
func connect(ctx context.Context, url string, opts *pawl.Options) (client *pawl.Client, end func(), err error) {
	for range 20 {
		eng, err := open.Open(ctx, url)
		if err == nil {
			if client, err = pawl.New(ctx, eng, opts); err == nil {
				return client, func() { client.Close(context.Background()); eng.Close() }, nil //nolint:errcheck // nothing is lost
			}
			eng.Close() //nolint:errcheck // the first error counts
		}
		if !errors.Is(err, pawl.ErrUnavailable) {
			return nil, nil, err
		}
	}
	return nil, nil, fmt.Errorf("no answer from the lock store: %w", pawl.ErrUnavailable)
}

// run runs a relay until the test calls stop, or ends. An owner that waits asks the database five times a second, and once in Rescan.
func (d *database) run(t *testing.T, client *pawl.Client, p outbox.Publisher, opts outbox.RelayOptions) (r *outbox.Relay, stop func()) {
	t.Helper()
	if opts.Poll == 0 {
		opts.Poll = 200 * time.Millisecond
		if opts.Rescan > 0 {
			opts.Poll = min(opts.Poll, opts.Rescan)
		}
	}
	opts.Backoff, opts.MaxBackoff = time.Millisecond, 50*time.Millisecond
	return d.runAs(t, client, p, opts)
}

// runAs does what run does, with the options as they are.
func (d *database) runAs(t *testing.T, client *pawl.Client, p outbox.Publisher, opts outbox.RelayOptions) (r *outbox.Relay, stop func()) {
	t.Helper()
	r, err := d.table.Relay(client, d.db, p, &opts)
	if err != nil {
		t.Fatal(err)
	}
	d.relays.add(r)
	return r, runtest.Start(t, r.Run)
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	untilWithin(t, 3*time.Minute, what, holds)
}

func untilWithin(t *testing.T, patience time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// next returns the next value of a channel.
func next[T any](t *testing.T, what string, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(3 * time.Minute):
		t.Fatalf("never: %s", what)
	}
	return got
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

// slots is the name in the lock store under which relays hold the partitions.
func (d *database) slots(t *testing.T) string {
	t.Helper()
	var identity int64
	if err := d.db.QueryRowContext(t.Context(), "SELECT beat FROM "+d.name+"_parts WHERE part = 0").Scan(&identity); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("pawl:slots/outbox/%s/%016x", d.name, identity)
}

// partition returns the number of the partition of a key.
func partition(key string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(key)) //nolint:errcheck // a hash never fails
	return h.Sum32() % outbox.Partitions
}

// sameAs returns another key in the partition of a key.
func sameAs(key string) string { return inPartition(key, key) }

// inPartition returns a key that begins with a name, in the partition of a key.
func inPartition(key string, name any) string {
	for i := 0; ; i++ {
		if other := fmt.Sprint(name, "'", i); partition(other) == partition(key) {
			return other
		}
	}
}
