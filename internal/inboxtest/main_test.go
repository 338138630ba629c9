package inboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the databases of the tests
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/internal/testservers"
)

// database is one of the tests, with a table of IDs and a table of effects.
type database struct {
	db    *sql.DB
	store *sqlidem.Store
	kind  dialect.Dialect
	dsn   string
	name  string
}

var drivers = map[dialect.Dialect]string{dialect.PostgreSQL: "pgx", dialect.MySQL: "mysql", dialect.SQLite: "sqlite3"}

var tables atomic.Int64

// databases runs a test on every database, with tables that no other test has.
func databases(t *testing.T, test func(t *testing.T, d *database)) {
	t.Helper()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		t.Run(kind.String(), func(t *testing.T) { test(t, newDatabase(t, kind)) })
	}
}

// Newdatabase makes the tables in a database of a kind.
func newDatabase(t *testing.T, kind dialect.Dialect) *database {
	t.Helper()
	return newDatabaseAt(t, kind, "")
}

// newDatabaseAt makes the tables in the database of a source, or in the shared one.
func newDatabaseAt(t *testing.T, kind dialect.Dialect, source string) *database {
	t.Helper()
	d := &database{kind: kind, name: fmt.Sprintf("inbox_%d_%d", time.Now().UnixNano(), tables.Add(1))}
	switch {
	case source != "":
		d.dsn = source
	case kind == dialect.PostgreSQL:
		d.dsn = testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
	case kind == dialect.MySQL:
		config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
		config.InterpolateParams = true
		d.dsn = config.FormatDSN()
	default:
		d.dsn = "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")) +
			"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
	}
	if err := d.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.db.Close() }) //nolint:errcheck // nothing is lost
	if err := d.store.Migrate(t.Context(), d.db); err != nil {
		t.Fatal(err)
	}
	serial := map[dialect.Dialect]string{dialect.PostgreSQL: "bigserial PRIMARY KEY", dialect.MySQL: "bigint AUTO_INCREMENT PRIMARY KEY", dialect.SQLite: "integer PRIMARY KEY AUTOINCREMENT"}[kind]
	if _, err := d.db.ExecContext(t.Context(), "CREATE TABLE effects_"+d.name+" (seq "+serial+", id varchar(100), k varchar(100))"); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *database) open() (err error) {
	if d.db, err = sql.Open(drivers[d.kind], d.dsn); err != nil {
		return err
	}
	d.db.SetMaxOpenConns(10)
	d.store, err = sqlidem.New(d.kind, &sqlidem.Options{Table: d.name})
	return err
}

// effect is what a message does.
func (d *database) effect(ctx context.Context, tx dialect.DB, m inbox.Message) error {
	_, err := dialect.New(d.kind).Add("INSERT INTO effects_"+d.name+" (id, k) VALUES (").Value(m.ID).Add(", ").Value(m.Key).Add(")").Exec(ctx, tx)
	return err
}

