package halfmsg_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/halfmsg"
)

func TestMain(m *testing.M) {
	if os.Getenv("PAWL_HALF_STEP") != "" {
		if err := dieAt(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testservers.Main(m))
}

// database is that of a coordinator and of a producer. All tables have the same prefix.
type database struct {
	dialect     dialect.Dialect
	source      string
	name        string
	db          *sql.DB
	box         *outbox.Table
	coordinator *halfmsg.Coordinator
	barrier     *halfmsg.Barrier
}

var tables atomic.Int64

// each runs a test on every database, with tables that no other test has.
func each(t *testing.T, test func(t *testing.T, d *database)) {
	t.Helper()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			var source string
			switch kind {
			case dialect.PostgreSQL:
				source = testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
			case dialect.MySQL:
				source = mariadb(testservers.SharedMariaDB(t))
			default:
				source = "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")) +
					"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
			}
			d := newDatabase(t, kind, source)
			test(t, d)
		})
	}
}

func mariadb(server *testservers.Server) string {
	config := testservers.MariaDBConfig(server.Addr)
	config.InterpolateParams = true
	return config.FormatDSN()
}

// newDatabase makes the tables of a test.
func newDatabase(t *testing.T, kind dialect.Dialect, source string) *database {
	t.Helper()
	d := &database{dialect: kind, source: source, name: fmt.Sprintf("half_%d_%d", time.Now().UnixNano(), tables.Add(1))}
	if err := d.open(nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.db.Close() }) //nolint:errcheck // nothing is lost
	for what, err := range map[string]error{"box": d.box.Migrate(t.Context(), d.db), "coordinator": d.coordinator.Migrate(t.Context()),
		"barrier": d.barrier.Migrate(t.Context(), d.db), "twice": d.barrier.Migrate(t.Context(), d.db)} {
		if err != nil {
			t.Fatal(what, err)
		}
	}
	if _, err := d.db.Exec("CREATE TABLE " + d.name + "_orders (id varchar(60) PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	return d
}

// open opens the tables of a name and a source.
func (d *database) open(onError func(error)) (err error) {
	driver := map[dialect.Dialect]string{dialect.PostgreSQL: "pgx", dialect.MySQL: "mysql", dialect.SQLite: "sqlite3"}[d.dialect]
	if d.db, err = sql.Open(driver, d.source); err != nil {
		return err
	}
	d.db.SetMaxOpenConns(12)
	if d.box, err = outbox.New(d.dialect, &outbox.Options{Table: d.name + "_box", MaxPayload: 100}); err != nil {
		return err
	}
	if d.coordinator, err = halfmsg.New(d.dialect, d.db, d.box, &halfmsg.Options{Table: d.name, AskAfter: time.Second, Timeout: time.Second, MaxWait: time.Second, OnError: onError}); err != nil {
		return err
	}
	d.barrier, err = halfmsg.NewBarrier(d.dialect, &halfmsg.BarrierOptions{Table: d.name + "_barrier", Wait: 200 * time.Millisecond})
	return err
}

// prepare makes a half message whose message has the ID order.
func (d *database) prepare(t *testing.T, order string) (id string) {
	t.Helper()
	id, err := d.coordinator.Prepare(t.Context(), "shop", outbox.Message{ID: order, Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// begin begins a transaction. On SQLite Begin takes the lock of the file.
func (d *database) begin(t *testing.T) *sql.Tx {
	t.Helper()
	tx, err := d.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() }) //nolint:errcheck // after the commit there is nothing to undo
	return tx
}

func (d *database) insertOrder(ctx context.Context, tx dialect.DB, order string) error {
	_, err := dialect.New(d.dialect).Add("INSERT INTO ", d.name, "_orders VALUES (").Value(order).Add(")").Exec(ctx, tx)
	return err
}

// ask answers from the barrier of this database.
func (d *database) ask(ctx context.Context, _, id string, age time.Duration) (halfmsg.Outcome, error) {
	return d.barrier.Answer(ctx, d.db, id, age)
}

// naiveAsk looks for the row and inserts none.
func (d *database) naiveAsk(ctx context.Context, _, id string, _ time.Duration) (halfmsg.Outcome, error) {
	var n int
	err := dialect.New(d.dialect).Add("SELECT COUNT(*) FROM ", d.name, "_barrier WHERE id = ").Value(id).Scan(ctx, d.db, &n)
	return map[int]halfmsg.Outcome{0: halfmsg.RolledBack, 1: halfmsg.Committed}[n], err
}

// run runs the coordinator until the test calls stop, or ends.
func (d *database) run(t *testing.T, ask halfmsg.Asker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.coordinator.Run(ctx, ask) }()
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
	return stop
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (d *database) status(t *testing.T, id string) halfmsg.Entry {
	t.Helper()
	e, err := d.coordinator.Status(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// decided reports whether no half message is prepared.
func (d *database) decided(t *testing.T) bool {
	t.Helper()
	var n int
	if err := d.db.QueryRow("SELECT COUNT(*) FROM " + d.name + " WHERE state = 0").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n == 0
}

// check compares the orders with the messages in the outbox: missing have no message, and extra are messages without an order.
func (d *database) check(t *testing.T) (orders, missing, extra int) {
	t.Helper()
	box := d.name + "_box"
	err := d.db.QueryRow("SELECT (SELECT COUNT(*) FROM "+d.name+"_orders), (SELECT COUNT(*) FROM "+d.name+"_orders o WHERE NOT EXISTS (SELECT 1 FROM "+box+
		" b WHERE b.id = o.id)), (SELECT COUNT(*) FROM "+box+" b WHERE NOT EXISTS (SELECT 1 FROM "+d.name+"_orders o WHERE b.id = o.id))").Scan(&orders, &missing, &extra)
	if err != nil {
		t.Fatal(err)
	}
	return orders, missing, extra
}
