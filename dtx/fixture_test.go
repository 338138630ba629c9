package dtx_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) {
	mysql.SetLogger(&mysql.NopLogger{}) //nolint:errcheck // every important message comes as an error
	if os.Getenv("PAWL_DTX_WORKER") != "" {
		if err := work(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testservers.Main(m))
}

// place is a database of a test. Log says that the database has the log, too.
type place struct {
	Dialect dialect.Dialect
	Source  string
	Log     bool
}

func (p place) open() (*sql.DB, error) {
	driver := map[dialect.Dialect]string{dialect.PostgreSQL: "pgx", dialect.MySQL: "mysql", dialect.SQLite: "sqlite3"}[p.Dialect]
	db, err := sql.Open(driver, p.Source)
	if err == nil {
		db.SetMaxOpenConns(8)
	}
	return db, err
}

// bank has accounts in two places. The log is in the first place.
type bank struct {
	table  string // of accounts
	ledger string // the table of the log; empty: as table
	places [2]place
	dbs    [2]*sql.DB
	log    *dtx.Log
	parts  []*dtx.Resource
}

// shapes are the pairs of databases.
var shapes = []struct {
	name   string
	places func(t *testing.T) [2]place
}{
	{"PostgreSQL and PostgreSQL", func(t *testing.T) [2]place { return [2]place{postgres(t, "postgres"), postgres(t, "second")} }},
	{"PostgreSQL and MariaDB", func(t *testing.T) [2]place { return [2]place{postgres(t, "postgres"), mariadb(t)} }},
	{"MariaDB and MariaDB", func(t *testing.T) [2]place { return [2]place{mariadb(t), mariadb(t)} }},
	{"last agent PostgreSQL", func(t *testing.T) [2]place {
		p := postgres(t, "postgres")
		p.Log = true
		return [2]place{p, postgres(t, "second")}
	}},
	{"last agent MariaDB", func(t *testing.T) [2]place {
		p := mariadb(t)
		p.Log = true
		return [2]place{p, postgres(t, "second")}
	}},
	{"last agent SQLite", func(t *testing.T) [2]place {
		file := filepath.ToSlash(filepath.Join(t.TempDir(), "log.db"))
		return [2]place{{dialect.SQLite, "file:" + file + "?_pragma=busy_timeout(120000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)", true}, brief(t)}
	}},
}

var (
	preparing sync.Mutex
	prepares  string // the address of a PostgreSQL that prepares transactions
)

// postgres is a database of a server that prepares transactions; as shipped it does not.
func postgres(t *testing.T, database string) place {
	t.Helper()
	preparing.Lock()
	defer preparing.Unlock()
	if prepares == "" {
		t.Fatal("TestDatabases has started no server")
	}
	url := testservers.PostgresURL(prepares)
	return place{Dialect: dialect.PostgreSQL, Source: strings.Replace(url, "/postgres?", "/"+database+"?", 1)}
}

func mariadb(t *testing.T) place {
	t.Helper()
	return place{Dialect: dialect.MySQL, Source: testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr).FormatDSN()}
}

// brief waits for no lock of MariaDB for long. A transaction that waits has the only lock of the file with the log. So no recovery
// can finish the transaction that has the other lock.
func brief(t *testing.T) place {
	t.Helper()
	config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
	config.Params = map[string]string{"innodb_lock_wait_timeout": "1"}
	return place{Dialect: dialect.MySQL, Source: config.FormatDSN()}
}

// options are those of all coordinators.
var options = &dtx.Options{Lease: time.Second}

var banks atomic.Int64

const (
	accounts = 24
	balance  = 1000
)

// newBank makes the tables of a bank.
func newBank(t *testing.T, places [2]place) *bank {
	t.Helper()
	b := &bank{table: fmt.Sprintf("bank_%d_%d", time.Now().UnixNano(), banks.Add(1)), places: places}
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	if err := b.log.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, db := range b.dbs {
		engine := map[dialect.Dialect]string{dialect.MySQL: " ENGINE=InnoDB"}[places[i].Dialect]
		queries := []string{fmt.Sprintf("CREATE TABLE %s_%d (id bigint PRIMARY KEY, n bigint NOT NULL)%s", b.table, i, engine)}
		for id := range accounts {
			queries = append(queries, fmt.Sprintf("INSERT INTO %s_%d VALUES (%d, %d)", b.table, i, id, balance))
		}
		for _, query := range queries {
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b
}

func (b *bank) logTable() string { return cmp.Or(b.ledger, b.table) }

// open opens the databases of a bank.
func (b *bank) open() error {
	for i, p := range b.places {
		db, err := p.open()
		if err != nil {
			return err
		}
		b.dbs[i] = db
	}
	log, err := dtx.NewLog(b.places[0].Dialect, b.dbs[0], &dtx.LogOptions{Table: b.logTable()})
	if err != nil {
		return err
	}
	b.log = log
	for i, p := range b.places {
		name := fmt.Sprintf("part%d", i)
		switch {
		case p.Log:
			b.parts = append(b.parts, log.Resource(name))
		case p.Dialect == dialect.PostgreSQL:
			b.parts = append(b.parts, dtx.PostgreSQL(name, b.dbs[i]))
		default:
			b.parts = append(b.parts, dtx.MySQL(name, b.dbs[i]))
		}
	}
	return nil
}

// seenFrom returns the same bank, whose databases are reached elsewhere.
func (b *bank) seenFrom(t *testing.T, places [2]place) *bank {
	t.Helper()
	other := &bank{table: b.table, ledger: b.ledger, places: places}
	if err := other.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.close)
	return other
}

func (b *bank) close() {
	for _, db := range b.dbs {
		db.Close() //nolint:errcheck // nothing is lost
	}
}

func (b *bank) coordinator(t *testing.T) *dtx.Coordinator {
	t.Helper()
	return b.leased(t, options.Lease)
}

// patient returns a coordinator that no busy machine makes silent for a lease.
func (b *bank) patient(t *testing.T) *dtx.Coordinator { t.Helper(); return b.leased(t, time.Minute) }

func (b *bank) leased(t *testing.T, lease time.Duration) *dtx.Coordinator {
	t.Helper()
	c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// move is the function of a transaction that moves money between the two places.
func (b *bank) move(from, to, n int) func(context.Context, *dtx.Tx) error {
	return func(ctx context.Context, tx *dtx.Tx) error {
		for i, query := range []string{fmt.Sprintf("UPDATE %s_0 SET n = n - %d WHERE id = %d", b.table, n, from), fmt.Sprintf("UPDATE %s_1 SET n = n + %d WHERE id = %d", b.table, n, to)} {
			if _, err := tx.On(b.parts[i]).ExecContext(ctx, query); err != nil {
				return err
			}
		}
		return nil
	}
}

// sums returns the money in each place.
func (b *bank) sums(t *testing.T) (sums [2]int) {
	t.Helper()
	for i, db := range b.dbs {
		if err := db.QueryRowContext(t.Context(), fmt.Sprintf("SELECT SUM(n) FROM %s_%d", b.table, i)).Scan(&sums[i]); err != nil {
			t.Fatal(err)
		}
	}
	return sums
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