// effects returns the IDs of the messages that took effect, in order.
func (d *database) effects(ctx context.Context) (ids []string, err error) {
	rows, err := d.db.QueryContext(ctx, "SELECT id FROM effects_"+d.name+" ORDER BY seq")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// message returns number n of a key. The ID says both.
func message(key string, n int) inbox.Message {
	return inbox.Message{ID: key + "-" + strconv.Itoa(n), Key: key, Time: time.Now(), Payload: []byte("content"), Headers: map[string]string{"Trace": "t\t1"}}
}

// faults are what a checker finds.
type faults struct{ lost, twice, disordered int }

// check compares effects with the messages that were published: all numbers from 1 to n of each key.
func check(effects []string, keys, n int) (f faults) {
	seen, last := make(map[string]bool), make(map[string]int)
	for _, id := range effects {
		key, number, _ := strings.Cut(id, "-")
		i, _ := strconv.Atoi(number)
		switch {
		case seen[id]:
			f.twice++
		case i < last[key]:
			f.disordered++
		}
		seen[id] = true
		last[key] = max(last[key], i)
	}
	f.lost = keys*n - len(seen)
	return f
}

// worker is what a process that the test kills needs.
const workerEnv = "PAWL_INBOX_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) == "" {
		os.Exit(testservers.Main(m))
	}
	go endWith(os.Getppid())
	if err := work(context.Background()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// endWith ends this worker when the test process has ended, however that ended.
func endWith(parent int) {
	for os.Getppid() == parent {
		time.Sleep(500 * time.Millisecond)
	}
	os.Exit(1)
}

// work is a consumer process, which ends when all messages took effect.
func work(ctx context.Context) error {
	kind, err := strconv.Atoi(os.Getenv("PAWL_INBOX_DIALECT"))
	if err != nil {
		return err
	}
	d := &database{kind: dialect.Dialect(kind), dsn: os.Getenv("PAWL_INBOX_SOURCE"), name: os.Getenv("PAWL_INBOX_TABLE")}
	if err := d.open(); err != nil { //nolint:govet // the outer one is used below
		return err
	}
	defer d.db.Close()
	if whole := wholeWorkers[os.Getenv(workerEnv)]; whole != nil {
		return whole(d, ctx)
	}
	b, err := brokers[os.Getenv("PAWL_INBOX_KIND")].connect(os.Getenv("PAWL_INBOX_BROKER"), d.name)
	if err != nil {
		return err
	}
	defer b.close()
	source, err := b.source()
	if err != nil {
		return err
	}
	switch os.Getenv(workerEnv) {
	case "naive":
		return d.naive(ctx, b, source, true)
	case "forgetful":
		return d.naive(ctx, b, source, false)
	}
	client, end, err := locks(ctx)
	if err != nil {
		return err
	}
	defer end()
	single := client.Mutex("inbox/" + d.name)
	if os.Getenv("PAWL_INBOX_KIND") == quorum { // whose broker delivers to one process at a time
		single = nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for ctx.Err() == nil && !d.finished(ctx, b) {
			time.Sleep(50 * time.Millisecond)
		}
		stop()
	}()
	return d.consume(ctx, source, single)
}

// consume runs a consumer, whose handler fails now and then, until ctx ends.
func (d *database) consume(ctx context.Context, source inbox.Source, single *pawl.Mutex) error {
	box, err := inbox.New("test", nil)
	if err != nil {
		return err
	}
	c, err := box.Consumer(d.db, d.store, source, d.unlucky, &inbox.ConsumerOptions{Workers: 4, Backoff: time.Millisecond, MaxBackoff: 50 * time.Millisecond, MaxAttempts: 1000, Grace: 5 * time.Second, Single: single, MaxDeliveries: 10_000})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// finished reports whether all messages are settled.
func (d *database) finished(ctx context.Context, b broker) bool {
	if n, err := b.unsettled(ctx); err != nil || n > 0 {
		return false
	}
	want, err := strconv.Atoi(os.Getenv("PAWL_INBOX_MESSAGES"))
	if err != nil {
		return false
	}
	all, err := d.effects(ctx)
	return err == nil && len(all) >= want
}

// naive takes messages without an inbox, and acknowledges before the effect or behind it, until none is left.
func (d *database) naive(ctx context.Context, b broker, source inbox.Source, before bool) error {
	feed, err := source.Open(ctx, false)
	if err != nil {
		return err
	}
	for {
		got, err := gather(ctx, feed)
		if err != nil {
			return err
		}
		if len(got) == 0 {
			if n, err := b.unsettled(ctx); err == nil && n == 0 {
				return feed.Close(ctx)
			}
			continue
		}
		for _, one := range got {
			if before {
				err = errors.Join(err, one.Ack(ctx))
			}
		}
		for _, one := range got {
			time.Sleep(3 * time.Millisecond) // as much work as a mail
			err = errors.Join(err, d.effect(ctx, d.db, one.Message()))
			time.Sleep(3 * time.Millisecond)
			if !before {
				err = errors.Join(err, one.Ack(ctx))
			}
		}
		if err != nil {
			return err
		}
	}
}

// gather takes some messages at once, as a consumer with a queue of its own does. None come if there are none.
func gather(ctx context.Context, feed inbox.Feed) (all []inbox.Delivery, _ error) {
	for wait := hold; len(all) < 8; wait = 50 * time.Millisecond {
		soon, cancel := context.WithTimeout(ctx, wait)
		got, err := feed.Receive(soon, 8-len(all))
		over := soon.Err() != nil || errors.Is(err, context.DeadlineExceeded) // the client of Redis looks ahead
		cancel()
		all = append(all, got...)
		if over {
			break
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}
